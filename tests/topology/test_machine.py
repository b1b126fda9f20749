from __future__ import annotations

from raytpu.topology import MACHINES, slice_shapes


def test_every_published_shape_has_a_machine_of_known_size() -> None:
    """A pod that asks for more than its host has is Pending for ever, and nobody says why."""
    assert {shape.machine_type for shape in slice_shapes()} == MACHINES.keys()
    assert all(machine.source for machine in MACHINES.values())
