"""Where a train loop is, as seen from another thread."""

from __future__ import annotations

import threading

import pytest

from raytpu.train.loop_position import LoopPosition


def test_a_loop_that_has_not_begun_says_so() -> None:
    """Its host would count as stuck before its turn."""
    assert not LoopPosition().whereabouts(0, 0).began


def test_who_asks_is_told_what_the_loop_is_at_and_on_which_line() -> None:
    """A name without a place sends a person through the logs of every host."""
    position, entered, leave = LoopPosition(), threading.Event(), threading.Event()

    def hangs() -> None:
        entered.set()
        leave.wait(10)

    def loop() -> None:
        with position.running(reports=True), position.pausing("evaluating"), position.pausing("compiling"):
            hangs()

    thread = threading.Thread(target=loop)
    thread.start()
    assert entered.wait(10)
    where, place = position.whereabouts(5, 2), position.place()
    leave.set()
    thread.join()

    assert (where.step, where.steps_here, where.began, where.ended) == (5, 2, True, False)
    assert where.pause == "evaluating", "the outer one, which the limit counts from"
    assert place is not None
    assert place.line.startswith("test_loop_position.py:"), "not threading.py"
    assert place.function == "test_loop_position.py:hangs"
    assert position.place() is None, "it has ended"
    assert position.whereabouts(5, 2).ended


def test_a_loop_that_cannot_report_its_steps_is_never_said_to_have_begun() -> None:
    """One written for Ray's trainer would be ended for its missing first step."""
    position = LoopPosition()
    with position.running(reports=False):
        assert not position.whereabouts(0, 0).began


def test_calls_that_have_come_to_an_end_are_counted() -> None:
    """They tell an evaluation that nobody announced from a step that hangs."""
    position = LoopPosition()
    with position.waiting():
        assert position.whereabouts(0, 0).calls == 0

    assert position.whereabouts(0, 0).calls == 1


def test_waiting_is_counted_outside_of_pauses_only() -> None:
    """An evaluation would make its host look idle in its steps."""
    position = LoopPosition()
    with position.waiting():
        assert position.whereabouts(0, 0).waits
    assert position.take_waited_s() > 0
    with position.pausing("evaluating"), position.waiting():
        pass

    assert position.take_waited_s() == 0
    assert not position.whereabouts(0, 0).waits


def test_the_usual_step_is_the_median_of_the_last() -> None:
    position = LoopPosition()
    for seconds in [*[9.0] * 60, *[1.0] * 50]:
        position.step_took(seconds)

    assert position.whereabouts(110, 110).usual_s == pytest.approx(1.0)
