"""A run that makes no step is found, and so is who keeps the others waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raytpu.plan import HostSeen, Patience, StuckKind, Whereabouts, find_stuck
from raytpu.spec import Deadlines

PATIENCE = Patience(
    step_least_s=60, step_most_s=1000, first_step_s=1800, pause_s=600, silence_s=6, pausing_silence_s=15
)


def host(name: str, silent_s: float = 0.0, **where: Any) -> HostSeen:
    """One that has made 5 steps of a second, and waits for its peers in the sixth."""
    usual = {"step": 5, "steps_here": 5, "waits": True, "usual_s": 1.0}
    return HostSeen(name=name, where=Whereabouts(**usual | where), silent_s=silent_s)


WAITS = {}
LOOPS = {"waits": False}
SAVES = {"waits": False, "pause": "saving", "pause_s": 300.0}
ENDED = {"ended": True}

CASES = {
    "one has not entered the step": ([WAITS, LOOPS], 61, (StuckKind.PROGRAM, ("b",))),
    "not yet": ([WAITS, LOOPS], 60, None),
    "one is a step behind, though it waits": (
        [WAITS, {"step": 4}],
        61,
        (StuckKind.PROGRAM, ("b",)),
    ),
    "all are in it": ([WAITS, WAITS], 61, (StuckKind.COLLECTIVE, ("a", "b"))),
    "nobody waits for anybody: perhaps an evaluation": ([LOOPS, LOOPS], 599, None),
    "not for ever": ([LOOPS, LOOPS], 601, (StuckKind.PROGRAM, ("a", "b"))),
    "one saves, the other waits": ([SAVES, WAITS], 400, None),
    "one saves for too long": ([SAVES | {"pause_s": 601.0}, WAITS], 601, (StuckKind.PROGRAM, ("a",))),
    "one waits in an evaluation that the other does not enter": (
        [SAVES | {"pause_s": 601.0, "waits": True}, LOOPS],
        601,
        (StuckKind.PROGRAM, ("b",)),
    ),
    "all wait in a pause": (
        [SAVES | {"pause_s": 601.0, "waits": True}] * 2,
        601,
        (StuckKind.COLLECTIVE, ("a", "b")),
    ),
    "before the first step": ([LOOPS | {"steps_here": 0}] * 2, 1700, None),
    "no first step": ([LOOPS | {"steps_here": 0}] * 2, 1801, (StuckKind.PROGRAM, ("a", "b"))),
    "a pause before the first step": ([SAVES | {"steps_here": 0, "pause_s": 1700.0}] * 2, 1700, None),
    "still starting": ([LOOPS | {"began": False}, WAITS], 9999, None),
    "all have ended": ([ENDED, ENDED], 9999, None),
    "one has ended, the other cleans up": ([ENDED, LOOPS], 500, None),
    "one has ended, the other never does": ([ENDED, LOOPS], 601, (StuckKind.PROGRAM, ("b",))),
    "slow steps are borne": ([WAITS | {"usual_s": 30.0}, LOOPS | {"usual_s": 30.0}], 299, None),
    "ten times as long is not": (
        [WAITS | {"usual_s": 30.0}, LOOPS | {"usual_s": 30.0}],
        301,
        (StuckKind.PROGRAM, ("b",)),
    ),
    "a limit below what is usual": ([WAITS | {"usual_s": 2000.0}, LOOPS | {"usual_s": 2000.0}], 3999, None),
    "the longest that a step may take": (
        [WAITS | {"usual_s": 500.0}, LOOPS | {"usual_s": 500.0}],
        1001,
        (StuckKind.PROGRAM, ("b",)),
    ),
}


@pytest.mark.parametrize(("hosts", "since_s", "expected"), CASES.values(), ids=CASES)
def test_who_keeps_the_others_waiting_is_named(
    hosts: list[dict[str, Any]], since_s: float, expected: tuple[StuckKind, tuple[str, ...]] | None
) -> None:
    """A wrong name costs a slice that is well, a late one hours of all."""
    found = find_stuck(
        [host(name, **where) for name, where in zip("ab", hosts, strict=True)], since_s, PATIENCE
    )

    assert (None if found is None else (found.kind, found.late)) == expected


SILENT_CASES = {
    "a stopped process": ((0, 6), 6, {}, (StuckKind.SILENT, ("b",))),
    "a busy one makes its steps": ((0, 8), 1, {}, None),
    "all silent: the network, or this driver": ((8, 8), 8, {}, None),
    "all silent for too long": ((61, 61), 61, {}, (StuckKind.SILENT, ("a", "b"))),
    "compiling with Python's lock held": ((0, 14), 14, {"pause": "compiling"}, None),
    "stopped while it compiles": ((0, 15), 15, {"pause": "compiling"}, (StuckKind.SILENT, ("b",))),
    "importing before the first step": ((0, 30), 30, {"steps_here": 0}, None),
    "stopped before the first step": ((0, 1801), 1801, {"steps_here": 0}, (StuckKind.SILENT, ("b",))),
    "gone after its end": ((0, 30), 30, {"ended": True}, None),
    "tracing after another one that is done": ((0, 14), 14, LOOPS, None),
    "stopped while nobody waits for it": ((0, 15), 15, LOOPS, (StuckKind.SILENT, ("b",))),
}


@pytest.mark.parametrize(
    ("silent_s", "since_s", "where", "expected"), SILENT_CASES.values(), ids=SILENT_CASES
)
def test_a_process_that_does_not_answer_is_late_within_seconds(
    silent_s: tuple[float, float], since_s: float, where: dict[str, Any], expected: Any
) -> None:
    """Its peers wait in a collective that never ends, and look as busy as ever."""
    hosts = [host("a", silent_s[0], **where), host("b", silent_s[1], **where | LOOPS)]

    found = find_stuck(hosts, since_s, PATIENCE)

    assert (None if found is None else (found.kind, found.late)) == expected


WORDS = {
    "no step was reported 1900 s after the train function was called, limit 1800 s (deadlines.first_step_s): "
    "a, b have not entered it": [LOOPS | {"steps_here": 0}] * 2,
    "step 6 is not finished after 61 s, limit 60 s: b has not entered it; the others wait": [WAITS, LOOPS],
    "step 6 is not finished after 61 s, limit 60 s: all hosts are in it, and none of them is late": [
        WAITS,
        WAITS,
    ],
}


@pytest.mark.parametrize(("words", "hosts"), WORDS.items())
def test_a_person_reads_who_is_late_and_where(words: str, hosts: list[dict[str, Any]]) -> None:
    found = find_stuck(
        [host(name, **where) for name, where in zip("ab", hosts, strict=True)],
        1900 if "1900" in words else 61,
        PATIENCE,
    )

    assert str(found) == words


def test_a_workload_sets_the_limits() -> None:
    patience = Patience.of(Deadlines(stuck_s=5, stuck_most_s=3, pause_s=7, silence_s=4, first_step_s=9))

    assert patience.step_s(usual_s=1.0) == 5, "the least is never more than the most"
    assert (patience.pause_s, patience.silence_s) == (7, 4)
    assert patience.first_step_s == 9 + Deadlines().data_s


@pytest.mark.parametrize("known", [{"steps_here": 0, "step": 0}, {"began": False}])
def test_a_host_that_falls_silent_before_it_has_told_of_a_step_is_found(known: dict[str, Any]) -> None:
    """Who has finished a step had it in there; else JAX notices half a minute later, and kills the others."""
    found = find_stuck([host("a"), host("b", 7, **LOOPS | known)], 7, PATIENCE)

    assert found is not None
    assert (found.kind, found.late) == (StuckKind.SILENT, ("b",))


def test_silence_counts_from_the_first_step_on() -> None:
    """Imports and compilers hold Python's lock for seconds."""
    assert find_stuck([host("a", steps_here=0), host("b", 7, steps_here=0)], 7, PATIENCE) is None


def test_programs_that_run_to_their_ends_are_work_and_not_a_step_that_hangs() -> None:
    """An evaluation that is not announced takes longer than a step; it is no bug."""
    hosts = [replace(host("a"), called_s=59.0), host("b", **LOOPS)]

    assert find_stuck(hosts, 400, PATIENCE) is None
    found = find_stuck(hosts, 601, PATIENCE)
    assert found is not None, "not for ever"
    hosts = [replace(each, called_s=61.0) for each in hosts]
    found = find_stuck(hosts, 61, PATIENCE)
    assert found is not None
    assert found.late == ("b",)


def test_waits_with_a_deadline_of_their_own_end_by_that() -> None:
    """Their errors say what is late; the watchdog would only guess."""
    patience = Patience.of(Deadlines(data_s=7200, checkpoint_s=3600, stuck_s=4000))

    assert patience.first_step_s >= 7200 + Deadlines().first_step_s
    assert patience.limit_s(["waiting for data", ""]) == 7200
    assert patience.limit_s(["saving"]) == patience.limit_s(["finishing"]) == 7200
    assert patience.limit_s(["evaluating"]) == Deadlines().pause_s
    assert patience.step_s(1.0) == 4000
