"""``raytpu topology``: the slice shapes that exist, and a drawing of one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from raytpu.topology import Generation, SliceShape


def topology(
    generation: Annotated[
        str | None,
        typer.Argument(
            help="v4, v5e, v5p, v6e or v7x; or an accelerator name such as v5p-32.", show_default=False
        ),
    ] = None,
    shape: Annotated[
        str | None, typer.Argument(help="Chips per axis, such as 4x4 or 2x2x4.", show_default=False)
    ] = None,
    output: Annotated[
        Literal["text", "json"], typer.Option(help="Text for a person, or JSON for a machine.")
    ] = "text",
) -> None:
    """List the slice shapes of all generations or of one, or draw the hosts of one shape."""
    from raytpu.topology import render_host_grid

    shapes = _asked_for(generation, shape)
    named = generation is not None and "-" in generation
    if output == "json":
        typer.echo(json.dumps(_document(shapes), indent=2))
    elif shape is not None or named:
        # A topology with two kinds of hosts, or a name with two topologies, is drawn both ways: showing all
        # is no guess.
        typer.echo("\n\n".join(render_host_grid(each) for each in shapes))
    else:
        typer.echo("\n\n".join(_table(fact, group) for fact, group in _by_generation(shapes)))


def _asked_for(generation: str | None, shape: str | None) -> tuple[SliceShape, ...]:
    from raytpu.errors import SpecError
    from raytpu.topology import shapes_named, slice_shape, slice_shapes

    if generation is None:
        return slice_shapes()
    if "-" in generation:
        if shape is not None:
            raise SpecError(f"{generation} is a whole name; give either a name, or a generation and {shape}")
        return shapes_named(generation)
    if shape is None:
        return slice_shapes(generation)
    found = tuple(each for each in slice_shapes(generation) if each.topology == shape)
    return found or (slice_shape(generation, shape),)  # which says why there is none


def _by_generation(shapes: Sequence[SliceShape]) -> list[tuple[Generation, list[SliceShape]]]:
    from raytpu.topology import GENERATIONS

    return [(GENERATIONS[name], list(group)) for name, group in groupby(shapes, key=lambda s: s.generation)]


def _table(fact: Generation, shapes: Sequence[SliceShape]) -> str:
    ici = "" if fact.ici_bits_per_s is None else f", ICI {fact.ici_bits_per_s / 8e9:g} GB/s both ways"
    devices = "one JAX device" if fact.devices_per_chip == 1 else f"{fact.devices_per_chip} JAX devices"
    heading = (
        f"{fact.name}: a chip is {devices}, {fact.bf16_flops_per_chip / 1e12:g} bf16 TFLOP/s, "
        f"{fact.hbm_bytes_per_chip / 2**30:g} GiB HBM at {fact.hbm_bytes_per_s / 1e9:g} GB/s{ici}"
    )
    columns = "  TOPOLOGY   NAME        CHIPS  HOSTS  CHIPS/HOST  DEVICES  MACHINE"
    rows = [
        f"  {s.topology:<10} {s.accelerator_name:<10} {s.chips:>6} {s.hosts:>6} {s.chips_per_host:>11} "
        f"{s.devices:>8}  {s.machine_type}"
        for s in shapes
    ]
    return "\n".join([heading, columns, *rows])


def _document(shapes: Sequence[SliceShape]) -> dict[str, Any]:
    """``{"generations": [{…facts, "shapes": [{…}]}]}`` with the shapes that were asked for."""
    return {
        "generations": [
            {**asdict(fact), "shapes": [_shape_document(each) for each in group]}
            for fact, group in _by_generation(shapes)
        ]
    }


def _shape_document(shape: SliceShape) -> dict[str, Any]:
    return {
        "topology": shape.topology,
        "accelerator_name": shape.accelerator_name,
        "ray_pod_type": shape.ray_pod_type,
        "chips": shape.chips,
        "hosts": shape.hosts,
        "host_grid": list(shape.host_grid),
        "chips_per_host": shape.chips_per_host,
        "chips_per_host_bounds": list(shape.chips_per_host_bounds),
        "devices": shape.devices,
        "devices_per_host": shape.devices_per_host,
        "machine_type": shape.machine_type,
        "source": shape.source,
    }
