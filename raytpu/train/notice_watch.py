"""The driver's ears: which hosts go away and when, from whoever says so, as one plain fact for each slice."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import ray
from ray.exceptions import RayActorError, RayTaskError

from raytpu.gang import HeldHost, HeldSlice, Host, ray_internals
from raytpu.gang.release import RELEASE_S
from raytpu.plan.hand_over import Pace, Source, notice_s
from raytpu.record import EventLog, PreemptionNoticed
from raytpu.spec import Recovery
from raytpu.train.host_notices import Outlook

LOOK_S = 0.5
"""Between two looks. A notice is 25 s or more."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Going:
    """A host of the run goes away, and its slice with it."""

    host: str
    """``slice-0/1``"""
    source: Source
    until_s: float
    """By this process's monotonic clock."""

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.until_s - time.monotonic())

    @property
    def reason(self) -> str:
        """In words, to follow the name of a slice."""
        return f"{self.host} goes away: {self.source}"


class NoticeWatch:
    """Asks Ray and the hosts, in a thread of its own, until ``close``. What is heard is written down once.

    Args:
        held: the slices of the run, those in reserve included.
        hosts: the processes on them that can be asked.
        recovery: says how long a notice is where whoever gives it does not.
        log: of the driver.
    """

    def __init__(
        self,
        held: Callable[[], Sequence[HeldSlice]],
        hosts: Callable[[], Sequence[Host]],
        recovery: Recovery,
        log: EventLog,
    ) -> None:
        self._held, self._hosts, self._recovery, self._log = held, hosts, recovery, log
        self._going: dict[str, Going] = {}
        """By id of the node: a name may come back as another machine."""
        self._questions: dict[ray.ObjectRef, Host] = {}
        self._paces: dict[str, Pace] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raytpu-notices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        self._closed.set()
        self._thread.join(RELEASE_S)

    def going(self) -> dict[str, Going]:
        """Of each held slice with a host that goes away, the one that goes first; by name of the slice."""
        known, found = dict(self._going), dict[str, Going]()
        for each in self._held():
            heard = [known[host.node_id] for host in each.hosts if host.node_id in known]
            if heard:
                found[each.name] = min(heard, key=lambda going: going.until_s)
        return found

    @property
    def pace(self) -> Pace:
        """Of the slowest host."""
        paces = list(self._paces.values())
        saves = [pace.save_s for pace in paces if pace.save_s is not None]
        return Pace(step_s=max((pace.step_s for pace in paces), default=0.0), save_s=max(saves, default=None))

    def _run(self) -> None:
        while not self._closed.wait(LOOK_S):
            try:
                self._look()
            except Exception as error:  # the thread's boundary: a GCS that restarts must not make it deaf
                _log.warning("no look for notices of preemption: %s", error)

    def _look(self) -> None:
        places = {host.node_id: host for each in self._held() for host in each.hosts}
        if not places:
            return
        now_s = time.monotonic()
        for node_id, end_s in ray_internals.draining_nodes().items():
            if node_id in places:
                left_s = notice_s(Source.DRAIN, self._recovery) if end_s is None else end_s - time.time()
                self._note(places[node_id], Source.DRAIN, now_s + left_s)
        for host, outlook in self._answers():
            self._paces[host.name] = outlook.pace
            if place := places.get(host.assignment.node_id):
                for source, age_s in outlook.ages_s.items():
                    self._note(place, source, now_s - age_s + notice_s(source, self._recovery))

    def _note(self, place: HeldHost, source: Source, until_s: float) -> None:
        known = self._going.get(place.node_id)
        if known is not None:  # the first word counts: what Ray says next is what it was told below
            return
        going = self._going[place.node_id] = Going(host=place.name, source=source, until_s=until_s)
        self._log.write(
            PreemptionNoticed(host=going.host, source=str(going.source), seconds=going.seconds_left)
        )
        self._log.flush()
        if source is not Source.DRAIN:
            # Or the slice would be taken for a healthy one, by this run or another, once it is given back.
            ray_internals.drain_node(place.node_id, f"raytpu: {going.reason}", going.seconds_left)

    def _answers(self) -> Iterator[tuple[Host, Outlook]]:
        """Whatever hosts have answered, with one question to each under way."""
        asked = {host.actor: host for host in self._questions.values()}
        for host in self._hosts():
            if host.actor not in asked:
                self._questions[host.actor.outlook.remote()] = host
        questions = list(self._questions)
        done, _ = ray.wait(questions, num_returns=len(questions), timeout=0) if questions else ([], [])
        for reference in done:
            host = self._questions.pop(reference)
            try:
                yield host, ray.get(reference)
            except (RayActorError, RayTaskError):
                continue  # a death that others notice


def first_to_go(going: Mapping[str, Going]) -> Going:
    """The one of several with the least time."""
    return min(going.values(), key=lambda each: each.until_s)
