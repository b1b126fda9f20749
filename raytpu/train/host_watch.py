"""Notice the death of a host process, how far the gang has come, and that it is stuck, by one outstanding
question to each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import ray
from ray.exceptions import RayActorError, RayTaskError

from raytpu.gang import Host
from raytpu.plan import HostSeen, Patience, Stuck, Whereabouts, find_stuck
from raytpu.train.deaths import is_intended
from raytpu.train.endings import lost_hosts

ABSENT_S = 3.0
"""A look that comes so much later than the last found this process stopped, not its hosts silent."""


class HostWatch:
    """Deaths seen so far, by host name. Ray reported a killed actor after 0.06 to 0.35 s when measured."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = {host.name: host for host in hosts}
        self._questions: dict[ray.ObjectRef, str] = {}
        self._asked_s: dict[str, float] = {}
        self._where = {host.name: Whereabouts(began=False) for host in hosts}
        self._called_s = dict.fromkeys(self._where, float("-inf"))
        """When a host was last seen to have come to the end of a call."""
        self._sign: object = None
        """Of progress."""
        self._sign_s = self._looked_s = time.monotonic()
        for host in hosts:
            self._ask(host.name)
        self.deaths: dict[str, str] = {}
        """Ray's account of each."""
        self.last_step = 0
        """Number of the last step that some host has finished."""
        self.steps_done = 0
        """Steps that this attempt has finished."""

    def look(self) -> None:
        """Collect the answers there are, without waiting."""
        now_s = time.monotonic()
        absent_s, self._looked_s = now_s - self._looked_s, now_s
        if absent_s > ABSENT_S:
            self._was_absent(absent_s)
        if not self._questions:
            return
        done, _ = ray.wait(list(self._questions), num_returns=len(self._questions), timeout=0)
        for reference in done:
            name = self._questions.pop(reference)
            try:
                where = ray.get(reference)
            except (RayActorError, RayTaskError) as error:
                self.note_death(name, error)
                continue
            if where.calls != self._where[name].calls:
                self._called_s[name] = now_s
            self._where[name] = where
            self.last_step = max(self.last_step, where.step)
            self.steps_done = max(self.steps_done, where.steps_here)
            self._ask(name)
        sign = (self.last_step, tuple((where.began, where.pause) for where in self._where.values()))
        if sign != self._sign:
            self._sign, self._sign_s = sign, now_s

    def note_death(self, name: str, error: Exception) -> None:
        """Ray says that the process of this host is gone; the first word counts."""
        self.deaths.setdefault(name, " ".join(str(error).split()))

    @property
    def lost(self) -> Mapping[str, str]:
        """Deaths of host processes that nobody killed on purpose."""
        return {name: death for name, death in self.deaths.items() if not is_intended(death)}

    def stuck(self, patience: Patience) -> Stuck | None:
        """Whether the gang makes no step for longer than it may, as of the last look."""
        now_s = time.monotonic()
        silent_s = {name: now_s - self._asked_s[name] for name in self._questions.values()}
        seen = [
            HostSeen(
                name=name,
                where=where,
                silent_s=silent_s.get(name, 0.0),
                called_s=now_s - self._called_s[name],
            )
            for name, where in self._where.items()
        ]
        return find_stuck(seen, now_s - self._sign_s, patience)

    def _was_absent(self, absent_s: float) -> None:
        """What hosts did and said meanwhile may not be here yet, so the time does not count."""
        self._sign_s += absent_s
        self._asked_s = {name: asked_s + absent_s for name, asked_s in self._asked_s.items()}

    def _ask(self, name: str) -> None:
        self._questions[self._hosts[name].actor.whereabouts.remote()] = name
        self._asked_s[name] = time.monotonic()

    def raise_lost(self) -> None:
        """Raise HostLost when a host process has died that nobody killed on purpose."""
        self.look()
        if lost := self.lost:
            raise lost_hosts(lost)
