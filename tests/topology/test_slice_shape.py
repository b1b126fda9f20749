from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from raytpu.errors import SpecError, TopologyError
from raytpu.topology import GENERATIONS, SliceShape, generation, shapes_named, slice_shape


@pytest.mark.parametrize(
    ("name", "topology", "chips_per_host", "bounds", "host_grid"),
    [
        ("v6e", "1x1", None, (1, 1, 1), (1, 1)),
        ("v6e", "2x4", 4, (2, 2, 1), (1, 2)),
        ("v6e", "2x4", 8, (2, 4, 1), (1, 1)),
        ("v6e", "4x4", None, (2, 2, 1), (2, 2)),
        ("v5p", "2x2x4", None, (2, 2, 1), (1, 1, 4)),
        ("v5p", "2x4x4", None, (2, 2, 1), (1, 2, 4)),
        ("v4", "8x16x16", None, (2, 2, 1), (4, 8, 16)),
    ],
)
def test_hosts_lie_in_the_slice_as_the_compiler_lays_them(
    name: str, topology: str, chips_per_host: int | None, bounds: tuple[int, ...], host_grid: tuple[int, ...]
) -> None:
    """Checked against libtpu's own topology descriptions; the drawing and the compile checks rest on it."""
    shape = slice_shape(name, topology, chips_per_host)

    assert shape.chips_per_host_bounds == bounds
    assert shape.host_grid == host_grid


def test_v7x_shows_two_devices_a_chip() -> None:
    """A mesh made from chips would have half the devices that JAX shows."""
    shape = slice_shape("v7x", "4x4x4")

    assert (shape.chips, shape.devices, shape.devices_per_host) == (64, 128, 8)
    assert slice_shape("v5p", "4x4x4").devices == 64


@pytest.mark.parametrize(
    ("name", "topology", "accelerator_name", "ray_pod_type"),
    [
        ("v4", "2x2x2", "v4-16", "v4-16"),
        ("v5e", "4x4", "v5e-16", "v5litepod-16"),
        ("v5p", "2x2x4", "v5p-32", "v5p-32"),
        ("v6e", "4x4", "v6e-16", "v6e-16"),
        ("v7x", "2x2x1", "v7x-8", "v7x-8"),
    ],
)
def test_names_count_cores_and_ray_has_its_own_spelling(
    name: str, topology: str, accelerator_name: str, ray_pod_type: str
) -> None:
    """A resource named ``TPU-v5e-16-head`` exists on no Ray node, so a gang would wait for ever."""
    shape = slice_shape(name, topology)

    assert (shape.accelerator_name, shape.ray_pod_type) == (accelerator_name, ray_pod_type)


def test_a_name_of_several_shapes_gives_them_all() -> None:
    """v6e-8 is one 8-chip host or two 4-chip hosts; taking the first would be a guess."""
    assert [s.chips_per_host for s in shapes_named("v6e-8")] == [8, 4]
    assert [s.topology for s in shapes_named("v5p-32")] == ["2x2x4"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("v5p-33", "v5p names count cores, 2 a chip; the nearest are"),
        ("v5litepod-16", "did you mean v5e-16?"),
        ("tpu7x-8", "did you mean v7x-8?"),
        ("v6e", "a generation and a number of cores"),
        ("h100-8", "no TPU generation 'h100'"),
    ],
)
def test_a_wrong_name_is_told_the_right_one(given: str, says: str) -> None:
    """Names of other tools are near enough to be typed and far enough to be wrong."""
    with pytest.raises(SpecError) as caught:
        shapes_named(given)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("name", "topology", "says"),
    [
        ("v6e", "4x4x4", "v6e topologies have 2 axes; it exists on v4, v5p, v7x"),
        ("v6e", "4x2", "did you mean 2x4?"),
        ("v6e", "3x3", "v6e has 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16"),
        ("v5p", "4x4x7", "such as"),
        ("v5p", "4x4x7", "raytpu topology v5p lists all"),
        ("v7x", "4x4x28", "it exists on v5p"),
        ("v6e", "v6e-16", "expected chips per axis, such as 16x16"),
    ],
)
def test_a_wrong_topology_is_told_what_exists(name: str, topology: str, says: str) -> None:
    """A topology of another generation is the commonest slip when a file is copied."""
    with pytest.raises(TopologyError) as caught:
        slice_shape(name, topology)
    assert says in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_host_size_that_the_topology_does_not_have_is_refused() -> None:
    """Eight chips a host on a 4x4 would be two processes where four hosts wait."""
    with pytest.raises(
        SpecError, match=r"v6e 4x4 does not come with 8 chips a host; it is 4 hosts of 4 chips"
    ):
        slice_shape("v6e", "4x4", 8)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("v5litepod", "v5e"),
        ("tpu7x", "v7x"),
        ("V6E", "v6e"),
        ("tpu-v5p-slice", "v5p"),
        ("TPU-V4", "v4"),
        ("v6", "v6e"),
    ],
)
def test_spellings_of_other_tools_are_refused_and_recognised(given: str, meant: str) -> None:
    """One word for one thing: two spellings of a generation would be two kinds of slices to a plan."""
    with pytest.raises(SpecError) as caught:
        generation(given)
    assert f"did you mean {meant}?" in str(caught.value)


def test_facts_of_a_generation_cannot_be_changed() -> None:
    """A changed fact would follow its user into every later plan of the process."""
    with pytest.raises(TypeError):
        GENERATIONS["v4"] = GENERATIONS["v5p"]  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        generation("v4").axes = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"topology": "4x4x4"}, "expected the form AxB"),
        ({"topology": "4by4"}, "expected the form AxB"),
        ({"topology": "3x4"}, "does not divide"),
        ({"chips_per_host": 3}, "a host has 1, 4 or 8 chips"),
        ({"generation": "v9"}, "no TPU generation 'v9'"),
    ],
)
def test_a_shape_that_hosts_cannot_fill_is_not_built(change: dict[str, Any], says: str) -> None:
    """Shapes are also built by hand, for a slice that a cluster reports."""
    valid: dict[str, Any] = {
        "generation": "v6e",
        "topology": "4x4",
        "chips_per_host": 4,
        "machine_type": "ct6e-standard-4t",
        "source": "here",
    }
    assert SliceShape(**valid).hosts == 4

    with pytest.raises(SpecError) as caught:
        SliceShape(**(valid | change))
    assert says in str(caught.value)
