"""A snapshot of slices that changes one slice at a time."""

from __future__ import annotations

import pickle

import pytest

from raytpu.plan import Inventory, SliceState
from tests.plan.builders import host, slice_state


def test_a_slice_is_replaced_in_its_place_or_added_at_the_end() -> None:
    before = Inventory(slices=(slice_state("a"), slice_state("b")))

    changed = before.with_slice(slice_state("a", held_by="x"))
    grown = before.with_slice(slice_state("c"))

    assert [(state.name, state.held_by) for state in changed.slices] == [("a", "x"), ("b", None)]
    assert [state.name for state in grown.slices] == ["a", "b", "c"]
    assert [state.held_by for state in before.slices] == [None, None]


def test_many_slices_are_changed_at_once() -> None:
    """One by one, a claim on a thousand slices takes a thousand passes over the cluster."""
    before = Inventory(slices=tuple(slice_state(name) for name in "abc"))

    after = before.with_slices(
        [slice_state("c", kept_for="x"), slice_state("d"), slice_state("a", kept_for="x")]
    )

    assert [(state.name, state.kept_for) for state in after.slices] == [
        ("a", "x"),
        ("b", None),
        ("c", "x"),
        ("d", None),
    ]


def test_a_slice_is_found_and_removed_by_name() -> None:
    inventory = Inventory(slices=(slice_state("a"), slice_state("b")))

    assert inventory.slice("b") == slice_state("b")
    assert inventory.slice("c") is None
    assert inventory.without("a") == Inventory(slices=(slice_state("b"),))
    assert inventory.without("c") == inventory


SOUND = {
    "whole": (slice_state(), 2, True),
    "hosts in another order": (slice_state(host_states=(host(1), host(0))), 2, True),
    "a dead node beside the one that replaced it": (
        slice_state(host_states=(host(0), host(1, alive=False, chips=0, chips_free=0), host(1))),
        2,
        True,
    ),
    "a host gone": (slice_state(host_states=(host(0),)), 1, True),
    "a gap": (slice_state(host_states=(host(1),)), 0, True),
    "a host twice": (slice_state(host_states=(host(0), host(0))), 0, True),
    "no label": (slice_state(host_states=(host(0), host(None))), 0, True),
    "a chip gone": (slice_state(host_states=(host(0), host(1, chips=3, chips_free=3))), 0, True),
    "suspect": (slice_state(host_states=(host(0), host(1, suspect="silent"))), 0, True),
    "in use": (slice_state(host_states=(host(0), host(1, chips_free=0))), 2, False),
    "held in part": (slice_state(host_states=(host(0), host(1, held_by="x"))), 2, False),
}


@pytest.mark.parametrize(("state", "sound_hosts", "idle"), SOUND.values(), ids=SOUND.keys())
def test_a_slice_knows_how_many_hosts_it_can_be_used_with(
    state: SliceState, sound_hosts: int, idle: bool
) -> None:
    """Plans rely on it without looking at the hosts again."""
    assert (state.sound_hosts, state.idle) == (sound_hosts, idle)
    again = pickle.loads(pickle.dumps(state))
    assert (again.sound_hosts, again.idle) == (sound_hosts, idle)
