"""Which parts of a slice are slices, and what libtpu is told about them."""

from __future__ import annotations

import itertools

import pytest

from raytpu.topology import SliceShape, slice_shape, slice_shapes, sub_slice_environment, sub_slices


def shape(text: str) -> SliceShape:
    """``v6e 2x4/8``: a topology with hosts of 8 chips."""
    name, _, rest = text.partition(" ")
    topology, _, chips = rest.partition("/")
    return slice_shape(name, topology, int(chips) if chips else None)


# Worker ids count hosts with x fastest, as libtpu 0.0.42 does: worker 1 of a v6e 4x8 has the chips at
# x 2..3, y 0..1 (tests/topology/test_slice_shape.py).
PARTS = {
    ("v6e 2x2", "v6e 2x4/4"): [(0,), (1,)],
    ("v6e 2x2", "v6e 4x4"): [(0,), (1,), (2,), (3,)],
    ("v6e 2x4/4", "v6e 4x4"): [(0, 2), (1, 3)],
    ("v6e 4x4", "v6e 4x8"): [(0, 1, 2, 3), (4, 5, 6, 7)],
    ("v6e 2x4/4", "v6e 4x8"): [(0, 2), (1, 3), (4, 6), (5, 7)],
    ("v5e 4x8", "v5e 8x8"): [tuple(y * 4 + x for y in range(4) for x in half) for half in ((0, 1), (2, 3))],
    ("v5p 2x2x1", "v5p 2x2x2"): [(0,), (1,)],
    ("v5p 2x2x2", "v5p 2x2x4"): [(0, 1), (2, 3)],
    ("v4 2x2x4", "v4 2x4x4"): [(0, 2, 4, 6), (1, 3, 5, 7)],
    ("v7x 2x4x4", "v7x 4x4x4"): [tuple(range(x, 16, 2)) for x in (0, 1)],
    ("v6e 1x1", "v6e 2x2"): [(0,)],
    ("v6e 1x1", "v6e 2x4/8"): [(0,)],
    ("v5e 1x1", "v5e 4x4"): [(0,), (1,), (2,), (3,)],
    ("v6e 2x2", "v6e 2x4/8"): [(0,)],
}


@pytest.mark.parametrize(("pair", "workers"), PARTS.items(), ids=map(" of ".join, PARTS))
def test_a_slice_is_divided_along_its_host_grid(
    pair: tuple[str, str], workers: list[tuple[int, ...]]
) -> None:
    """Hosts that are no block of the grid have no links among them: the first collective hangs."""
    part, of = map(shape, pair)

    assert [each.worker_ids for each in sub_slices(part, of)] == workers


NO_PARTS = {
    "itself": ("v6e 4x4", "v6e 4x4"),
    "larger": ("v6e 4x8", "v6e 4x4"),
    "other generation": ("v5e 2x2", "v6e 4x4"),
    "other hosts": ("v6e 2x4/8", "v6e 4x4"),
    "as many chips on other hosts": ("v6e 2x4/4", "v6e 2x4/8"),
    "beyond a cube": ("v5p 4x4x8", "v5p 8x8x8"),
    "half a v5e host, whose chips are numbered otherwise": ("v5e 2x2", "v5e 2x4/8"),
}


@pytest.mark.parametrize(("part", "of"), NO_PARTS.values(), ids=NO_PARTS.keys())
def test_what_is_no_valid_part_is_not_offered(part: str, of: str) -> None:
    assert sub_slices(shape(part), shape(of)) == ()


def test_parts_never_share_a_host_and_leave_none_over() -> None:
    """Two jobs on one chip fail at start; a host in no part is paid for and never used."""
    small = [of for of in slice_shapes() if of.hosts <= 64]
    for of, part in itertools.product(small, small):
        parts = sub_slices(part, of)
        hosts = [worker for each in parts for worker in each.worker_ids]
        assert len(set(hosts)) == len(hosts)
        assert not parts or sorted(hosts) == list(range(of.hosts)), f"{part} of {of}"
        assert all(len(each.worker_ids) == part.hosts for each in parts)


@pytest.mark.parametrize(("small", "large"), [("2x2", "4x4"), ("2x2", "8x8"), ("2x4/4", "8x8")])
def test_parts_taken_in_order_fill_a_larger_part_before_they_break_the_next(small: str, large: str) -> None:
    """Scattered, four small jobs would leave no room for one of medium size."""
    of = shape("v6e 16x16")
    part, around = shape(f"v6e {small}"), shape(f"v6e {large}")
    blocks = [set(each.worker_ids) for each in sub_slices(around, of)]

    order = [
        next(index for index, block in enumerate(blocks) if block.issuperset(each.worker_ids))
        for each in sub_slices(part, of)
    ]

    assert order == sorted(order)


def test_a_part_within_a_host_says_so() -> None:
    """Several of them share the host: it must not be taken for held after the first."""
    assert sub_slices(shape("v6e 1x1"), shape("v6e 4x4"))[0].within_a_host
    assert not sub_slices(shape("v6e 2x2"), shape("v6e 4x4"))[0].within_a_host


def test_hosts_of_a_part_are_told_of_the_part_alone() -> None:
    """With what the whole slice left, libtpu waits for the hosts of the other jobs."""
    part = sub_slices(shape("v6e 2x4/4"), shape("v6e 4x4"))[1]

    second = sub_slice_environment(part, 1, ["10.0.0.1", "10.0.0.3"])

    assert second == {
        "TPU_SKIP_MDS_QUERY": "true",
        "TPU_ACCELERATOR_TYPE": "v6e-8",
        "TPU_TOPOLOGY": "2x4",
        "TPU_TOPOLOGY_WRAP": "false,false,false",
        "TPU_TOPOLOGY_ALT": "false",
        "WRAP": "false,false,false",
        "ALT": "false",
        "TPU_HOST_BOUNDS": "1,2,1",
        "HOST_BOUNDS": "1,2,1",
        "TPU_PROCESS_BOUNDS": "1,2,1",
        "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
        "CHIPS_PER_HOST_BOUNDS": "2,2,1",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
        "TPU_WORKER_ID": "1",
        "TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.3",
    }


@pytest.mark.parametrize(
    ("part", "of", "accelerator", "host_bounds", "chip_bounds"),
    [
        ("v6e 1x1", "v6e 4x4", "v6e-1", "1,1,1", "1,1,1"),
        ("v6e 2x2", "v6e 2x4/8", "v6e-4", "1,1,1", "2,2,1"),
        ("v5e 4x8", "v5e 8x8", "v5litepod-32", "2,4,1", "2,2,1"),
        ("v5p 2x2x4", "v5p 4x4x4", "v5p-32", "1,1,4", "2,2,1"),
        ("v7x 2x2x1", "v7x 2x2x2", "tpu7x-8", "1,1,1", "2,2,1"),
    ],
)
def test_bounds_and_names_are_those_of_the_part(
    part: str, of: str, accelerator: str, host_bounds: str, chip_bounds: str
) -> None:
    first = sub_slices(shape(part), shape(of))[0]

    told = sub_slice_environment(first, 0, ["10.0.0.1"] * first.shape.hosts)

    assert told["TPU_ACCELERATOR_TYPE"] == accelerator
    assert told["TPU_HOST_BOUNDS"] == told["TPU_PROCESS_BOUNDS"] == host_bounds
    assert told["TPU_CHIPS_PER_HOST_BOUNDS"] == told["TPU_CHIPS_PER_PROCESS_BOUNDS"] == chip_bounds
