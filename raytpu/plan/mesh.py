"""The device mesh: which axes lie between slices (DCN) and which inside a slice (ICI)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from raytpu.errors import SpecError
from raytpu.spec import Mesh, Slices, default_mesh
from raytpu.spec.mesh import mesh_against_slices


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPlan:
    """Axes of a mesh in order, outermost first, and where each of them lies.

    An axis in both ``dcn`` and ``ici`` has the product as its size; its DCN part is the outer one, as
    ``jax.experimental.mesh_utils.create_hybrid_device_mesh`` lays it out.
    """

    axes: tuple[str, ...]
    sizes: Mapping[str, int]
    dcn: Mapping[str, int]
    ici: Mapping[str, int]
    batch_axes: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.sizes[axis] for axis in self.axes)

    @property
    def dcn_shape(self) -> tuple[int, ...]:
        """Size of every axis between slices, 1 for an axis that stays inside; as long as ``axes``."""
        return tuple(self.dcn.get(axis, 1) for axis in self.axes)

    @property
    def ici_shape(self) -> tuple[int, ...]:
        """Size of every axis inside a slice, 1 for an axis between slices; as long as ``axes``."""
        return tuple(self.ici.get(axis, 1) for axis in self.axes)

    @property
    def batch_shards(self) -> int:
        """Parts that the batch is divided into; the other axes hold copies of a part."""
        return math.prod(self.sizes[axis] for axis in self.batch_axes)


def plan_mesh(mesh: Mesh | None, slices: Slices) -> MeshPlan:
    """The mesh over all devices of ``slices``; ``None`` is the default mesh of ``spec``.

    A whole ``Workload`` has been checked against the same rules; a mesh made in Python has not.

    Raises:
        SpecError: the axes do not multiply to the devices of the slices.
    """
    if mesh is None:
        mesh = default_mesh(slices)
    if broken := list(mesh_against_slices(mesh, slices)):
        raise SpecError("; ".join(f"mesh.{'.'.join(map(str, rule.at))}: {rule.message}" for rule in broken))
    return MeshPlan(
        axes=tuple(mesh.axes),
        sizes=mesh.axes,
        dcn=dict(mesh.dcn),
        ici=dict(mesh.ici),
        batch_axes=mesh.dividing_axes,
    )


def describe_axes(sizes: Mapping[str, int]) -> str:
    """``fsdp 4 × tensor 2``; ``(none)`` without axes."""
    return " × ".join(f"{axis} {size}" for axis, size in sizes.items()) or "(none)"
