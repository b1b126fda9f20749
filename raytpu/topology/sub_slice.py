"""Parts of a slice that are slices themselves: which exist, and what libtpu on their hosts must be told."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from raytpu.topology.generation import generation
from raytpu.topology.slice_shape import SliceShape

# Shapes that GKE's device plugin accepts as a part of a larger slice (validSubsliceTopologySet in
# https://github.com/ai-on-gke/tpu-device-plugin/blob/4626a9f/pkg/tpu/util/util.go), which no axis of the
# slice may be shorter than. Beyond a cube of 4x4x4, slices are cubes joined by optical switches.
_PARTS_2D = {"1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16"}
_PARTS_3D = {"2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4"}

# Half of an 8-chip host. On v6e chips 0 to 3 are the four with y 2 and 3, chips 4 to 7 those with y 0 and 1
# (orbax-checkpoint 0.12.8, _src/testing/oss/run_multihost.py), so each half is a 2x2. On v5e, whose host JAX
# calls "4x2 LitePod", bounds of 2x2 do not fit them (jax 0.10.2, jax/_src/test_multiprocess.py).
_HALF_HOSTS = frozenset({"v6e"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SubSlice:
    """A part of a slice along valid boundaries. Get them from ``sub_slices``."""

    shape: SliceShape
    """Of the part."""
    of: SliceShape
    worker_ids: tuple[int, ...]
    """Hosts of the part by their worker id in the slice, in the order of their position in the part."""

    @property
    def within_a_host(self) -> bool:
        """Whether the part is some of the chips of one host. Which ones is for the one who takes them."""
        return self.shape.chips_per_host < self.of.chips_per_host


@cache
def sub_slices(shape: SliceShape, of: SliceShape) -> tuple[SubSlice, ...]:
    """Every part of ``of`` that is a whole ``shape``; none when ``shape`` is no valid part of it.

    Parts do not overlap: they begin at multiples of their own size, so that what is left is made of valid
    parts as well. That is also how Ray divides a slice (ray 2.60.0, ``_build_subslice_labels``). Taken in the
    order given, first to last, they fill one larger part before they break into the next.

    Of parts within a host there is one for each host; a host holds ``chips_per_host // shape.chips`` of them.
    """
    if shape.generation != of.generation or shape.chips >= of.chips:
        return ()
    if shape.topology not in _PARTS_2D | _PARTS_3D:
        return ()
    if shape.chips_per_host != of.chips_per_host:
        return _within_hosts(shape, of)
    size, grid = shape.host_grid, of.host_grid
    corners = itertools.product(
        *(range(0, along - step + 1, step) for along, step in zip(grid, size, strict=True))
    )
    return tuple(
        SubSlice(shape=shape, of=of, worker_ids=tuple(_workers(corner, size, grid)))
        for corner in sorted(corners, key=_z_order)
    )


def sub_slice_environment(part: SubSlice, position: int, addresses: Sequence[str]) -> dict[str, str]:
    """Variables of the host at ``position`` of a part, to be set over those that the slice gave it.

    They describe the part as GKE describes a slice to libtpu, names and values alike (``InitEnvs`` in
    https://github.com/ai-on-gke/tpu-device-plugin/blob/4626a9f/pkg/tpu/util/util.go; it does the same for a
    pod that asks for a part). ``TPU_PROCESS_BOUNDS`` and ``TPU_CHIPS_PER_PROCESS_BOUNDS`` are the newer names
    of the bounds (jax 0.10.2, jax/_src/test_multiprocess.py). ``TPU_VISIBLE_CHIPS`` is left to Ray, which
    alone knows the chips that it gave to a process; it sets no bounds for four of eight chips (ray 2.60.0,
    ``set_current_process_visible_accelerator_ids``).

    Differing from GKE, no part claims links that close a ring: those of the slice lie at its own edges.
    Written from these sources; not run on TPU hardware.

    Args:
        position: of the host inside the part.
        addresses: of all hosts of the part, in the order of their position.
    """
    shape = part.shape
    host_bounds = _bounds(shape.host_grid)
    chip_bounds = _bounds(shape.chips_per_host_bounds)
    fact = generation(shape.generation)
    # GKE's spelling of the generation: that of libtpu, but v5litepod.
    spelling = fact.ray_generation if fact.name == "v5e" else fact.libtpu_name
    return {
        "TPU_SKIP_MDS_QUERY": "true",  # the metadata server knows only the whole slice
        "TPU_ACCELERATOR_TYPE": f"{spelling}-{shape.chips * fact.cores_per_chip}",
        "TPU_TOPOLOGY": shape.topology,
        "TPU_TOPOLOGY_WRAP": "false,false,false",
        "TPU_TOPOLOGY_ALT": "false",
        "WRAP": "false,false,false",
        "ALT": "false",
        "TPU_HOST_BOUNDS": host_bounds,
        "HOST_BOUNDS": host_bounds,
        "TPU_PROCESS_BOUNDS": host_bounds,
        "TPU_CHIPS_PER_HOST_BOUNDS": chip_bounds,
        "CHIPS_PER_HOST_BOUNDS": chip_bounds,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": chip_bounds,
        "TPU_WORKER_ID": str(position),
        "TPU_WORKER_HOSTNAMES": ",".join(addresses),
    }


def _within_hosts(shape: SliceShape, of: SliceShape) -> tuple[SubSlice, ...]:
    halves = of.chips_per_host == 8 and of.generation in _HALF_HOSTS
    if shape.hosts > 1 or not (shape.chips == 1 or (shape.chips == 4 and halves)):
        return ()
    hosts = sorted(itertools.product(*map(range, of.host_grid)), key=_z_order)
    return tuple(SubSlice(shape=shape, of=of, worker_ids=(_worker(host, of.host_grid),)) for host in hosts)


def _workers(corner: Sequence[int], size: Sequence[int], grid: Sequence[int]) -> list[int]:
    """Worker ids of one block of hosts, x fastest, as they are numbered inside the part."""
    ranges = [range(at, at + step) for at, step in zip(corner, size, strict=True)]
    return [_worker(host[::-1], grid) for host in itertools.product(*reversed(ranges))]


def _worker(host: Sequence[int], grid: Sequence[int]) -> int:
    """Worker id of the host at these coordinates: x fastest (see ``SliceShape.host_grid``)."""
    number = 0
    for coordinate, along in zip(reversed(host), reversed(grid), strict=True):
        number = number * along + coordinate
    return number


def _z_order(corner: tuple[int, ...]) -> tuple[int, ...]:
    """Sort key of the Z-order curve, which finishes one block of 2, 4, 8 … an axis before the next."""
    # 8 bits: the longest axis that exists has 24 chips.
    return tuple((at >> bit) & 1 for bit in range(7, -1, -1) for at in reversed(corner))


def _bounds(sizes: Sequence[int]) -> str:
    """Always three, as libtpu wants them: ``2,2,1``."""
    return ",".join(str(size) for size in (*sizes, 1, 1)[:3])
