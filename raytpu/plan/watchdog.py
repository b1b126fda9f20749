"""Whether a run that makes no step is stuck, and who keeps the others waiting. Pure.

A step is collective: the host that has not entered it is late, and all others wait in it. How long that may
take is a multiple of what a step usually takes, between a least and a most. Work that keeps a host from its
step by intent, such as compiling, saving or evaluating, has a limit of its own, and so has the way to the
first step.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from raytpu.spec import Deadlines

STEP_TIMES = 10
"""A step may take this many times its usual length. By feel: a slow storage or a busy network makes a step
three times as long, not ten times."""

SAVING, FINISHING, AWAITING_DATA = "saving", "finishing", "waiting for data"
"""Pauses that have deadlines, and errors, of their own; a save may wait for the one before it, too."""

LEAST_TIMES = 2
"""Of its usual length that a step may take at the very least, whatever the limits say: a limit that is below
what is usual would end every step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Where a host's train loop is, by its own account."""

    step: int = 0
    """The last step that is finished."""
    steps_here: int = 0
    """How many of them by this process."""
    began: bool = True
    """The train function was called."""
    ended: bool = False
    """It has returned."""
    waits: bool = False
    """For devices or peers: this host has done its part of the step."""
    calls: int = 0
    """Programs, and waits for their results, that have come to an end."""
    pause: str = ""
    """What keeps it from its step by intent; empty when nothing does."""
    pause_s: float = 0.0
    """For how long it has been in that."""
    usual_s: float = 0.0
    """Median of its last steps; 0 before the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSeen:
    """A host as the driver sees it."""

    name: str
    where: Whereabouts
    """As it said last."""
    silent_s: float = 0.0
    """Since its last answer."""
    called_s: float = float("inf")
    """Since it was last seen to have come to the end of a call; see ``Whereabouts.calls``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds that things may take; see ``spec.Deadlines``."""

    step_least_s: float
    step_most_s: float
    first_step_s: float
    pause_s: float
    own_s: Mapping[str, float] = field(default_factory=dict)
    """Deadlines that a pause has of its own, by what it is for: the watchdog waits for those to end it."""
    silence_s: float
    """Without an answer, while no step is finished."""
    pausing_silence_s: float
    """The same of a host that is in a pause: a compiler may hold Python's lock for seconds."""

    @classmethod
    def of(cls, deadlines: Deadlines) -> Patience:
        """As a workload says."""
        return cls(
            step_least_s=deadlines.stuck_s,
            step_most_s=max(deadlines.stuck_s, deadlines.stuck_most_s),
            first_step_s=deadlines.first_step_s + deadlines.data_s,
            pause_s=deadlines.pause_s,
            own_s={
                SAVING: 2 * deadlines.checkpoint_s,
                FINISHING: 2 * deadlines.checkpoint_s,
                AWAITING_DATA: deadlines.data_s,
            },
            silence_s=deadlines.silence_s,
            pausing_silence_s=max(deadlines.silence_s, deadlines.heartbeat_s / 2),
        )

    def step_s(self, usual_s: float) -> float:
        """For a step that usually takes ``usual_s``."""
        most_s = max(self.step_most_s, LEAST_TIMES * usual_s)
        return min(most_s, max(self.step_least_s, STEP_TIMES * usual_s))

    def limit_s(self, pauses: Iterable[str]) -> float:
        """For hosts that are in these pauses, or do something else than a step."""
        return max([self.pause_s, *(self.own_s.get(pause, 0.0) for pause in pauses)])


class StuckKind(StrEnum):
    """Why a run makes no step."""

    SILENT = "silent"
    """Hosts do not answer: their processes are stopped, or cut off."""
    PROGRAM = "program"
    """Hosts have not entered the step, or do not end a pause: the program is at something else."""
    COLLECTIVE = "collective"
    """All hosts are in the step, and it does not end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A run that makes no step for longer than it may."""

    kind: StuckKind
    late: tuple[str, ...]
    """Hosts that the others wait for; all of them when nobody is ahead."""
    step: int
    """The step that is not finished."""
    seconds: float
    """That it, or the pause, has taken so far."""
    limit_s: float
    pause: str = ""
    """Of the late hosts, when they are in one."""
    place: str = ""
    """Line of the program that the first of the late hosts is at, as ``file.py:12``, once it was asked."""
    first: bool = False
    """No step of this attempt is finished."""
    awaited: bool = True
    """There are others, and they wait for these."""

    def __str__(self) -> str:
        names = ", ".join(self.late)
        have = "has" if len(self.late) == 1 else "have"
        wait = "; the others wait" if self.awaited else ""
        limit = f"step {self.step} is not finished after {self.seconds:.0f} s, limit {self.limit_s:.0f} s"
        if self.first:
            limit = (
                f"no step was reported {self.seconds:.0f} s after the train function was called, limit "
                f"{self.limit_s:.0f} s (deadlines.first_step_s)"
            )
        match self.kind:
            case StuckKind.SILENT:
                return f"{names} {have} not answered for {self.seconds:.0f} s at step {self.step}{wait}"
            case StuckKind.COLLECTIVE:
                return f"{limit}: all hosts are in it, and none of them is late"
        doing = f"{have} been {self.pause}" if self.pause else f"{have} not entered it"
        at = f" (at {self.place})" if self.place else ""
        return f"{limit}: {names} {doing}{at}{wait}"


def find_stuck(hosts: Sequence[HostSeen], since_s: float, patience: Patience) -> Stuck | None:
    """Whether the run is stuck.

    Args:
        hosts: all of them that take part.
        since_s: seconds since the last sign of progress: a step that was finished, a pause that began or
            ended, or the call of the train function.
        patience: what is allowed.

    A silent host is late long before a slow one: nothing that a program does keeps a process from answering.
    It must be silent while nothing moves, because one that is merely busy still makes its steps, and while
    others answer, because the network or the driver itself explains the silence of all. Who has finished a
    step has had all others in it, though one may not have lived to tell; before, a host may be importing or
    compiling, and hold Python's lock. So may all of them later, when nobody waits in a step.

    When nobody waits for anybody, or programs run to their ends while no step does, hosts are at something
    that the program does outside of its steps. That may be an evaluation that it did not announce, so the
    limit of a pause counts.
    """
    if not hosts or all(host.where.ended for host in hosts):
        return None
    silent, silence_s = _silent(hosts, patience)
    entered = any(host.where.steps_here for host in hosts)
    if 0 < len(silent) < len(hosts) and entered and since_s >= silence_s:
        seconds = max(host.silent_s for host in silent)
        return _stuck(StuckKind.SILENT, silent, hosts, seconds, silence_s)
    if not all(host.where.began for host in hosts):
        return None
    stepping = all(host.where.steps_here for host in hosts)
    late = _late(hosts)
    seconds, limit_s = since_s, _limit_s(hosts, stepping, patience)
    pausing = [host.where.pause_s for host in hosts if host.where.pause and stepping]
    if pausing:
        seconds = max(pausing)
    if seconds <= limit_s:
        return None
    if any(host in silent for host in late):
        return _stuck(StuckKind.SILENT, silent, hosts, seconds, limit_s)
    in_step = all(_stage(host.where) in (_WAITING_IN_PAUSE, _WAITING) for host in late)
    kind = StuckKind.COLLECTIVE if len(late) == len(hosts) and in_step else StuckKind.PROGRAM
    return _stuck(kind, late, hosts, seconds, limit_s)


def _silent(hosts: Sequence[HostSeen], patience: Patience) -> tuple[list[HostSeen], float]:
    """Those that do not answer, and for how long they may: less while another one answers that it waits."""
    awaited = any(host.where.waits and host.silent_s < patience.silence_s for host in hosts)
    least_s = patience.silence_s if awaited else patience.pausing_silence_s

    def is_silent(host: HostSeen) -> bool:
        limit_s = patience.pausing_silence_s if host.where.pause else least_s
        return host.silent_s >= limit_s and not host.where.ended

    return [host for host in hosts if is_silent(host)], least_s


def _limit_s(hosts: Sequence[HostSeen], stepping: bool, patience: Patience) -> float:
    if not stepping:
        return patience.first_step_s
    step_s = patience.step_s(statistics.median(host.where.usual_s for host in hosts))
    stages = {_stage(host.where) for host in hosts}
    if stages not in ({_WAITING}, {_PROGRAM, _WAITING}) or any(host.called_s < step_s for host in hosts):
        return patience.limit_s(host.where.pause for host in hosts)
    return step_s


# How far a host is within a step, in order.
_PROGRAM, _PAUSING, _WAITING_IN_PAUSE, _WAITING, _ENDED = range(5)


def _stage(where: Whereabouts) -> int:
    if where.ended:
        return _ENDED
    if where.pause:
        return _WAITING_IN_PAUSE if where.waits else _PAUSING
    return _WAITING if where.waits else _PROGRAM


def _late(hosts: Sequence[HostSeen]) -> list[HostSeen]:
    """Those behind all others; all of them when nobody is."""

    def position(host: HostSeen) -> tuple[int, int]:
        return (host.where.step, _stage(host.where))

    last = min(map(position, hosts))
    return [host for host in hosts if position(host) == last]


def _stuck(
    kind: StuckKind, late: Sequence[HostSeen], hosts: Sequence[HostSeen], seconds: float, limit_s: float
) -> Stuck:
    first = late[0].where
    return Stuck(
        kind=kind,
        late=tuple(host.name for host in late),
        step=min(host.where.step for host in hosts) + 1,
        first=not all(host.where.steps_here for host in hosts),
        seconds=seconds,
        limit_s=limit_s,
        pause=first.pause,
        awaited=len(late) < len(hosts),
    )
