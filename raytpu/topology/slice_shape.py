"""From "4x4" to chips, hosts and the host grid."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache

from raytpu.errors import SpecError, TopologyError
from raytpu.topology.generation import GENERATIONS
from raytpu.topology.generation import generation as find_generation
from raytpu.topology.published import PUBLISHED_SHAPES

# Chips of one host along x, y, z, as the TPU compiler takes them (chips_per_host_bounds): libtpu 0.0.42
# gives one 8-chip host for v6e:2x4 with (2, 4, 1), two hosts with its default (2, 2, 1), and takes v6e:1x1
# only with (1, 1, 1).
_HOST_BOUNDS = {1: (1, 1, 1), 4: (2, 2, 1), 8: (2, 4, 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceShape:
    """A slice: its chips per axis and the hosts they are spread over. Get one from ``slice_shape``."""

    generation: str
    topology: str
    """Chips per axis, x first: ``4x4``, ``2x2x4``."""
    chips_per_host: int
    machine_type: str
    """The Compute Engine machine type of a host."""
    source: str
    """Where this shape is published."""

    def __post_init__(self) -> None:
        axes = find_generation(self.generation).axes
        if not re.fullmatch(r"[1-9][0-9]*(x[1-9][0-9]*)*", self.topology) or len(self.chip_grid) != axes:
            form = "x".join("ABC"[:axes])
            raise TopologyError(self.topology, self.generation, f"expected the form {form}")
        if self.chips_per_host not in _HOST_BOUNDS:
            raise SpecError(f"chips_per_host {self.chips_per_host}: a host has 1, 4 or 8 chips")
        bounds = self.chips_per_host_bounds
        if any(chips % per_host for chips, per_host in zip(self.chip_grid, bounds, strict=False)):
            raise TopologyError(
                self.topology,
                self.generation,
                f"hosts of {self.chips_per_host} chips hold {'x'.join(map(str, bounds[:axes]))}, "
                "which does not divide it",
            )

    @property
    def chip_grid(self) -> tuple[int, ...]:
        """Chips along each axis; as many axes as the generation has."""
        return _sizes(self.topology)

    @property
    def chips(self) -> int:
        return math.prod(self.chip_grid)

    @property
    def hosts(self) -> int:
        return self.chips // self.chips_per_host

    @property
    def chips_per_host_bounds(self) -> tuple[int, int, int]:
        """Chips of one host along x, y and z; always three, as the TPU compiler wants them."""
        return _HOST_BOUNDS[self.chips_per_host]

    @property
    def host_grid(self) -> tuple[int, ...]:
        """Hosts along each axis.

        Hosts are counted with x fastest: libtpu 0.0.42 gives process 1 of a ``v6e:4x4`` the chips at
        x 2..3, y 0..1 (compared for v6e 2x4, 4x4, 4x8, v5p 2x2x4, 2x4x4 and v7x 2x2x2).
        """
        bounds = self.chips_per_host_bounds
        return tuple(chips // per_host for chips, per_host in zip(self.chip_grid, bounds, strict=False))

    @property
    def devices(self) -> int:
        """JAX devices of the slice: what the product of the ICI axes of a mesh must be."""
        return self.chips * find_generation(self.generation).devices_per_chip

    @property
    def devices_per_host(self) -> int:
        return self.chips_per_host * find_generation(self.generation).devices_per_chip

    @property
    def accelerator_name(self) -> str:
        """Such as ``v6e-8`` or ``v5p-32``. The number counts TensorCores: two a chip on v4, v5p and v7x."""
        return f"{self.generation}-{self.chips * find_generation(self.generation).cores_per_chip}"

    @property
    def ray_pod_type(self) -> str:
        """Ray's name, as in its label ``ray.io/tpu-pod-type`` and its resource ``TPU-<pod type>-head``.

        It counts cores as ``accelerator_name`` does (ray 2.60.0, ``infer_tpu_pod_type_from_topology``).
        """
        fact = find_generation(self.generation)
        return f"{fact.ray_generation}-{self.chips * fact.cores_per_chip}"

    def __str__(self) -> str:
        return f"{self.generation} {self.topology}"


@cache
def _sizes(topology: str) -> tuple[int, ...]:
    """Kept, because plans ask for it once per slice of a large cluster."""
    return tuple(int(chips) for chips in topology.split("x"))


@cache
def slice_shapes(generation: str | None = None) -> tuple[SliceShape, ...]:
    """Every shape that exists, small to large, fewer hosts first; of one generation or of all.

    Raises:
        SpecError: no such generation.
    """
    if generation is not None:
        find_generation(generation)
    shapes = [
        SliceShape(
            generation=listed.generation,
            topology=topology,
            chips_per_host=listed.chips_per_host,
            machine_type=listed.machine_type,
            source=listed.source,
        )
        for listed in PUBLISHED_SHAPES
        if generation in (None, listed.generation)
        for topology in listed.topologies
    ]
    order = tuple(GENERATIONS)
    return tuple(sorted(shapes, key=lambda s: (order.index(s.generation), s.chips, s.chip_grid, s.hosts)))


def slice_shape(generation: str, topology: str, chips_per_host: int | None = None) -> SliceShape:
    """The one shape that is meant.

    Raises:
        TopologyError: the generation has no such topology; names those that were likely meant.
        SpecError: no such generation; or the topology exists with two kinds of hosts and ``chips_per_host``
            does not say which; or with no host of that many chips.
    """
    shapes = [shape for shape in slice_shapes(generation) if shape.topology == topology]
    if not shapes:
        raise TopologyError(topology, generation, *_why_not(generation, topology))
    if chips_per_host is None:
        if len(shapes) == 1:
            return shapes[0]
        raise SpecError(
            f"{generation} {topology} is {' or '.join(_hosts_in_words(shape) for shape in shapes)}: "
            f"say which, with {' or '.join(f'chips_per_host: {shape.chips_per_host}' for shape in shapes)}"
        )
    for shape in shapes:
        if shape.chips_per_host == chips_per_host:
            return shape
    raise SpecError(
        f"{generation} {topology} does not come with {chips_per_host} chips a host; it is "
        f"{' or '.join(_hosts_in_words(shape) for shape in shapes)}"
    )


def _hosts_in_words(shape: SliceShape) -> str:
    count = "one" if shape.hosts == 1 else "two" if shape.hosts == 2 else str(shape.hosts)
    chips = f"{shape.chips_per_host} chip{'s' if shape.chips_per_host > 1 else ''}"
    return f"{count} host{'s' if shape.hosts > 1 else ''} of {chips}"


def _why_not(generation: str, topology: str) -> list[str]:
    """What is wrong with a topology that is not listed, and what was likely meant."""
    fact = GENERATIONS[generation]
    listed = slice_shapes(generation)
    reasons = []
    if not re.fullmatch(r"[0-9]+(x[0-9]+)+", topology):
        reasons.append(f"expected chips per axis, such as {listed[-1].topology}")
        chips = None
    else:
        grid = [int(size) for size in topology.split("x")]
        chips = math.prod(grid)
        if len(grid) != fact.axes:
            reasons.append(f"{generation} topologies have {fact.axes} axes")
        for shape in listed:
            if sorted(shape.chip_grid) == sorted(grid):
                reasons.append(f"did you mean {shape.topology}? axes are written in that order")
                break
        elsewhere = dict.fromkeys(s.generation for s in slice_shapes() if s.topology == topology)
        if elsewhere:
            reasons.append(f"it exists on {', '.join(elsewhere)}")
    return [*reasons, _choices(listed, chips, generation)]


# More than this many choices are not read in an error message; the nearest by size are given instead.
_CHOICES_SHOWN = 12


def _choices(listed: tuple[SliceShape, ...], chips: int | None, generation: str) -> str:
    names = list(dict.fromkeys(shape.topology for shape in listed))
    if len(names) <= _CHOICES_SHOWN:
        return f"{generation} has {', '.join(names)}"
    nearest = sorted(listed, key=lambda s: abs(math.log(s.chips / chips)))[:6] if chips else listed[:6]
    near = ", ".join(s.topology for s in sorted(nearest, key=lambda s: (s.chips, s.chip_grid)))
    return f"{generation} has {len(names)}, such as {near} (raytpu topology {generation} lists all)"
