"""Names such as "v5p-32" and the shapes they stand for."""

from __future__ import annotations

import re

from raytpu.errors import SpecError
from raytpu.topology.generation import GENERATIONS, generation, raytpu_name
from raytpu.topology.slice_shape import SliceShape, slice_shapes


def shapes_named(accelerator_name: str) -> tuple[SliceShape, ...]:
    """Every shape of an accelerator name; several when the name does not say how chips are arranged.

    The number counts TensorCores: ``v5p-32`` is 16 chips, ``v6e-16`` is 16 chips.

    Raises:
        SpecError: no shape has that name; the message names those with about as many chips.
    """
    match = re.fullmatch(r"(.+)-([1-9][0-9]*)", accelerator_name)
    if match is None:
        raise SpecError(
            f"no accelerator name {accelerator_name!r}; expected a generation and a number of cores, "
            "such as v6e-16 or v5p-32"
        )
    spelling, cores = match[1], int(match[2])
    if spelling not in GENERATIONS:
        meant = raytpu_name(spelling)
        if meant is None:
            generation(spelling)
        raise SpecError(f"no accelerator name {accelerator_name!r}; did you mean {meant}-{cores}?")
    listed = slice_shapes(spelling)
    found = tuple(shape for shape in listed if shape.accelerator_name == accelerator_name)
    if not found:
        raise SpecError(_no_such_size(spelling, cores, listed))
    return found


def _no_such_size(name: str, cores: int, listed: tuple[SliceShape, ...]) -> str:
    per_chip = GENERATIONS[name].cores_per_chip
    by_distance = sorted(listed, key=lambda shape: abs(shape.chips * per_chip - cores))
    nearest = sorted({(shape.chips, shape.accelerator_name) for shape in by_distance[:4]})
    counts = f"{name} names count cores, {per_chip} a chip; " if per_chip > 1 else ""
    return (
        f"no slice is called {name}-{cores}; {counts}the nearest are "
        f"{', '.join(label for _, label in nearest)} (raytpu topology {name} lists all)"
    )
