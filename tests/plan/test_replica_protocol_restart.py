"""A step commits on all replicas or on none, also when the coordinator is replaced or a connection breaks."""

from __future__ import annotations

from raytpu.plan.replica_messages import (
    Committed,
    Over,
    To,
    ViewChanged,
    Voted,
)
from raytpu.plan.replica_protocol import EPOCHS_OF_ONE_COORDINATOR
from tests.plan.replica_machine import (
    after,
    attached,
    lost,
    machine,
    pulled,
    ready,
    restarted,
    running,
    view_of,
    votes,
    with_joiner,
)

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
