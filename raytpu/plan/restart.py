"""What follows the ending of an attempt: the end of the run, or another attempt. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from raytpu.spec import Recovery


class EndingKind(StrEnum):
    """Why an attempt stopped."""

    COMPLETED = "completed"
    SLICE_LOST = "slice_lost"
    COLLECTIVE_FAILED = "collective_failed"
    """Hosts could not reach each other, and none of them is known to be lost."""
    PROGRAM_FAILED = "program_failed"
    """The train function raised, or ended its process, on a host that is well."""
    START_FAILED = "start_failed"
    """The hosts did not come up as the plan says."""
    SAVE_FAILED = "save_failed"
    LEASE_ENDED = "lease_ended"
    STOPPED = "stopped"
    """Somebody asked for the end, or the slices went to a higher priority after a last save."""
    REFUSED = "refused"
    """The request is wrong, or what it needs is not there."""
    FAILED = "failed"
    """Anything else, such as the loss of the cluster's head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How one attempt ended."""

    kind: EndingKind
    steps_done: int = 0
    """Steps that the attempt itself finished."""
    failed_after: int | None = None
    """Of a program that failed: the number of its last finished step, which may be an earlier attempt's."""
    error: str = ""
    """Of a program that failed: kind and place of the error, the same for the same bug."""
    lost: tuple[str, ...] = ()
    """Slices that were lost."""
    failed_hosts: tuple[str, ...] = ()
    """Hosts that did not start, as ``slice-0/1``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The run is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Another attempt, after ``wait_s``."""

    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """The run has failed. An empty ``reason``: an ending like this is never tried again."""

    reason: str = ""


Decision = Finish | Restart | GiveUp

LONGEST_WAIT_S = 60.0
"""By feel: what a storage or a network needs to come back; more is for a person to decide."""

COLLECTIVE_FAILURES = 2
"""In a row, without a step between them. One can be an accident on the way; the second is a host or a network
that is broken and that nobody can name, and every further attempt would meet it again."""


def decide(endings: Sequence[Ending], limits: Recovery) -> Decision:
    """What follows the last of ``endings``, the attempts of one driver in their order.

    Lost slices, errors of the program and failed starts spend budgets of their own: a week of spot
    preemptions must not use up the retries kept for errors, nor a broken host those kept for preemptions.
    Never tried again are a wrong request, a stop, slices that went to a higher priority (a run that came back
    at once would stand in the queue as if it had never had its turn), and a save that failed: the storage has
    to be looked at, and every step after it would be work that a loss undoes.
    """
    last = endings[-1]
    match last.kind:
        case EndingKind.COMPLETED:
            return Finish()
        case EndingKind.SLICE_LOST:
            lost = sum(len(ending.lost) for ending in endings if ending.kind is EndingKind.SLICE_LOST)
            return _within(lost, limits.max_lost_slices, "lost slices", wait_s=0.0)
        case EndingKind.COLLECTIVE_FAILED:
            return _after_collective_failure(endings, limits)
        case EndingKind.PROGRAM_FAILED:
            return _after_program_failure(endings, limits)
        case EndingKind.START_FAILED:
            failed = _count(endings, EndingKind.START_FAILED)
            return _within(failed, limits.max_start_failures, "failed starts", wait_s=_backoff_s(failed))
    return GiveUp()


def slices_to_give_up(endings: Sequence[Ending], in_a_row: int) -> frozenset[str]:
    """Slices with a host that did not start in each of the last ``in_a_row`` attempts."""
    recent = endings[-in_a_row:]
    if len(recent) < in_a_row:
        return frozenset()
    hosts = frozenset.intersection(*(frozenset(ending.failed_hosts) for ending in recent))
    return frozenset(host.rpartition("/")[0] for host in hosts)


def _after_collective_failure(endings: Sequence[Ending], limits: Recovery) -> Decision:
    row = 0
    for ending in reversed(endings):
        if ending.kind is not EndingKind.COLLECTIVE_FAILED:
            break
        row += 1
        if ending.steps_done:
            break
    if row >= COLLECTIVE_FAILURES:
        return GiveUp(
            reason=f"the hosts could not reach each other in {row} attempts in a row without a step between "
            "them, and none of them is known to be lost"
        )
    failed = _count(endings, EndingKind.COLLECTIVE_FAILED)
    return _within(failed, limits.max_lost_slices, "failed collectives", wait_s=_backoff_s(1))


def _after_program_failure(endings: Sequence[Ending], limits: Recovery) -> Decision:
    last, before = endings[-1], endings[:-1]
    if not any(ending.steps_done for ending in endings):
        return GiveUp()
    for ending in before:
        same = (ending.kind, ending.error, ending.failed_after) == (last.kind, last.error, last.failed_after)
        if same and last.error:
            return GiveUp(
                reason=f"the same error after step {last.failed_after} twice ({last.error}): another attempt "
                "would meet it again"
            )
    failed = _count(endings, EndingKind.PROGRAM_FAILED)
    return _within(failed, limits.max_program_failures, "errors of the program", wait_s=_backoff_s(failed))


def _count(endings: Sequence[Ending], kind: EndingKind) -> int:
    return sum(ending.kind is kind for ending in endings)


def _within(spent: int, limit: int, what: str, *, wait_s: float) -> Decision:
    if spent > limit:
        return GiveUp(reason=f"{what}: {spent}, and recovery allows {limit}")
    return Restart(wait_s=wait_s)


def _backoff_s(failures: int) -> float:
    """1, 2, 4, … seconds: what fails for a reason outside needs time, longer each time."""
    return min(LONGEST_WAIT_S, 2.0 ** (failures - 1))
