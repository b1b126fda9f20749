"""One cause out of the many errors of a broken gang."""

from __future__ import annotations

import pytest

from raytpu.errors import (
    CheckpointMismatch,
    DeadlineExceeded,
    HostLost,
    HostMismatch,
    LeaseEnded,
    ProgramFailed,
    RaytpuError,
    RunFailed,
    RunStopped,
    SaveFailed,
    SliceLost,
)
from raytpu.plan import EndingKind
from raytpu.train.endings import Circumstances, cause_of, ending_of

HOSTS = ["slice-0/0", "slice-0/1", "slice-1/0", "slice-1/1"]
GLOO = ProgramFailed("slice-0/0: XlaRuntimeError: Gloo all-reduce failed: Connection closed by peer")
BUG = ProgramFailed("slice-1/0: ValueError: no")
DIED = "The actor died unexpectedly before finishing this task."
KILLED = "The actor is dead because it was killed by `ray.kill`."


@pytest.mark.parametrize(
    ("failures", "deaths", "kind", "words"),
    [
        ({2: BUG}, {}, ProgramFailed, "ValueError: no"),
        ({0: GLOO, 2: BUG}, {}, ProgramFailed, "ValueError: no"),
        ({0: GLOO}, {"slice-1/1": DIED}, HostLost, "lost slice-1/1"),
        ({0: GLOO}, {"slice-0/0": KILLED, "slice-1/1": DIED}, HostLost, "lost slice-1/1"),
        ({0: GLOO, 1: GLOO}, {"slice-0/0": KILLED}, HostLost, "a collective failed on slice-0/0, slice-0/1"),
        ({3: CheckpointMismatch("another model")}, {"slice-0/0": DIED}, CheckpointMismatch, "another model"),
        ({1: MemoryError("no room")}, {}, ProgramFailed, "slice-0/1: MemoryError: no room"),
        ({}, {}, ProgramFailed, "without a result"),
    ],
)
def test_the_cause_is_told_from_its_echoes(
    failures: dict[int, BaseException], deaths: dict[str, str], kind: type[RaytpuError], words: str
) -> None:
    """A person who reads "gloo failed on slice-0" looks at the wrong slice."""
    cause = cause_of(HOSTS, failures, deaths)
    assert type(cause) is kind
    assert words in str(cause)


LOST = {"slice-1": "slice-1/1: its raylet refuses connections"}
LATE = DeadlineExceeded("the hosts to start", 60.0, late=["slice-0/1"])
NO_CULPRIT = HostLost("a collective failed on slice-0/0")


@pytest.mark.parametrize(
    ("error", "seen", "kind"),
    [
        (SliceLost(LOST), Circumstances(started=True, lost=LOST), EndingKind.SLICE_LOST),
        (NO_CULPRIT, Circumstances(started=True, lost=LOST), EndingKind.SLICE_LOST),
        (LATE, Circumstances(started=False, lost=LOST), EndingKind.SLICE_LOST),
        (SaveFailed("no"), Circumstances(started=True, lost=LOST), EndingKind.SLICE_LOST),
        (SaveFailed("disk full"), Circumstances(started=True), EndingKind.SAVE_FAILED),
        (RunStopped("enough"), Circumstances(started=True, lost=LOST), EndingKind.STOPPED),
        (LeaseEnded("llm", "preempted"), Circumstances(started=True, lost=LOST), EndingKind.LEASE_ENDED),
        (CheckpointMismatch("other"), Circumstances(started=True, lost=LOST), EndingKind.REFUSED),
        (NO_CULPRIT, Circumstances(started=True), EndingKind.COLLECTIVE_FAILED),
        (
            HostLost("lost"),
            Circumstances(started=True, deaths={"slice-0/1": DIED}),
            EndingKind.PROGRAM_FAILED,
        ),
        (BUG, Circumstances(started=True), EndingKind.PROGRAM_FAILED),
        (LATE, Circumstances(started=False), EndingKind.START_FAILED),
        (HostMismatch("3 chips"), Circumstances(started=False), EndingKind.START_FAILED),
        (HostLost("lost"), Circumstances(started=False, deaths={"slice-0/1": DIED}), EndingKind.START_FAILED),
        (DeadlineExceeded("the data", 300.0), Circumstances(started=False), EndingKind.REFUSED),
        (RunFailed("lost the head of the cluster"), Circumstances(started=True), EndingKind.FAILED),
    ],
)
def test_an_ending_is_called_by_its_cause(error: RaytpuError, seen: Circumstances, kind: EndingKind) -> None:
    """The name decides what follows: a lost slice taken for a bug would use up the retries kept for bugs."""
    _, ending = ending_of(error, seen)

    assert ending.kind is kind
    assert ending.lost == (("slice-1",) if kind is EndingKind.SLICE_LOST else ())


def test_a_process_that_ended_on_a_host_that_is_well_is_the_programs_failure() -> None:
    """Taken for a broken host, a slice would be dropped for every process that runs out of memory."""
    seen = Circumstances(run="mine", started=True, last_step=7, steps_done=3, deaths={"slice-0/1": DIED})

    error, ending = ending_of(HostLost("lost slice-0/1"), seen)

    assert isinstance(error, ProgramFailed)
    assert str(error).splitlines() == [
        "slice-0/1: its process ended unexpectedly, and the host is well "
        "(out of memory, or a crash in native code?)",
        "  what it said last: `raytpu logs mine --host slice-0/1`",
    ]
    assert (ending.failed_after, ending.steps_done) == (7, 3)


def test_an_error_of_the_program_is_known_again_by_kind_place_and_step() -> None:
    """Its message may name an address or a time, and then no two of the same bug are equal."""
    first, second = (
        ending_of(
            ProgramFailed(f"slice-0/0: KeyError: {address}", step=7, error="KeyError at loop.py:12"),
            Circumstances(started=True, last_step=6),
        )[1]
        for address in ("0x1", "0x2")
    )

    assert first == second
    assert (first.failed_after, first.error) == (7, "KeyError at loop.py:12")
