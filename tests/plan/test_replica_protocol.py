"""The coordinator of replicas: what is committed when, who computes what, who is admitted and who is not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from raytpu.plan.replica_messages import (
    Committed,
    Evicted,
    Over,
    To,
    ViewChanged,
    Voted,
)
from raytpu.plan.replica_protocol import advance, begin
from raytpu.plan.replica_view import View, deal
from tests.plan.replica_machine import (
    after,
    attached,
    lost,
    machine,
    pulled,
    ready,
    running,
    to_all,
    view_of,
    votes,
    with_joiner,
)

# -- the start -------------------------------------------------------------------------------------------


def test_nothing_runs_until_every_founder_is_ready():
    """A step that some founders make alone leaves the others behind."""
    *most, last = ready("a", "b")
    state, told = after(machine("a", "b"), *most)
    assert (state.view, told) == (None, [])

    state, told = after(state, last)

    first = View(epoch=1, step=7, members=("a", "b"), parts=("a", "b"), donors={}, running=True)
    assert state.view == first
    positions = [(to.member, to.position) for to in told]
    assert positions == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert {to.message.view.epoch for to in told if isinstance(to.message, ViewChanged)} == {1}


def test_a_founder_that_is_lost_before_the_start_is_not_waited_for():
    state, _ = after(machine("a", "b"), *ready("a"), lost("b"))

    assert view_of(state).parts == ("a", "a")


def test_fewer_founders_than_needed_wait_for_one_that_joins():
    state, _ = after(machine("a", "b", least=2), *ready("a"), lost("b"))
    assert not view_of(state).running
    assert view_of(state).parts == ()

    state, _ = after(state, *ready("c"))
    assert view_of(state).donors == {"c": "a"}
    state, _ = after(state, *pulled(state, "c"))

    assert view_of(state).running
    assert view_of(state).parts == ("a", "c")


def test_without_any_founder_there_is_no_state_to_start_from():
    state, told = after(machine("a"), *ready("new"), lost("a"))

    assert state.over is not None
    assert "a: gone" in state.over
    assert told[-1] == To(member="new", position=None, message=Over(reason=state.over))


@pytest.mark.parametrize("wrong", [{"hosts": 0}, {"parts": 0}, {"least": 0}, {"founders": ()}])
def test_impossible_numbers_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match=r"1 or more|at least one"):
        begin(**{"founders": ("a",), "hosts": 1, "parts": 1, "least": 1, "step": 1, **wrong})


# -- commits ---------------------------------------------------------------------------------------------


def test_a_step_is_committed_when_every_host_of_every_member_has_voted():
    state = running("a", "b")
    *most, last = votes(state, "a", "b")
    state, told = after(state, *most, most[0])
    assert told == []

    state, told = after(state, last)

    assert (view_of(state).epoch, view_of(state).step) == (1, 8)
    assert told == to_all(Committed(step=7, view=view_of(state)), "a", "b")


@pytest.mark.parametrize(("epoch", "step"), [(0, 7), (2, 7), (1, 6), (1, 8)])
def test_votes_of_another_epoch_or_step_do_not_count(epoch: int, step: int):
    """Counted, they would commit an average that somebody does not have."""
    state = running("a", "b")
    *most, last = votes(state, "a", "b")
    stale = Voted(member=last.member, position=last.position, epoch=epoch, step=step)

    state, told = after(state, *most, stale)

    assert (view_of(state).step, told) == (7, [])


# -- losses ----------------------------------------------------------------------------------------------


def test_a_loss_voids_the_votes_and_the_step_is_made_again():
    state = running("a", "b", "c", parts=3)
    before = votes(state, "a", "b")
    state, told = after(state, *before, lost("c"))
    assert told == [
        *to_all(Evicted(member="c", reason="gone"), "c"),
        *to_all(ViewChanged(view=view_of(state)), "a", "b"),
    ]
    assert (view_of(state).epoch, view_of(state).step) == (2, 7)

    state, told = after(state, *before)
    assert told == [], "old votes"

    state, _ = after(state, *votes(state, "a", "b"))
    assert view_of(state).step == 8


def test_a_loss_moves_the_parts_of_the_lost_only():
    state = running("a", "b", "c", parts=6)
    assert view_of(state).parts == ("a", "b", "c", "a", "b", "c")

    state, _ = after(state, lost("b"))

    assert view_of(state).parts == ("a", "a", "c", "a", "c", "c")


def test_parts_are_even_and_few_move_however_many_members_there_are():
    dealt: tuple[str, ...] = ()
    everybody = [f"m{index}" for index in range(9)]
    for before, now in pairwise([0, 1, 2, 3, 5, 9, 4, 8, 2, 1]):
        dealt, old = deal(8, everybody[:now], dealt), dealt
        loads = [dealt.count(member) for member in everybody[:now]]
        assert max(loads) - min(loads) <= 1
        if old and now > before:
            gained = sum(loads[before:])
            assert sum(one != other for one, other in zip(old, dealt, strict=True)) == gained


def test_a_lost_member_is_told_so_whatever_it_says_later():
    """A frozen slice that thaws must learn that the others went on without it."""
    state, _ = after(running("a", "b"), lost("b"))

    for word in [*votes(state, "b"), *ready("b"), *attached(state.view, "b", applied=6)]:
        state, told = after(state, word)
        evicted = Evicted(member="b", reason="gone")
        assert told == [To(member="b", position=word.position, message=evicted)]
    assert view_of(state).members == ("a",)


def test_a_stranger_is_evicted():
    state = running("a")

    _, told = after(state, Voted(member="x", position=1, epoch=1, step=7))

    assert told == [To(member="x", position=1, message=Evicted(member="x", reason="not a member"))]


def test_a_loss_told_twice_is_one():
    state, _ = after(running("a", "b"), lost("b"))

    assert advance(state, lost("b")) == (state, ())


def test_without_any_member_it_is_over():
    state, _ = after(running("a", "b"), lost("a"))
    state, told = after(state, lost("b"), *ready("new"))

    assert state.over is not None
    assert told[-1] == To(member="new", position=1, message=Over(reason=state.over))


def test_fewer_members_than_needed_wait_and_go_on_with_another():
    state, _ = after(running("a", "b", least=2), lost("b"))
    paused = view_of(state)
    assert (paused.running, paused.parts, paused.step) == (False, (), 7)

    state, told = after(state, *ready("new"))
    assert told == to_all(ViewChanged(view=view_of(state)), "a", "new")
    assert (view_of(state).donors, view_of(state).running) == ({"new": "a"}, False)

    first, second = pulled(state, "new")
    state, told = after(state, first)
    assert told == []
    state, told = after(state, second)
    assert told == to_all(ViewChanged(view=view_of(state)), "a", "new")
    assert (view_of(state).parts, view_of(state).step) == (("a", "new"), 7)


def test_votes_count_for_nothing_while_members_are_too_few():
    state, _ = after(running("a", "b", least=2), lost("b"))

    state, told = after(state, *votes(state, "a"))

    assert (view_of(state).step, told) == (7, [])


# -- joiners ---------------------------------------------------------------------------------------------


def test_a_joiner_is_admitted_at_a_commit_and_full_at_the_next():
    state = running("a", "b")
    state, told = after(state, *ready("new"))
    assert (view_of(state).members, told) == (("a", "b"), []), "the step in flight is not disturbed"

    state, told = after(state, *votes(state, "a", "b"))
    joins = View(
        epoch=2, step=8, members=("a", "b", "new"), parts=("a", "b"), donors={"new": "a"}, running=True
    )
    assert state.view == joins
    assert told == [
        *to_all(Committed(step=7, view=joins), "a", "b"),
        *to_all(ViewChanged(view=joins), "new"),
    ]

    state, told = after(state, *votes(state, "a", "b"))
    assert told == [], "its donor must not go past the state that it pulls"
    state, _ = after(state, *pulled(state, "new"), *votes(state, "new"))
    assert view_of(state).donors == {}
    assert (view_of(state).epoch, view_of(state).step) == (3, 9)


def test_a_joiner_gets_parts_when_it_is_full():
    state = with_joiner("a", "b", parts=6)
    assert view_of(state).parts == ("a", "b", "a", "b", "a", "b")

    state, _ = after(state, *votes(state, "a", "b", "new"))

    assert view_of(state).parts == ("a", "b", "a", "b", "new", "new")


def test_a_member_that_is_not_ready_with_all_hosts_is_not_admitted():
    state, _ = after(running("a"), ready("new")[0])

    state, _ = after(state, *votes(state, "a"))

    assert view_of(state).members == ("a",)


def test_joiners_are_spread_over_donors():
    state, _ = after(running("a", "b"), *ready("new", "newer"))

    state, _ = after(state, *votes(state, "a", "b"))

    assert view_of(state).donors == {"new": "a", "newer": "b"}


def test_a_joiner_whose_donor_is_lost_gets_another():
    state, _ = after(with_joiner("a", "b"), lost("a"))

    assert view_of(state).donors == {"new": "b"}
    assert view_of(state).parts == ("b", "b")


def test_a_joiner_whose_donor_lives_keeps_it():
    state, _ = after(with_joiner("a", "b"), lost("b"))

    assert view_of(state).donors == {"new": "a"}


def test_a_joiner_that_has_pulled_survives_all_donors():
    """It has the only copy left of the state."""
    state = with_joiner("a")
    state, _ = after(state, *pulled(state, "new"), lost("a"))

    alone = View(epoch=3, step=8, members=("new",), parts=("new", "new"), donors={}, running=True)
    assert state.view == alone


def test_a_joiner_that_has_pulled_on_one_host_only_does_not():
    state = with_joiner("a")
    state, told = after(state, pulled(state, "new")[0], lost("a"))

    assert state.over is not None
    assert told[-1] == To(member="new", position=None, message=Over(reason=state.over))


def test_a_joiner_that_is_lost_delays_nobody():
    state, _ = after(with_joiner("a", "b"), lost("new"))

    state, _ = after(state, *votes(state, "a", "b"))

    assert (view_of(state).members, view_of(state).step) == (("a", "b"), 9)
