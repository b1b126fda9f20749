"""How the devices of all slices are arranged into named axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field, Strict, field_validator

from raytpu.spec.slices import Slices
from raytpu.spec.spec import Broken, Spec, broken, raise_broken

DEFAULT_BATCH_AXES = ("replica", "data", "fsdp")
"""Axes that divide the batch when a mesh does not say; those of them that the mesh has."""

AxisSize = Annotated[int, Field(ge=1)]


class Mesh(Spec):
    """Named axes over all devices: ``dcn`` between slices, ``ici`` inside a slice, outermost first."""

    dcn: dict[str, AxisSize] = Field(default={})
    """Axes between slices, in order; the sizes multiply to slices.count. Put here what communicates
    least: replicas of the model."""
    ici: dict[str, AxisSize]
    """Axes inside a slice, in order; the sizes multiply to the devices of one slice (one device a chip,
    two on v7x)."""
    batch_axes: Annotated[tuple[str, ...], Strict(False)] | None = None
    """Axes that divide the batch. By default those of replica, data and fsdp that the mesh has."""

    @property
    def axes(self) -> dict[str, int]:
        """Every axis in mesh order (``dcn`` first) with its size; one in both has the product."""
        names = dict.fromkeys([*self.dcn, *self.ici])
        return {name: self.dcn.get(name, 1) * self.ici.get(name, 1) for name in names}

    @property
    def dividing_axes(self) -> tuple[str, ...]:
        """``batch_axes`` with its default filled in."""
        if self.batch_axes is not None:
            return self.batch_axes
        return tuple(axis for axis in self.axes if axis in DEFAULT_BATCH_AXES)

    @field_validator("dcn", "ici")
    @classmethod
    def _names_are_words(cls, sizes: dict[str, int]) -> dict[str, int]:
        wrong = [name for name in sizes if not name.isidentifier()]
        raise_broken(
            "Mesh", (Broken((name,), "an axis name is made of letters, digits and _") for name in wrong)
        )
        return sizes

    @field_validator("ici")
    @classmethod
    def _has_an_axis(cls, sizes: dict[str, int]) -> dict[str, int]:
        if not sizes:
            raise broken("expected at least one axis, such as {fsdp: 8}")
        return sizes

    def broken_rules(self) -> Iterator[Broken]:
        for axis in self.batch_axes or ():
            if axis not in self.axes:
                yield Broken(("batch_axes",), f"{axis!r} is no axis of this mesh: {', '.join(self.axes)}")
        if len(set(self.dividing_axes)) != len(self.dividing_axes):
            yield Broken(("batch_axes",), f"names an axis twice: {', '.join(self.dividing_axes)}")


def default_mesh(slices: Slices) -> Mesh:
    """The mesh of a workload that gives none: parameters sharded inside a slice, one replica a slice."""
    dcn = {"replica": slices.count} if slices.count > 1 else {}
    return Mesh(dcn=dcn, ici={"fsdp": slices.shape.devices})


def mesh_against_slices(mesh: Mesh, slices: Slices) -> Iterator[Broken]:
    """The sizes multiply to what the slices have; paths are below the mesh."""
    shape = slices.shape
    inside, between = math.prod(mesh.ici.values()), math.prod(mesh.dcn.values())
    if inside != shape.devices:
        two = f" ({shape.chips} chips, two devices each)" if shape.devices != shape.chips else ""
        yield Broken(
            ("ici",),
            f"ici axes multiply to {inside}, but a {shape} slice has {shape.devices} devices{two}; "
            f"{_axes_in_words(mesh.ici)} was given, {_ici_advice(mesh, slices)}",
        )
    if between != slices.count:
        given = f"{_axes_in_words(mesh.dcn)} was given" if mesh.dcn else "none was given"
        advice = f"for example dcn: {{replica: {slices.count}}}" if slices.count > 1 else "leave dcn out"
        yield Broken(
            ("dcn",),
            f"dcn axes multiply to {between}, but slices.count is {slices.count}; {given}, {advice}",
        )


def _axes_in_words(sizes: Mapping[str, int]) -> str:
    return " × ".join(f"{axis} {size}" for axis, size in sizes.items())


def _ici_advice(mesh: Mesh, slices: Slices) -> str:
    """One axis changed so that it fits, else the simplest mesh that does."""
    devices = slices.shape.devices
    inside = math.prod(mesh.ici.values())
    if inside == devices * slices.count and slices.count > 1:
        return "ici counts the devices of one slice; axes between slices go to dcn"
    for axis in reversed(mesh.ici):
        others = inside // mesh.ici[axis]
        if devices % others == 0:
            return f"with {axis} {devices // others} it fits"
    return f"for example ici: {{fsdp: {devices}}}"
