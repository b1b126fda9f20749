"""The driver's end: hears every host, lets ``plan.replica_protocol`` decide, and tells the answers.

It finds those that are lost: a host whose stream ends (its process died), one that is silent (frozen, or cut
off), and one that keeps all others waiting. Whoever it gives up is named, with the reason.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from raytpu.errors import HostLost, ProgramFailed
from raytpu.gang import stream
from raytpu.gang.desk import Caller, Desk, Inbox
from raytpu.plan import HostSeen, Patience, Stuck, StuckKind, Whereabouts, find_stuck
from raytpu.plan import replica_messages as messages
from raytpu.plan import replica_protocol as protocol
from raytpu.plan.replica_view import View
from raytpu.spec import Replicas
from raytpu.train.replicas.talk import (
    Accuses,
    Beat,
    Closed,
    Endpoint,
    Finished,
    Hello,
    ShowStacks,
    Started,
    Told,
)

LOOK_S = 0.25
"""Between two looks for those that are silent or stuck."""

ABSENT_S = 2.0
"""A look that comes so much later than the last found the driver itself stopped, not its hosts silent."""

ACCUSED_S = 2.0
"""For an accusation to be explained by a loss that is noticed otherwise; then the accused is given up."""

STEPS_REMEMBERED = 50
"""Steps whose median says what is usual."""


@dataclass(slots=True)
class _Host:
    caller: Caller
    endpoint: Endpoint
    beat: Beat
    advanced_s: float = field(default_factory=time.monotonic)
    """When its beats began to tell of the step that it is at."""
    voted: tuple[int, int] = (-1, -1)
    """Epoch and step of the last vote."""
    finished: bool = False
    pausing_since_s: float = 0.0

    def seen(self, name: str, view: View, usual_s: float, now_s: float) -> HostSeen:
        """Where this host is in the step of ``view``; 0 for ``usual_s`` means that no step is done yet."""
        where = Whereabouts(
            step=view.step - 1,
            steps_here=int(usual_s > 0),
            ended=self.finished,
            waits=self.beat.exchanging or self.voted == (view.epoch, view.step),
            pause=self.beat.phase,
            pause_s=now_s - self.pausing_since_s if self.beat.phase else 0.0,
            usual_s=usual_s,
        )
        return HostSeen(name=name, where=where)


@dataclass(frozen=True, slots=True)
class _CalledUp:
    member: str


class Coordinator:
    """The centre of a run of replicas, in threads of the driver.

    Args:
        address: to listen on.
        founders: replicas that begin with the same state, in order.
        hosts: of each replica.
        parts: that a step's rows are divided into.
        settings, patience: of the workload.
        lost: told of each replica that is given up, with the reason, from the coordinator's thread.
        admitted: told of each replica that has got the state and takes part.
        stuck: told when the run makes no step for longer than it may.
    """

    def __init__(
        self,
        *,
        address: str,
        founders: Sequence[str],
        hosts: int,
        parts: int,
        settings: Replicas,
        patience: Patience,
        lost: Callable[[str, str], None],
        admitted: Callable[[str], None],
        stuck: Callable[[Stuck], None],
    ) -> None:
        self._patience, self._stuck = patience, stuck
        self._settings, self._lost, self._admitted = settings, lost, admitted
        self._inbox = Inbox()
        self._desk = Desk(
            address, lambda *said: self._inbox.put(said), lambda caller: self._inbox.put((caller, None))
        )
        self._begin = partial(
            protocol.begin, founders=tuple(founders), hosts=hosts, parts=parts, least=settings.least
        )
        self._state: protocol.State | None = None
        """``None`` until a founder has told after which step its state is."""
        self._founders, self._early = set(founders), list[messages.Event]()
        self._hosts: dict[tuple[str, int], _Host] = {}
        self._of: dict[Caller, tuple[str, int]] = {}
        self._reserve: dict[str, list[messages.Ready]] = {}
        """What the hosts of each replica in reserve have said."""
        self._started: Started | None = None
        self._accused: dict[tuple[str, int], tuple[float, str]] = {}
        self._with_state: set[str] = set()
        self._steps: deque[float] = deque(maxlen=STEPS_REMEMBERED)
        self._since_s = self._pauses_changed_s = self._looked_s = time.monotonic()
        self._over: str | None = None
        self._failure: Exception | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raytpu-coordinator", daemon=True)
        self._thread.start()

    @property
    def address(self) -> stream.Address:
        """Where hosts find it, and the secret that it wants to hear."""
        return stream.Address(host=self._desk.host, port=self._desk.port, token=self._desk.token, version="")

    def check(self) -> None:
        """Raise when nothing can go on.

        Raises:
            HostLost: no replica has the state any more.
        """
        if self._failure is not None:
            raise self._failure
        if self._over is not None:
            raise HostLost(f"every replica is lost: {self._over}")

    @property
    def view(self) -> View | None:
        """What was told last."""
        return None if self._state is None else self._state.view

    def is_ready(self, member: str) -> bool:
        """Whether all hosts of this replica are ready to take part: who waits now is not late itself."""
        state = self._state
        return state is not None and (
            state.is_here(member) or (state.view is not None and member in state.view.members)
        )

    def keep_back(self, member: str) -> None:
        """This replica stays in reserve: it gets everything ready, and does not take part before
        ``call_up``. Before its hosts are started."""
        self._reserve[member] = []

    def call_up(self, member: str) -> None:
        """A replica of the reserve takes part from the next step on. Any thread."""
        self._inbox.put((None, _CalledUp(member)))

    def give_up(self, member: str, reason: str) -> None:
        """Somebody else knows that this replica is lost. Any thread."""
        self._inbox.put((None, messages.Lost(member=member, reason=reason)))

    def leave(self, member: str, reason: str) -> None:
        """This replica goes away soon: the others go on without it after the step under way. Any thread."""
        self._inbox.put((None, messages.Leaving(member=member, reason=reason)))

    def close(self) -> None:
        """Stop, and end every stream."""
        self._closed.set()
        self._inbox.put((None, None))
        self._thread.join()
        self._desk.close()
        for host in self._hosts.values():
            host.caller.close()

    # -- one thread decides ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                for caller, message in self._inbox.take(LOOK_S):
                    self._happened(caller, message)
                self._look(time.monotonic())
        except Exception as error:  # the thread's boundary: raised again by check
            self._failure = error

    def _happened(self, caller: Caller | None, message: Any) -> None:
        if caller is not None and message is None:
            self._left(caller)
        elif caller is not None:
            self._heard(caller, message)
        elif isinstance(message, _CalledUp):
            for ready in self._reserve.pop(message.member, []):
                self._decide(ready)
        elif isinstance(message, messages.Leaving):
            self._decide(message)
        elif message is not None:
            self._lose(message.member, message.reason)

    def _heard(self, caller: Caller, message: Any) -> None:
        if caller not in self._of and not isinstance(message, Hello):
            return  # of a member that was given up meanwhile
        match message:
            case Hello():
                key = (message.member, message.position)
                self._of[caller] = key
                self._hosts[key] = _Host(caller, message.endpoint, Beat(step=0))
                if message.attached is not None:
                    self._decide(message.attached)
            case Beat():
                self._beat(self._hosts[self._of[caller]], message)
            case Started():
                self._founder_started(self._of[caller][0], message)
            case Accuses():
                self._accused.setdefault((message.member, message.epoch), (time.monotonic(), message.reason))
            case Finished():
                self._finished(self._of[caller])
            case messages.Ready() if message.member in self._reserve:
                self._reserve[message.member].append(message)
            case messages.Voted():
                self._hosts[self._of[caller]].voted = (message.epoch, message.step)
                self._decide(message)
            case _:
                self._decide(message)

    def _beat(self, host: _Host, beat: Beat) -> None:
        if beat.phase != host.beat.phase:
            host.pausing_since_s = self._pauses_changed_s = time.monotonic()
        if beat.step != host.beat.step:
            host.advanced_s = time.monotonic()
        host.beat = beat

    def _founder_started(self, member: str, started: Started) -> None:
        if self._started is None:
            self._started = started
            self._state = self._begin(step=started.step + 1)
            for event in self._early:
                self._decide(event)
        elif started.step != self._started.step:
            begun = self._started.step
            self._lose(member, f"it begins after step {started.step}, the others after step {begun}")

    def _finished(self, key: tuple[str, int]) -> None:
        self._hosts[key].finished = True
        if all(host.finished for (member, _), host in self._hosts.items() if member == key[0]):
            for host in self._hosts.values():
                host.caller.tell(Told(message=Closed()))

    def _left(self, caller: Caller) -> None:
        key = self._of.pop(caller, None)
        if key is None or self._hosts[key].caller is not caller or self._hosts[key].finished:
            return
        member, position = key
        self._lose(member, f"the process of its host {position} has ended")

    def _lose(self, member: str, reason: str) -> None:
        self._reserve.pop(member, None)
        self._decide(messages.Lost(member=member, reason=reason))
        self._part_with(member, reason)

    def _part_with(self, member: str, reason: str) -> None:
        """What is left to do once a replica is none any more, and has been told so."""
        for key in [key for key in self._hosts if key[0] == member]:
            host = self._hosts.pop(key)
            self._of.pop(host.caller, None)
            host.caller.close()
        self._lost(member, reason)

    def _decide(self, event: Any) -> None:
        if self._state is None:
            self._early.append(event)
            lost = {each.member: each.reason for each in self._early if isinstance(each, messages.Lost)}
            if lost.keys() >= self._founders:
                self._over = "; ".join(f"{member}: {reason}" for member, reason in lost.items())
            return
        before, lost_before = self._state.view, self._state.lost
        self._state, answers = protocol.advance(self._state, event)
        self._over = self._over or self._state.over
        for to in answers:
            self._tell(to)
        view = self._state.view
        if view is not None and (before is None or (view.epoch, view.step) != (before.epoch, before.step)):
            now_s = time.monotonic()
            if before is not None and view.epoch == before.epoch:
                self._steps.append(now_s - self._since_s)
            self._since_s = now_s
            with_state = set(view.full)
            for member in with_state - self._with_state:
                self._admitted(member)
            self._with_state = with_state
        if not isinstance(event, messages.Lost):  # whoever has left in peace, at the end of its last step
            for member in self._state.lost.keys() - lost_before.keys():
                self._part_with(member, self._state.lost[member])

    def _tell(self, to: messages.To) -> None:
        told = Told(message=to.message, endpoints=self._endpoints(), started=self._started)
        for (member, position), host in list(self._hosts.items()):
            if member == to.member and to.position in (None, position):
                host.caller.tell(told)

    def _endpoints(self) -> dict[str, tuple[Endpoint, ...]]:
        by_member: dict[str, list[Endpoint]] = {}
        for (member, _), host in sorted(self._hosts.items(), key=lambda item: item[0]):
            by_member.setdefault(member, []).append(host.endpoint)
        return {member: tuple(endpoints) for member, endpoints in by_member.items()}

    # -- those that do not answer -------------------------------------------------------------------------

    def _look(self, now_s: float) -> None:
        absent_s, self._looked_s = now_s - self._looked_s, now_s
        if absent_s > ABSENT_S:
            self._was_absent(now_s, absent_s)
        for (member, position), host in list(self._hosts.items()):
            silent_s = now_s - host.caller.heard_s
            if (
                not host.finished
                and silent_s > self._settings.silence_s
                and (member, position) in self._hosts
            ):
                self._lose(member, f"its host {position} has been silent for {silent_s:.1f} s")
        view = self.view
        for (member, epoch), (since_s, reason) in list(self._accused.items()):
            if view is None or epoch != view.epoch or member not in view.members:
                del self._accused[member, epoch]
            elif now_s - since_s > ACCUSED_S:
                del self._accused[member, epoch]
                self._lose(member, f"its peers cannot reach it: {reason}")
        if view is not None and view.running and self._failure is None:
            self._look_for_stuck(view, now_s)

    def _was_absent(self, now_s: float, absent_s: float) -> None:
        """What hosts said meanwhile may not have been read yet, so the time does not count."""
        self._since_s, self._pauses_changed_s = self._since_s + absent_s, self._pauses_changed_s + absent_s
        for host in self._hosts.values():
            host.caller.heard_s = min(now_s, host.caller.heard_s + absent_s)

    def _look_for_stuck(self, view: View, now_s: float) -> None:
        """Give up those that all others wait for; when all are late, it is the program. Whoever has come to
        another of the steps between two averages meanwhile is only slow."""
        usual_s = statistics.median(self._steps) / self._settings.every_steps if self._steps else 0.0
        hosts = {f"{m}/{position}": host for (m, position), host in self._hosts.items() if m in view.members}
        seen = [host.seen(name, view, usual_s, now_s) for name, host in hosts.items()]
        sign_s = max(self._since_s, self._pauses_changed_s)
        stuck = find_stuck(seen, now_s - sign_s, self._patience)
        if stuck is None:
            return
        if stuck.kind is StuckKind.COLLECTIVE and stuck.seconds <= self._patience.pause_s:
            return  # peers that cannot reach each other say so: this is a network that is slow
        late: dict[str, list[str]] = {}
        for name in stuck.late:
            member, _, position = name.rpartition("/")
            if now_s - max(sign_s, hosts[name].advanced_s) > stuck.limit_s or stuck.pause:
                late.setdefault(member, []).append(position)
        everybody = {name.rpartition("/")[0] for name in stuck.late} == set(view.members)
        if not late or (everybody and set(late) != set(view.members)):
            return
        self._end_stuck(stuck, view, late, everybody=everybody)

    def _end_stuck(self, stuck: Stuck, view: View, late: Mapping[str, list[str]], *, everybody: bool) -> None:
        what = "step" if self._settings.every_steps == 1 else "outer step"
        doing = stuck.pause or f"at {what} {view.step}"
        reasons = {
            member: f"its host {', '.join(sorted(positions))} has been {doing} for {stuck.seconds:.0f} s, "
            "the others wait"
            for member, positions in late.items()
        }
        words = "; ".join(f"{each}: {reason}" for each, reason in reasons.items())
        for host in self._hosts.values():
            host.caller.tell(Told(message=ShowStacks(str(stuck) if everybody else words)))
        self._stuck(stuck)
        if everybody:
            end = f"{stuck}; the stacks of all hosts are in their logs"
            self._failure = ProgramFailed(end, step=view.step - 1)
            return
        for member, reason in reasons.items():
            self._lose(member, reason)
