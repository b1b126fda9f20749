"""Where each dimension of a parameter or activation lies on the mesh: the logical axes and their rules.

A parameter names its dimensions (``("embed", "mlp")``); a rule maps a name to a mesh axis. A dimension
lies on that axis when the mesh has it, its size divides the dimension, and no earlier dimension of the
same array took it; otherwise the dimension is whole on every device. So one model runs on any mesh.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import jax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

PARAMETER_RULES: Mapping[str, str] = {
    "embed": "fsdp",
    "mlp": "tensor",
    "heads": "tensor",
    "vocab": "tensor",
}
"""Logical axis → mesh axis. Other names (``layers``, ``position``, ``head``, ``gate``) stay whole, as do
vectors of the model width (named ``norm``): gathering each costs a collective and saves nothing."""

BATCH_AXES = ("replica", "data", "fsdp")
"""Mesh axes over which a batch is split when nobody says otherwise, those of them that exist."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The rules applied to one mesh. Hashable, so that a module may carry it as static data."""

    mesh: Mesh
    batch_axes: tuple[str, ...]

    @classmethod
    def on(cls, mesh: Mesh, batch_axes: tuple[str, ...] | None = None) -> Layout:
        """``batch_axes`` of ``None``: those of ``BATCH_AXES`` that the mesh has, in mesh order."""
        if batch_axes is None:
            batch_axes = tuple(axis for axis in mesh.axis_names if axis in BATCH_AXES)
        return cls(mesh, batch_axes)

    @classmethod
    def of(cls, batch_sharding: NamedSharding) -> Layout:
        """The layout whose batches lie as ``batch_sharding`` says (its first dimension is the batch)."""
        first = batch_sharding.spec[0] if len(batch_sharding.spec) else None
        axes = first if isinstance(first, tuple) else (first,) if first is not None else ()
        mesh = batch_sharding.mesh
        if not isinstance(mesh, Mesh):
            raise TypeError(f"a layout needs a mesh of devices, not {type(mesh).__name__}")
        return cls(mesh, axes)

    @property
    def batch_shards(self) -> int:
        """Parts a batch is split into."""
        count = 1
        for axis in self.batch_axes:
            count *= self.mesh.shape[axis]
        return count

    @property
    def replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def batch(self) -> NamedSharding:
        """Of an array whose first dimension is the batch."""
        return NamedSharding(self.mesh, PartitionSpec(self.batch_axes or None))

    @property
    def microbatches(self) -> NamedSharding:
        """Of an array ``[parts, batch / parts, ...]``."""
        return NamedSharding(self.mesh, PartitionSpec(None, self.batch_axes or None))

    def parameter(self, names: tuple[str | None, ...], shape: tuple[int, ...]) -> NamedSharding:
        """At rest: where a parameter with these dimensions is stored."""
        return self._place(names, shape, self.mesh.axis_names)

    def gathered(self, names: tuple[str | None, ...], shape: tuple[int, ...]) -> NamedSharding:
        """In use: whole along every axis that splits the batch, still split for tensor parallelism."""
        return self._place(names, shape, [axis for axis in self.mesh.axis_names if axis != "fsdp"])

    def weight(self, parameter: nnx.Variable, dtype: jax.typing.DTypeLike) -> jax.Array:
        """The value to compute with: cast first, so that the gather moves the smaller type."""
        value = parameter[...].astype(dtype)
        return jax.lax.with_sharding_constraint(value, self.gathered(parameter.out_sharding, value.shape))

    def activation(self, value: jax.Array, *names: str | None) -> jax.Array:
        """``value`` with its first dimension on the batch axes and the others by the rules, never on fsdp."""
        rest = self.gathered((None, *names), value.shape).spec
        spec = PartitionSpec(self._batch_part(value.shape[0]), *rest[1:])
        return jax.lax.with_sharding_constraint(value, NamedSharding(self.mesh, spec))

    def _batch_part(self, rows: int) -> tuple[str, ...] | None:
        """Text samples have one row, which no axis divides: they are computed on every device."""
        return self.batch_axes if self.batch_axes and rows % self.batch_shards == 0 else None

    def _place(
        self, names: tuple[str | None, ...], shape: tuple[int, ...], axes: Collection[str]
    ) -> NamedSharding:
        if len(names) != len(shape):
            raise ValueError(f"{len(names)} axis names {names} for an array of shape {shape}")
        spec: list[str | None] = []
        for name, size in zip(names, shape, strict=True):
            axis = PARAMETER_RULES.get(name) if name else None
            fits = axis in axes and axis not in spec and size % self.mesh.shape[axis] == 0
            spec.append(axis if fits else None)
        return NamedSharding(self.mesh, PartitionSpec(*spec))
