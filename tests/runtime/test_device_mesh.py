"""The mesh over the devices is the plan's, with slices on DCN axes."""

from __future__ import annotations

import jax
import pytest

from raytpu.errors import HostMismatch
from raytpu.runtime import device_mesh, slice_of_process
from tests.runtime.builders import assignment, mesh_plan
from tests.runtime.host_processes import answers_of, run_hosts


def test_processes_are_numbered_slice_by_slice():
    assert slice_of_process(assignment(slices=2, hosts=2)) == {0: 0, 1: 0, 2: 1, 3: 1}


def test_one_slice_is_laid_out_in_device_order_with_auto_axes():
    """jax.make_mesh makes Explicit axes, on which ``x @ w`` may raise in code that works elsewhere."""
    mesh = device_mesh(mesh_plan({}, {"fsdp": 4, "tensor": 2}), {0: 0})

    assert mesh.shape == {"fsdp": 4, "tensor": 2}
    assert [device.id for device in mesh.devices.flat] == sorted(device.id for device in jax.devices())
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}


def test_a_plan_for_other_devices_than_there_are_is_refused():
    with pytest.raises(HostMismatch, match=r"slice 0 has 8 devices, expected 4; 1 slices, expected 2"):
        device_mesh(mesh_plan({"replica": 2}, {"fsdp": 4}), {0: 0})


def test_devices_of_an_unplanned_process_are_refused():
    with pytest.raises(HostMismatch, match=r"processes \[0\], which the plan does not have"):
        device_mesh(mesh_plan({}, {"fsdp": 8}), {1: 0})


def test_devices_of_one_slice_share_their_dcn_coordinates():
    """On CPU every device says slice 0 and a process is a host: JAX's grouping puts hosts on DCN axes."""
    program = """
    me, _ = start(slices=2, hosts=2, devices=4)
    from raytpu.runtime import device_mesh, slice_of_process, stop_process
    slices = slice_of_process(me)

    def where(dcn, ici):
        devices = device_mesh(mesh_plan(dcn, ici), slices).devices
        return [devices.shape, [[slices[d.process_index], d.process_index, d.id] for d in devices.flat]]

    answer([where({"replica": 2}, {"fsdp": 8}),
            where({"fsdp": 2}, {"tensor": 4, "fsdp": 2}),
            where({"replica": 2}, {"tensor": 2, "fsdp": 4})])
    stop_process()
    """

    answers = answers_of(run_hosts(program, 4))

    assert all(other == answers[0] for other in answers), "processes disagree about the mesh"
    (plain_shape, plain), (both_shape, both), (_, third) = answers[0]
    assert plain_shape == [2, 8]
    assert [process for _, process, _ in plain] == [p for p in range(4) for _ in range(4)]
    assert [device for *_, device in plain] == sorted(device for *_, device in plain)
    # fsdp is 2 on DCN × 2 on ICI, outermost: its first half is slice 0, its second slice 1.
    assert both_shape == [4, 4]
    assert [place[0] for place in both] == [0] * 8 + [1] * 8
    assert [place[0] for place in third] == [0] * 8 + [1] * 8


def test_the_layout_is_that_of_create_hybrid_device_mesh_where_a_process_is_a_slice():
    """It is JAX's layout that users and XLA expect."""
    program = """
    me, _ = start(slices=2, hosts=1, devices=4)
    from jax.experimental import mesh_utils
    from raytpu.runtime import device_mesh, slice_of_process, stop_process
    same = []
    for dcn, ici in ({"a": 2}, {"b": 4}), ({"b": 2}, {"a": 2, "b": 2}), ({"a": 2, "c": 1}, {"a": 4}):
        plan = mesh_plan(dcn, ici)
        ours = device_mesh(plan, slice_of_process(me)).devices
        theirs = mesh_utils.create_hybrid_device_mesh(plan.ici_shape, plan.dcn_shape, process_is_granule=True)
        same.append((ours == theirs).all().item())
    answer(same)
    stop_process()
    """

    assert answers_of(run_hosts(program, 2)) == [[True, True, True]] * 2
