"""A replica that goes away leaves between two steps: none is made again."""

from __future__ import annotations

from raytpu.plan.replica_messages import Committed, Evicted, To, ViewChanged
from tests.plan.replica_machine import (
    after,
    leaving,
    lost,
    ready,
    running,
    to_all,
    view_of,
    votes,
    with_joiner,
)


def released(member: str) -> To:
    return To(member=member, position=None, message=Evicted(member=member, reason="preempted"))


def test_it_leaves_when_the_step_under_way_is_committed() -> None:
    """Dropped in the middle of a step, its parts would have to be computed again by the others."""
    state = running("a", "b")
    state, told = after(state, leaving("b"))
    assert told == []
    assert view_of(state).members == ("a", "b")

    state, told = after(state, *votes(state, "a", "b"))

    assert (view_of(state).step, view_of(state).members, view_of(state).parts) == (8, ("a",), ("a", "a"))
    assert told == [*to_all(Committed(step=7, view=view_of(state)), "a"), released("b")]


def test_its_replacement_joins_at_the_same_commit() -> None:
    state, _ = after(running("a", "b"), leaving("b"), *ready("new"))

    state, told = after(state, *votes(state, "a", "b"))

    assert view_of(state).donors == {"new": "a"}
    assert told[1] == To(member="new", position=None, message=ViewChanged(view=view_of(state)))


def test_a_joiner_that_takes_its_state_from_it_has_it_before_it_leaves() -> None:
    state = with_joiner("a")
    state, _ = after(state, leaving("a"))

    state, told = after(state, *votes(state, "a", "new"))

    assert (view_of(state).members, view_of(state).parts) == (("new",), ("new", "new"))
    assert told[-1] == released("a")


def test_the_last_one_stays_whatever_it_was_told() -> None:
    """Its state would be lost with it."""
    state, _ = after(running("a"), leaving("a"))

    state, _ = after(state, *votes(state, "a"))

    assert view_of(state).members == ("a",)


def test_one_that_dies_before_it_has_left_is_lost_like_any_other() -> None:
    state, _ = after(running("a", "b"), leaving("b"), lost("b"), leaving("b"))
    assert view_of(state).members == ("a",)

    state, told = after(state, *votes(state, "a"))

    assert told == to_all(Committed(step=7, view=view_of(state)), "a")
