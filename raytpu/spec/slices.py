"""Which slices a workload wants."""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from raytpu.errors import SpecError, TopologyError
from raytpu.spec.spec import Spec, broken
from raytpu.topology import SliceShape, generation, slice_shape


class Slices(Spec):
    """Whole slices of one shape."""

    generation: str
    """TPU generation: v4, v5e, v5p, v6e or v7x."""
    topology: str
    """Chips per axis of one slice, such as 4x4 or 2x2x4; `raytpu topology v6e` lists those of v6e."""
    chips_per_host: int | None = Field(default=None, validate_default=True)
    """Chips of one host. Needed only where a topology comes with two kinds of hosts: v5e and v6e 2x4 are
    one 8-chip host or two 4-chip hosts."""
    count: int = Field(default=1, ge=1)
    """Number of slices. Several are joined by the data-center network (DCN)."""

    @property
    def shape(self) -> SliceShape:
        """The shape of each of them."""
        return slice_shape(self.generation, self.topology, self.chips_per_host)

    @field_validator("generation")
    @classmethod
    def _generation_exists(cls, name: str) -> str:
        try:
            generation(name)
        except SpecError as error:
            raise broken(str(error)) from error
        return name

    @field_validator("topology")
    @classmethod
    def _topology_exists(cls, topology: str, info: ValidationInfo) -> str:
        if "generation" in info.data:  # else the generation is wrong, which is said already
            try:
                slice_shape(info.data["generation"], topology)
            except TopologyError as error:
                raise broken(str(error)) from error
            except SpecError:  # two kinds of hosts: the question of the next field
                pass
        return topology

    @field_validator("chips_per_host")
    @classmethod
    def _hosts_exist(cls, chips_per_host: int | None, info: ValidationInfo) -> int | None:
        if {"generation", "topology"} <= info.data.keys():
            try:
                slice_shape(info.data["generation"], info.data["topology"], chips_per_host)
            except SpecError as error:
                raise broken(str(error)) from error
        return chips_per_host
