"""Every shape that a source lists is in raytpu, with the numbers of the source."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

from raytpu.errors import SpecError
from raytpu.topology import GENERATIONS, SliceShape, shapes_named, slice_shape, slice_shapes
from tests.topology.published_expectations import PUBLISHED, Expected

FACTS = Path(__file__).parents[3] / "shared" / "facts" / "tpu_topologies.yaml"


def called(expected: Expected) -> str:
    return f"{expected.generation}-{expected.topology}-{expected.chips_per_host}"


@pytest.mark.parametrize("expected", PUBLISHED, ids=called)
def test_a_published_shape_has_the_chips_hosts_and_machines_of_its_source(expected: Expected) -> None:
    """One wrong host count and a gang waits for ever for a host that does not exist."""
    shape = slice_shape(expected.generation, expected.topology, expected.chips_per_host)

    assert shape.chips == expected.chips
    assert shape.hosts == expected.hosts
    assert shape.machine_type == expected.machine_type
    assert shape.source


@pytest.mark.parametrize("expected", PUBLISHED, ids=called)
def test_the_hosts_of_a_published_shape_fill_its_grid(expected: Expected) -> None:
    """The compiler is given the bounds of a host; bounds that do not tile the slice are refused by it."""
    shape = slice_shape(expected.generation, expected.topology, expected.chips_per_host)

    assert math.prod(shape.host_grid) == expected.hosts
    assert math.prod(shape.chips_per_host_bounds) == expected.chips_per_host
    assert len(shape.host_grid) == len(shape.chip_grid) == GENERATIONS[expected.generation].axes


@pytest.mark.parametrize("expected", PUBLISHED, ids=called)
def test_the_name_of_a_published_shape_leads_back_to_it(expected: Expected) -> None:
    """A name that counted chips where the field counts cores would buy half of what was asked for."""
    shape = slice_shape(expected.generation, expected.topology, expected.chips_per_host)

    assert shape in shapes_named(shape.accelerator_name)


@pytest.mark.parametrize("expected", PUBLISHED, ids=called)
def test_a_published_shape_is_found_without_its_host_size_unless_that_is_a_choice(expected: Expected) -> None:
    """v5e and v6e 2x4 come with two kinds of hosts; a guess would start half or twice the processes."""
    if (expected.generation in ("v5e", "v6e")) and expected.topology == "2x4":
        with pytest.raises(SpecError, match="chips_per_host: 8 or chips_per_host: 4"):
            slice_shape(expected.generation, expected.topology)
    else:
        assert slice_shape(expected.generation, expected.topology).hosts == expected.hosts


def test_no_shape_is_listed_that_no_source_states() -> None:
    """A shape made up by a rule may not be for sale."""
    listed = [(s.generation, s.topology, s.chips_per_host) for s in slice_shapes()]

    assert sorted(listed) == sorted((e.generation, e.topology, e.chips_per_host) for e in PUBLISHED)


def test_shapes_are_listed_by_generation_from_small_to_large() -> None:
    """Lists that people and plans read must not depend on the order of a table."""
    shapes = slice_shapes()

    assert list(dict.fromkeys(s.generation for s in shapes)) == ["v4", "v5e", "v5p", "v6e", "v7x"]
    for name in GENERATIONS:
        chips = [s.chips for s in slice_shapes(name)]
        assert chips == sorted(chips)


def facts_on_disk() -> dict[str, dict]:
    if not FACTS.exists():
        pytest.skip(
            "the collection of facts (../shared/facts/tpu_topologies.yaml) is not beside this checkout"
        )
    collected = yaml.safe_load(FACTS.read_text(encoding="utf-8"))["generations"]
    return {"v7x" if name == "tpu7x" else name: facts for name, facts in collected.items()}


def test_the_shapes_are_those_of_the_collected_facts() -> None:
    """The table in the package was typed; this compares it with what was collected, sources included."""
    expected = {
        (name, t["topology"], t["chips_per_vm"], t["machine_type"], " ".join(t["source"].split()))
        for name, facts in facts_on_disk().items()
        for t in facts["topologies"]
    }

    def row(s: SliceShape) -> tuple[object, ...]:
        return (s.generation, s.topology, s.chips_per_host, s.machine_type, s.source)

    assert {row(shape) for shape in slice_shapes()} == expected


def test_the_generations_are_those_of_the_collected_facts() -> None:
    """A wrong peak makes every utilisation figure wrong."""
    for name, facts in facts_on_disk().items():
        generation, spec = GENERATIONS[name], facts["spec"]
        bandwidths = spec["hbm_gbps"] if isinstance(spec["hbm_gbps"], list) else [spec["hbm_gbps"]]
        ici = spec.get("ici_bidir_gbps_per_chip")
        assert generation.axes == facts["dims"]
        assert generation.cores_per_chip == facts["tensorcores_per_chip"]
        assert generation.devices_per_chip == facts.get("devices_per_chip_in_jax", 1)
        assert generation.hbm_bytes_per_chip == spec["hbm_gib"] * 2**30
        assert generation.bf16_flops_per_chip == spec["bf16_tflops"] * 1e12
        assert generation.hbm_bytes_per_s / 1e9 in bandwidths
        assert generation.ici_bits_per_s == (None if ici is None else ici * 8e9)
        assert generation.gke_accelerator == facts["gke_accelerator"]
        assert generation.ray_generation == facts["ray_generation"]
        assert generation.ray_accelerator_type == facts["ray_accelerator_type"]
        assert generation.source == spec["source"]
