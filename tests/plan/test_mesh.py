from __future__ import annotations

import pytest

from raytpu.errors import SpecError
from raytpu.plan import plan_mesh
from tests.plan.builders import mesh, slices


def test_axes_between_slices_come_first() -> None:
    """With ICI axes outermost, neighbours in a mesh axis would sit on different slices."""
    plan = plan_mesh(mesh({"fsdp": 4, "tensor": 2}, {"replica": 2}), slices(2))

    assert plan.axes == ("replica", "fsdp", "tensor")
    assert plan.shape == (2, 4, 2)
    assert (plan.dcn_shape, plan.ici_shape) == ((2, 1, 1), (1, 4, 2))


def test_an_axis_in_both_places_multiplies() -> None:
    """FSDP over all slices is one axis to the program, two to the network."""
    plan = plan_mesh(mesh({"tensor": 2, "fsdp": 4}, {"fsdp": 2}), slices(2))

    assert plan.axes == ("fsdp", "tensor")
    assert plan.sizes == {"fsdp": 8, "tensor": 2}
    assert (plan.dcn_shape, plan.ici_shape) == ((2, 1), (4, 2))


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(1, {"fsdp": 8}), (3, {"replica": 3, "fsdp": 8})],
)
def test_without_a_mesh_a_slice_shards_and_slices_copy(count: int, sizes: dict[str, int]) -> None:
    """The default must use every device and keep parameter traffic off the data-center network."""
    plan = plan_mesh(None, slices(count))

    assert plan.sizes == sizes
    assert plan.batch_axes == tuple(sizes)


def test_the_default_mesh_counts_devices_not_chips() -> None:
    """On v7x half the devices would be left out."""
    plan = plan_mesh(None, slices(1, generation="v7x", topology="2x2x1", chips_per_host=None))

    assert plan.sizes == {"fsdp": 8}


@pytest.mark.parametrize(
    ("ici", "batch_axes", "expected"),
    [
        ({"fsdp": 4, "tensor": 2}, None, ("fsdp",)),
        ({"tensor": 2, "fsdp": 2, "data": 2}, None, ("fsdp", "data")),
        ({"tensor": 8}, None, ()),
        ({"expert": 4, "tensor": 2}, ("expert",), ("expert",)),
    ],
)
def test_the_batch_is_divided_over_the_axes_that_say_so(
    ici: dict[str, int], batch_axes: tuple[str, ...] | None, expected: tuple[str, ...]
) -> None:
    """Divided over a tensor axis, every device of a layer would see other rows."""
    assert plan_mesh(mesh(ici, batch_axes=batch_axes), slices()).batch_axes == expected


def test_a_mesh_that_does_not_fit_says_every_number() -> None:
    """Found by JAX on the hosts instead, it costs a start of the whole gang."""
    with pytest.raises(SpecError) as caught:
        plan_mesh(mesh({"fsdp": 4}, {"replica": 2}), slices(3))

    assert "mesh.ici: ici axes multiply to 4" in str(caught.value)
    assert "mesh.dcn: dcn axes multiply to 2" in str(caught.value)
