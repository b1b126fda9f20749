"""What follows an ending: a table of histories."""

from __future__ import annotations

from typing import Any

import pytest

from raytpu.plan import Ending, EndingKind, decide
from raytpu.plan.restart import Finish, GiveUp, Restart, slices_to_give_up
from raytpu.spec import Recovery


def lost(*names: str, steps: int = 5) -> Ending:
    return Ending(kind=EndingKind.SLICE_LOST, lost=names or ("slice-0",), steps_done=steps)


def bug(after: int, error: str = "ValueError at loop.py:7", steps: int = 5) -> Ending:
    return Ending(kind=EndingKind.PROGRAM_FAILED, failed_after=after, error=error, steps_done=steps)


def start(*hosts: str) -> Ending:
    return Ending(kind=EndingKind.START_FAILED, failed_hosts=hosts)


def collective(steps: int = 0) -> Ending:
    return Ending(kind=EndingKind.COLLECTIVE_FAILED, steps_done=steps)


def limits(**changes: Any) -> Recovery:
    return Recovery(**changes)


@pytest.mark.parametrize(
    ("endings", "recovery", "wait_s"),
    [
        ([lost()], limits(), 0.0),
        ([lost()] * 100, limits(), 0.0),
        ([lost(steps=0)] * 3, limits(), 0.0),
        ([lost(), bug(7), lost()], limits(max_lost_slices=2, max_program_failures=1), 0.0),
        ([bug(7)], limits(), 1.0),
        ([bug(7), bug(9)], limits(), 2.0),
        ([bug(7), bug(7, "OSError at loop.py:9")], limits(), 2.0),
        ([lost(), bug(7), lost(), bug(8), lost(), bug(9)], limits(), 4.0),
        ([lost(), bug(5, steps=0)], limits(), 1.0),
        ([start("slice-0/1")], limits(), 1.0),
        ([start()] * 5, limits(), 16.0),
        ([start()] * 8, limits(max_start_failures=9), 60.0),
        ([collective()], limits(), 1.0),
        ([collective(), collective(steps=3)], limits(), 1.0),
        ([collective(), lost(), collective()], limits(), 1.0),
    ],
)
def test_what_may_go_better_next_time_is_tried_again(
    endings: list[Ending], recovery: Recovery, wait_s: float
) -> None:
    """Losing a machine is ordinary; a run that ends at each loss is started by hand each time."""
    assert decide(endings, recovery) == Restart(wait_s=wait_s)


@pytest.mark.parametrize(
    ("endings", "recovery", "words"),
    [
        ([lost()] * 101, limits(), "lost slices: 101, and recovery allows 100"),
        ([lost("slice-0", "slice-1")], limits(max_lost_slices=1), "lost slices: 2"),
        ([bug(7)], limits(max_program_failures=0), "errors of the program: 1, and recovery allows 0"),
        ([bug(7), lost(), bug(7)], limits(), "the same error after step 7 twice"),
        ([bug(7), bug(8), bug(9), bug(10)], limits(), "errors of the program: 4, and recovery allows 3"),
        ([start()] * 6, limits(), "failed starts: 6, and recovery allows 5"),
        ([collective(steps=9), collective()], limits(), "2 attempts in a row without a step"),
        ([lost(), collective(), collective()], limits(), "2 attempts in a row without a step"),
    ],
)
def test_what_will_not_go_better_ends_the_run_and_says_why(
    endings: list[Ending], recovery: Recovery, words: str
) -> None:
    """A bug that is retried for ever holds slices and computes nothing."""
    decision = decide(endings, recovery)

    assert isinstance(decision, GiveUp)
    assert words in decision.reason


@pytest.mark.parametrize(
    "kind",
    [
        EndingKind.SAVE_FAILED,
        EndingKind.LEASE_ENDED,
        EndingKind.STOPPED,
        EndingKind.REFUSED,
        EndingKind.FAILED,
    ],
)
def test_what_a_person_has_to_look_at_is_never_tried_again(kind: EndingKind) -> None:
    """A stopped run that comes back is not stopped, and a wrong path is wrong the next time too."""
    assert decide([lost(), Ending(kind=kind, steps_done=50)], limits()) == GiveUp()


def test_an_error_before_any_step_was_done_is_told_at_once() -> None:
    """A typo in a new loop would cost a second start and be printed twice."""
    assert decide([bug(0, steps=0)], limits()) == GiveUp()


def test_every_kind_of_ending_is_decided_on() -> None:
    """A kind that is forgotten would be retried, or not, by accident."""
    again = {
        EndingKind.SLICE_LOST,
        EndingKind.COLLECTIVE_FAILED,
        EndingKind.PROGRAM_FAILED,
        EndingKind.START_FAILED,
    }
    for kind in EndingKind:
        decision = decide(
            [Ending(kind=kind, steps_done=1, error="x", failed_after=1, lost=("slice-0",))], limits()
        )
        assert isinstance(decision, Restart) is (kind in again)
        assert isinstance(decision, Finish) is (kind is EndingKind.COMPLETED)


@pytest.mark.parametrize(
    ("endings", "given_up"),
    [
        ([start("slice-0/1")] * 2, set()),
        ([start("slice-0/1")] * 3, {"slice-0"}),
        ([start("slice-0/1"), lost(), start("slice-0/1")], set()),
        ([start("slice-0/1"), start("slice-0/0"), start("slice-0/1")], set()),
        ([lost(), *[start("slice-0/1", "slice-1/0")] * 3], {"slice-0", "slice-1"}),
        ([start()] * 3, set()),
    ],
)
def test_a_slice_is_given_up_when_a_host_of_it_keeps_failing(
    endings: list[Ending], given_up: set[str]
) -> None:
    """All retries would be spent on the one broken host."""
    assert slices_to_give_up(endings, 3) == given_up
