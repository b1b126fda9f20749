"""The coordinator of replicas: what is committed when, who computes what, who is admitted and who is not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from raytpu.plan.replica_messages import (
    Attached,
    Committed,
    Evicted,
    Lost,
    Over,
    Pulled,
    Ready,
    To,
    ViewChanged,
    Voted,
)
from raytpu.plan.replica_protocol import EPOCHS_OF_ONE_COORDINATOR, State, advance, begin, recovering
from raytpu.plan.replica_view import View, deal

HOSTS = 2


def machine(*founders: str, parts: int = 2, least: int = 1) -> State:
    """Nobody is ready yet; the first step is 7."""
    return begin(founders, hosts=HOSTS, parts=parts, least=least, step=7)


def restarted(*members: str, least: int = 1) -> State:
    return recovering(members, hosts=HOSTS, parts=2, least=least, restart=1)


def after(state: State, *events: Any) -> tuple[State, list[To]]:
    """The state after all of them, and everything told meanwhile."""
    told: list[To] = []
    for event in events:
        state, more = advance(state, event)
        told += more
    return state, told


def ready(*members: str) -> list[Ready]:
    return [Ready(member=member, position=position) for member in members for position in range(HOSTS)]


def votes(state: State, *members: str) -> list[Voted]:
    """Of every host of ``members`` in the view as it is."""
    view = view_of(state)
    return [
        Voted(member=member, position=position, epoch=view.epoch, step=view.step)
        for member in members
        for position in range(HOSTS)
    ]


def pulled(state: State, *members: str) -> list[Pulled]:
    view = view_of(state)
    return [
        Pulled(member=member, position=position, epoch=view.epoch, step=view.step)
        for member in members
        for position in range(HOSTS)
    ]


def attached(
    view: View | None, *members: str, applied: int | None, voted: tuple[int, int] | None = None
) -> list[Attached]:
    return [
        Attached(member=member, position=position, view=view, applied=applied, voted=voted)
        for member in members
        for position in range(HOSTS)
    ]


def lost(member: str) -> Lost:
    return Lost(member=member, reason="gone")


def view_of(state: State) -> View:
    assert state.view is not None
    return state.view


def running(*members: str, **options: Any) -> State:
    state, _ = after(machine(*members, **options), *ready(*members))
    return state


def with_joiner(*members: str, **options: Any) -> State:
    """Step 7 is committed, and ``new`` joins at step 8."""
    state = running(*members, **options)
    state, _ = after(state, *ready("new"))
    state, _ = after(state, *votes(state, *members))
    return state


def to_all(message: Any, *members: str) -> list[To]:
    return [To(member=member, position=None, message=message) for member in members]


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


# -- another coordinator ---------------------------------------------------------------------------------


def test_a_new_coordinator_waits_for_every_member_and_then_goes_on():
    """One that goes on without a member that is slow to attach evicts a healthy slice."""
    view = view_of(running("a", "b"))
    *most, last = [*attached(view, "a", applied=6), *attached(view, "b", applied=6, voted=(1, 7))]
    state, told = after(restarted(), *most)
    assert (state.view, told) == (None, [])

    state, told = after(state, last)

    assert (view_of(state).epoch, view_of(state).step) == (EPOCHS_OF_ONE_COORDINATOR, 7)
    assert view_of(state).parts == view.parts
    assert [type(to.message) for to in told] == [ViewChanged] * 4


def test_hosts_that_only_voted_apply_what_others_have_applied():
    """They would be a step behind for ever."""
    state = running("a", "b")
    before = view_of(state)
    state, _ = after(state, *votes(state, "a", "b"))
    heard = attached(view_of(state), "a", applied=7)
    not_heard = attached(before, "b", applied=6, voted=(1, 7))

    state, told = after(restarted("a", "b"), *not_heard, *heard)

    assert view_of(state).step == 8
    committed = Committed(step=7, view=view_of(state))
    changed = ViewChanged(view=view_of(state))
    assert [to.message for to in told] == [changed, changed, committed, committed]


def test_a_commit_that_nobody_heard_of_is_made_again():
    view = view_of(running("a", "b"))

    state, told = after(restarted("a", "b"), *attached(view, "a", "b", applied=6, voted=(1, 7)))

    assert view_of(state).step == 7
    assert {type(to.message) for to in told} == {ViewChanged}


def test_a_commit_that_only_a_joiner_heard_of_holds():
    """The view of the joiner says that the step was decided, and it waits for the state after it."""
    before = running("a", "b")
    state = with_joiner("a", "b")

    state, told = after(
        restarted("a", "b"),
        *attached(view_of(before), "a", "b", applied=6, voted=(1, 7)),
        *attached(view_of(state), "new", applied=None),
    )
    assert view_of(state).step == 7, "the others do not wait for a joiner that nobody named"

    state, told = after(
        restarted("a", "b", "new"),
        *attached(view_of(with_joiner("a", "b")), "new", applied=None),
        *attached(view_of(before), "a", "b", applied=6, voted=(1, 7)),
    )
    assert view_of(state).step == 8
    assert view_of(state).donors == {"new": "a"}
    assert [type(to.message) for to in told] == [Committed] * 4 + [ViewChanged] * 2


def test_a_host_that_vanished_with_the_coordinator_takes_its_member_only():
    view = view_of(running("a", "b"))
    state, _ = after(restarted("a", "b"), *attached(view, "a", applied=6))
    state, _ = after(state, attached(view, "b", applied=7)[0], lost("b"))

    assert view_of(state).members == ("a",)
    assert view_of(state).parts == ("a", "a")


def test_a_joiner_that_had_pulled_is_full_for_the_next_coordinator():
    view = view_of(with_joiner("a", "b"))

    state, _ = after(
        restarted("a", "b"), *attached(view, "a", "b", applied=7), *attached(view, "new", applied=7)
    )

    assert view_of(state).donors == {}


def test_a_joiner_that_had_not_pulled_on_every_host_pulls_from_a_donor():
    view = view_of(with_joiner("a", "b"))
    half = [attached(view, "new", applied=7)[0], attached(view, "new", applied=None)[1]]

    state, _ = after(restarted("a", "b"), *attached(view, "a", "b", applied=7), *half)

    assert view_of(state).donors == {"new": "a"}


def test_whoever_was_ready_and_not_admitted_is_not_forgotten():
    view = view_of(running("a"))
    state, _ = after(restarted("a"), *attached(None, "new", applied=None), *attached(view, "a", applied=6))

    state, _ = after(state, *votes(state, "a"))

    assert view_of(state).donors == {"new": "a"}


def test_a_member_of_a_view_that_nobody_else_heard_of_joins_again():
    """It attached late; it is well, and the others went on without knowing of it."""
    only_new = view_of(with_joiner("a"))
    state, _ = after(restarted("a"), *attached(view_of(running("a")), "a", applied=6, voted=(1, 7)))

    state, told = after(state, *attached(only_new, "new", applied=None))
    assert told == []
    state, _ = after(state, *votes(state, "a"))

    assert view_of(state).donors == {"new": "a"}


def test_a_view_of_the_coordinator_before_is_older_than_any_of_the_next():
    """Or the last view of the first coordinator, which one late host has, would undo steps made since."""
    first = running("a", "b", "c")
    unheard, _ = after(first, lost("b"), lost("c"))

    second, _ = after(restarted("a"), *attached(first.view, "a", applied=6), lost("b"), lost("c"))

    assert view_of(second).epoch > view_of(unheard).epoch


def test_founders_that_were_told_of_no_view_start_anew():
    state, told = after(restarted("a", "b"), *attached(None, "a", "b", applied=6))

    assert (view_of(state).step, view_of(state).parts) == (7, ("a", "b"))
    assert len(told) == 4


def test_a_coordinator_that_died_before_the_first_view_is_begun_again():
    state, _ = after(machine("a", "b"), *attached(None, "a", applied=6), *ready("b"))

    assert (view_of(state).step, view_of(state).parts) == (7, ("a", "b"))


def test_nobody_is_evicted_while_the_members_are_not_known():
    state, told = after(restarted(), Voted(member="a", position=0, epoch=1, step=7), *ready("new"))

    assert (state.over, told) == (None, [])


def test_all_members_lost_with_the_coordinator_is_over():
    state, told = after(restarted("a"), *attached(None, "new", applied=None), lost("a"))

    assert state.over is not None
    assert told[-1] == To(member="new", position=None, message=Over(reason=state.over))


# -- a connection that broke -----------------------------------------------------------------------------


def test_a_vote_that_was_lost_with_a_connection_counts_when_the_host_attaches():
    state = running("a")
    state, _ = after(state, votes(state, "a")[0])

    state, told = after(state, attached(state.view, "a", applied=6, voted=(1, 7))[1])

    assert view_of(state).step == 8
    assert told[-1] == To(member="a", position=None, message=Committed(step=7, view=view_of(state)))


def test_a_commit_that_was_lost_with_a_connection_is_told_again():
    state = running("a")
    old = view_of(state)
    state, _ = after(state, *votes(state, "a"))

    state, told = after(state, attached(old, "a", applied=6, voted=(1, 7))[1])

    assert told == [To(member="a", position=1, message=Committed(step=7, view=view_of(state)))]


def test_a_pull_that_was_lost_with_a_connection_counts_when_the_host_attaches():
    state = with_joiner("a")
    state, _ = after(state, pulled(state, "new")[0])
    state, told = after(state, attached(state.view, "new", applied=7)[1])
    assert told == [To(member="new", position=1, message=ViewChanged(view=view_of(state)))]

    state, _ = after(state, lost("a"))

    assert view_of(state).members == ("new",)
