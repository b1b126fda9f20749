"""A slice alone: its own numbers, and the axes of the whole."""

from __future__ import annotations

from raytpu.plan import plan_gang, plan_mesh
from raytpu.plan.replicas import mesh_of_slice, world_of_slice
from raytpu.spec import Mesh, Slices
from tests.plan.ledgers import inventory

WANT = Slices(generation="v6e", topology="2x4", chips_per_host=4, count=2)


def test_a_slice_that_works_alone_numbers_its_processes_from_zero() -> None:
    gang = plan_gang(WANT, inventory(2))
    world = world_of_slice(gang.slices[1], simulated=True)

    assert [each.process_index for each in world.processes] == [0, 1]
    assert {each.process_count for each in world.processes} == {2}
    assert {each.global_devices for each in world.processes} == {8}
    assert {(each.slice_index, each.slice_count) for each in world.processes} == {(0, 1)}
    assert [each.host for each in world.processes] == [each.host for each in gang.slices[1].processes]


def test_the_mesh_of_a_slice_has_every_axis_with_its_size_inside() -> None:
    plan = plan_mesh(Mesh(dcn={"replica": 2}, ici={"fsdp": 4, "tensor": 2}), WANT)
    alone = mesh_of_slice(plan)

    assert alone.axes == plan.axes
    assert dict(alone.sizes) == {"replica": 1, "fsdp": 4, "tensor": 2}
    assert alone.dcn_shape == (1, 1, 1)
    assert alone.batch_axes == plan.batch_axes


def test_an_axis_in_both_keeps_its_inner_part() -> None:
    plan = plan_mesh(Mesh(dcn={"data": 2}, ici={"data": 4, "fsdp": 2}), WANT)

    assert dict(mesh_of_slice(plan).sizes) == {"data": 4, "fsdp": 2}
