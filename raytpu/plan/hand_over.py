"""What follows the notice that a slice goes away: leave it at once, or train on and save just in time. Pure.

A save in lockstep, and the last save of the last replica, end the work on the slice: the sooner it is made
with a spare slice at hand, the sooner work goes on there; without one every step until shortly before the end
is won. A replica that leaves takes nothing along: the others have the state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from raytpu.spec import Recovery


class Source(StrEnum):
    """Who says that a host goes away; the value is for a person."""

    SIGTERM = "its process got SIGTERM"
    DRAIN = "Ray drains its node"
    PREEMPTED = "the metadata server says that its VM is preempted"
    MAINTENANCE = "the metadata server announces maintenance that ends its VM"


MAINTENANCE_S = 60.0
"""From ``maintenance-event`` to its begin (https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice)."""

SAVE_TIMES = 1.5
"""Of the last save's time, kept for the next one: all hosts of a preempted pool may save at once. By feel."""

FIRST_SAVE_S = 10.0
"""For a save when none has been measured yet. By feel."""

STEPS_TO_AGREE = 4
"""Hosts agree on a step two ahead of the foremost, and one is under way already; one more for luck."""

STEPS_TO_LEAVE = 2
"""The step under way, and the next one if the word comes after its votes."""

MARGIN_S = 3.0
"""Half a second each until a notice is seen and until it is looked at again; the rest by feel."""


def notice_s(source: Source, recovery: Recovery) -> float:
    """Seconds from the notice to the end, where whoever gives it does not say."""
    match source:
        case Source.SIGTERM:
            return recovery.grace_s
        case Source.MAINTENANCE:
            return MAINTENANCE_S
    return recovery.notice_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What the run has measured of itself."""

    step_s: float = 0.0
    """Of a step; 0 before the first."""
    save_s: float | None = None
    """From the begin of the last save until it was durable; ``None`` before the first."""

    @property
    def to_save_s(self) -> float:
        """For the hosts to agree on a step, to make it, and to save."""
        save_s = FIRST_SAVE_S if self.save_s is None else self.save_s
        return SAVE_TIMES * save_s + STEPS_TO_AGREE * self.step_s + MARGIN_S

    @property
    def to_leave_s(self) -> float:
        """For a replica to be released at the end of a step."""
        return STEPS_TO_LEAVE * self.step_s + MARGIN_S


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveNow:
    """Save at the next step that all hosts can agree on, and end there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOn:
    """Nothing is to be done yet, and if nothing changes, not for ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """These members leave at the end of a step; their parts go to the others."""

    members: tuple[str, ...]


def last_save(seconds_left: float, *, spares_ready: bool, pace: Pace) -> SaveNow | TrainOn:
    """When a gang in lockstep saves for the last time on a slice that is gone in ``seconds_left``.

    Args:
        seconds_left: of the slice that goes first.
        spares_ready: as many slices are held in reserve as go away.
        pace: of the run.
    """
    spare_s = seconds_left - pace.to_save_s
    return SaveNow() if spares_ready or spare_s <= 0 else TrainOn(seconds=spare_s)


def leaving_replicas(
    seconds_left: Mapping[str, float], full: Sequence[str], *, parts: int, pace: Pace
) -> Leave | SaveNow | TrainOn:
    """What replicas do when some of them go away.

    One stays until its replacement has the state or its time is nearly over, whichever is sooner. When all of
    them go, the one with the most time makes a last save before its end, unless another takes part by then.

    Args:
        seconds_left: by member, of those that go away.
        full: members that have the state, in order.
        parts: members that the run wants.
        pace: of the run.
    """
    staying = [member for member in full if member not in seconds_left]
    going = sorted((member for member in full if member in seconds_left), key=seconds_left.__getitem__)
    if not going:
        return TrainOn(seconds=min(seconds_left.values(), default=0.0))
    if not staying and isinstance(
        act := last_save(seconds_left[going[-1]], spares_ready=False, pace=pace), SaveNow
    ):
        return act
    may_leave = going if staying else going[:-1]
    leaving = [
        member for member in may_leave if len(staying) >= parts or seconds_left[member] <= pace.to_leave_s
    ]
    if leaving:
        return Leave(members=tuple(leaving))
    return TrainOn(seconds=max(0.0, seconds_left[going[0]] - pace.to_leave_s))
