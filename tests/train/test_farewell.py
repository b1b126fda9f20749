"""All hosts make their last save at the same step, or go on."""

from __future__ import annotations

import threading
import time

from raytpu.train.farewell import Farewell
from tests.waiting import await_true


def run_to(farewell: Farewell, last: int) -> list[int]:
    """The steps at which the run was told to end, of steps 1 to ``last``."""
    return [step for step in range(1, last + 1) if farewell.is_last(step)]


def test_without_a_proposal_no_step_is_the_last():
    farewell = Farewell()

    assert run_to(farewell, 5) == []
    assert farewell.current_step() == 5


def test_an_agreed_step_is_the_last_one():
    farewell = Farewell()
    run_to(farewell, 3)

    assert farewell.propose(5)
    farewell.decide(5, True, "preempted")

    assert run_to(farewell, 5) == [5]
    assert farewell.reason == "preempted"


def test_a_step_that_is_over_is_not_accepted():
    """A host that saved alone would wait in the save for peers that never come."""
    farewell = Farewell()
    run_to(farewell, 5)

    assert not farewell.propose(5)


def test_an_agreed_step_is_never_moved():
    """Another host may have ended by it, and one that goes on would wait for it in a collective."""
    farewell = Farewell()
    assert farewell.propose(5)
    farewell.decide(5, agreed=True, reason="they go away")

    assert not farewell.propose(6)
    farewell.decide(6, agreed=False, reason="")
    assert farewell.is_last(5)


def test_a_host_waits_at_the_proposed_step_until_all_have_answered():
    """One that went past it while another accepts would leave the other alone in the save."""
    farewell = Farewell()
    assert farewell.propose(2)
    ended: list[int] = []
    thread = threading.Thread(target=lambda: ended.extend(run_to(farewell, 2)))
    thread.start()
    await_true("the host to reach the step", lambda: farewell.current_step() == 2)
    time.sleep(0.05)
    assert thread.is_alive()

    farewell.decide(2, True, "preempted")

    thread.join(5)
    assert ended == [2]


def test_a_step_that_another_host_refused_is_passed():
    farewell = Farewell()
    assert farewell.propose(2)
    farewell.decide(2, False, "preempted")

    assert run_to(farewell, 4) == []


def test_steps_of_an_earlier_attempt_are_not_counted_as_done_by_this_one():
    """An attempt that did nothing would look like one that made progress, and be tried for ever."""
    farewell = Farewell()
    farewell.resume_at(10)
    assert farewell.steps() == (10, 0)

    farewell.is_last(11)

    assert farewell.steps() == (11, 1)
