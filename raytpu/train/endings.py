"""Why an attempt ended: one cause out of the many errors that a broken gang raises. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raytpu.errors import (
    DeadlineExceeded,
    HostLost,
    HostMismatch,
    LeaseEnded,
    ProgramFailed,
    RaytpuError,
    Refused,
    RunStopped,
    SaveFailed,
    SliceLost,
    WrongRequest,
)
from raytpu.plan import Ending, EndingKind
from raytpu.train.deaths import in_words, is_intended

# When one process of a gang is gone, its peers fail in their next collective. These are the words of
# XLA's gloo transport and of JAX's coordination service for that (seen with jax 0.10.2 on CPU).
PEER_FAILURE_WORDS = (
    "gloo",
    "connection closed by peer",
    "connection reset by peer",
    "coordination service",
    "coordination agent",
    "heartbeat",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What is known of an attempt beside the error that ended it."""

    run: str = "RUN"
    """Its name."""
    started: bool
    """All hosts had joined JAX's world."""
    steps_done: int = 0
    """Steps that this attempt finished."""
    last_step: int = 0
    """Number of the last finished step, as far as the hosts have told."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """Reason by name of each slice that is lost."""
    deaths: Mapping[str, str] = field(default_factory=dict)
    """Ray's account of each host process that ended by itself although its host is well; by host name."""
    failed_starts: Mapping[str, str] = field(default_factory=dict)
    """Reason by name of each host that did not come up."""


def is_peer_failure(error: BaseException) -> bool:
    """Whether an error may be the echo of another host's loss."""
    text = str(error).lower()
    return isinstance(error, ProgramFailed) and any(word in text for word in PEER_FAILURE_WORDS)


def decided_elsewhere(error: RaytpuError) -> bool:
    """Whether an attempt ended for a reason that no lost host can have brought about."""
    return isinstance(error, RunStopped | LeaseEnded | SliceLost | WrongRequest)


def needs_no_cause(error: RaytpuError) -> bool:
    """Whether an error explains itself, so that nothing more has to be heard before it is believed."""
    return isinstance(error, ProgramFailed) and not is_peer_failure(error)


def cause_of(
    hosts: Sequence[str], failures: Mapping[int, BaseException], deaths: Mapping[str, str]
) -> RaytpuError:
    """The error that explains the ending.

    Args:
        hosts: names in process order.
        failures: what the process of each rank raised, as far as known.
        deaths: Ray's account of each host process that died, by host name.

    What raytpu itself refused comes first, such as a checkpoint of another model. Then a dead host: it
    explains whatever its peers raised. Then the program's own error, before the collectives that failed on
    other hosts because of it.
    """
    for _, error in sorted(failures.items()):
        if isinstance(error, RaytpuError) and not isinstance(error, ProgramFailed):
            return error
    lost = {name: death for name, death in deaths.items() if not is_intended(death)}
    if lost:
        return lost_hosts(lost)
    own = {rank: error for rank, error in sorted(failures.items()) if not is_peer_failure(error)}
    for rank, error in own.items():
        if isinstance(error, RaytpuError):
            return error
        return ProgramFailed(f"{hosts[rank]}: {type(error).__name__}: {error}", error=type(error).__name__)
    if failures:
        rank, error = min(failures.items())
        names = ", ".join(hosts[rank] for rank in sorted(failures))
        return HostLost(
            f"a collective failed on {names}, and no host of the gang is known to have died; first: {error}"
        )
    return ProgramFailed("the run ended without a result and without an error")


def lost_hosts(deaths: Mapping[str, str]) -> HostLost:
    """The error for host processes that died, of whom Ray gives these accounts, by host name."""
    return HostLost(f"lost {', '.join(sorted(deaths))}: {in_words(next(iter(deaths.values())))}")


def ending_of(error: RaytpuError, seen: Circumstances) -> tuple[RaytpuError, Ending]:
    """What to call the ending, and the error that tells a person most about it.

    A lost slice explains everything but what was decided elsewhere (a stop, slices taken back) or was wrong
    from the beginning: a save that fails because a host of it is gone is a lost slice, not a full disk.

    A process that ended by itself on a host that is well is the program's failure: out of memory, or a crash
    in native code. The slice is whole, so it is used again.
    """
    match error:
        case RunStopped():
            return error, _ending(EndingKind.STOPPED, seen)
        case LeaseEnded():
            return error, _ending(EndingKind.LEASE_ENDED, seen)
        case WrongRequest():
            return error, _ending(EndingKind.REFUSED, seen)
        case _ if seen.lost:
            return SliceLost(seen.lost), _ending(EndingKind.SLICE_LOST, seen)
        case SaveFailed():
            return error, _ending(EndingKind.SAVE_FAILED, seen)
        case _ if not seen.started and _is_failed_start(error, seen):
            return error, _ending(EndingKind.START_FAILED, seen)
        case _ if seen.deaths:
            return _crash(seen)
        case ProgramFailed():
            return error, _ending(
                EndingKind.PROGRAM_FAILED,
                seen,
                after=seen.last_step if error.step is None else error.step,
                error=error.error,
            )
        case HostLost():
            return error, _ending(EndingKind.COLLECTIVE_FAILED, seen)
        case Refused():
            return error, _ending(EndingKind.REFUSED, seen)
    return error, _ending(EndingKind.FAILED, seen)


def _is_failed_start(error: RaytpuError, seen: Circumstances) -> bool:
    if isinstance(error, DeadlineExceeded):  # others wait for data or Ray, and name no host
        return bool(error.late) or bool(seen.failed_starts)
    return isinstance(error, HostLost | HostMismatch)


def _crash(seen: Circumstances) -> tuple[RaytpuError, Ending]:
    names = sorted(seen.deaths)
    how = in_words(seen.deaths[names[0]])
    guess = "" if "(" in how else " (out of memory, or a crash in native code?)"
    what = f"the process of {', '.join(names)} ended by itself"
    error = ProgramFailed(
        f"{', '.join(names)}: {how}, and the host is well{guess}\n"
        f"  what it said last: `raytpu logs {seen.run} --host {names[0]}`",
        step=seen.last_step,
        error=what,
    )
    return error, _ending(EndingKind.PROGRAM_FAILED, seen, after=seen.last_step, error=what)


def _ending(kind: EndingKind, seen: Circumstances, *, after: int | None = None, error: str = "") -> Ending:
    return Ending(
        kind=kind,
        steps_done=seen.steps_done,
        failed_after=after,
        error=error,
        lost=tuple(seen.lost) if kind is EndingKind.SLICE_LOST else (),
        failed_hosts=tuple(seen.failed_starts) if kind is EndingKind.START_FAILED else (),
    )
