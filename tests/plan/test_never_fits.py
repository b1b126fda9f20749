"""Whether waiting can help a request that does not fit now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raytpu.plan import Inventory, SliceState, diagnose, never_fits
from raytpu.spec import Slices
from tests.plan.builders import host, slice_state, slices

LARGE = slice_state("a", 4, topology="4x4")
A_PART = slices(topology="2x2", chips_per_host=None, sub_slice=True)


def inventory(*states: SliceState) -> Inventory:
    return Inventory(slices=states)


WAITING_HELPS = {
    "held": slice_state("a", held_by="x"),
    "kept": slice_state("a", kept_for="x"),
    "held in part": slice_state("a", host_states=(host(0), host(1, held_by="x"))),
    "broken": slice_state("a", host_states=(host(0),)),
    "seen twice for a moment": slice_state("a", host_states=(host(0), host(0, node_id="new"), host(1))),
    "suspect": slice_state("a", host_states=(host(0), host(1, suspect="silent"))),
    "under quarantine": slice_state("a", quarantined="sick"),
}


@pytest.mark.parametrize("state", WAITING_HELPS.values(), ids=WAITING_HELPS.keys())
def test_a_slice_that_may_come_back_is_worth_waiting_for(state: SliceState) -> None:
    assert never_fits(slices(), inventory(state)) is None


NEVER = {
    "too few": (slices(2), [slice_state("a", held_by="x")]),
    "another shape": (slices(), [LARGE]),
    "too few of every alternative": (
        slices(2, alternatives=["4x4"]),
        [slice_state("a"), replace(LARGE, name="b")],
    ),
    "excluded": (slices(exclude=["a"]), [slice_state("a")]),
    "in too many zones": (
        slices(2, same_zone=True),
        [slice_state("a", zone="east"), slice_state("b", zone="west")],
    ),
    "no part of it": (slices(sub_slice=True), [slice_state("a", 1, topology="2x2")]),
    "simulated among real ones": (slices(2), [slice_state("a"), slice_state("b", simulated=True)]),
    "without a name that Ray knows": (slices(), [slice_state("a", named=False)]),
    "an empty cluster": (slices(), []),
}


@pytest.mark.parametrize(("want", "states"), NEVER.values(), ids=NEVER.keys())
def test_what_no_waiting_can_mend_is_refused_at_once(want: Slices, states: list[SliceState]) -> None:
    """An hour in a queue that cannot move is an hour lost."""
    refusal = never_fits(want, inventory(*states))

    assert refusal is not None
    assert str(refusal) == str(diagnose(want, inventory(*states)).refusal())


def test_parts_and_fewer_slices_count_among_what_could_be() -> None:
    assert never_fits(A_PART, inventory(replace(LARGE, held_by="x"))) is None
    assert never_fits(slices(3, min_count=1), inventory(slice_state("a", held_by="x"))) is None
