"""Which slices a workload wants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, Strict, ValidationInfo, field_validator

from raytpu.errors import SpecError, TopologyError
from raytpu.spec.spec import Broken, Spec, broken, raise_broken
from raytpu.topology import SliceShape, generation, slice_shape, slice_shapes

MOST_SLICES = 10_000
"""By feel: each slice is at least one Ray node, Ray is tested to 2,000 nodes, and the largest multislice job
told of in public had 199 slices. What is meant as more is a slip, and would be planned for minutes."""

Names = Annotated[tuple[str, ...], Strict(False)]


class Slices(Spec):
    """Whole slices of one shape, or parts of slices."""

    generation: str
    """TPU generation: v4, v5e, v5p, v6e or v7x."""
    topology: str
    """Chips per axis of one slice, such as 4x4 or 2x2x4; `raytpu topology v6e` lists those of v6e."""
    chips_per_host: int | None = Field(default=None, validate_default=True)
    """Chips of one host. Needed only where a topology comes with two kinds of hosts: v5e and v6e 2x4 are
    one 8-chip host or two 4-chip hosts."""
    count: int = Field(default=1, ge=1, le=MOST_SLICES)
    """Number of slices. Several are joined by the data-center network (DCN)."""
    alternatives: Names = Field(default=())
    """Other topologies that will do, in order of preference after ``topology``. All slices of one job
    have the same one. Where one comes with two kinds of hosts, hosts like those of ``topology`` are meant."""
    min_count: int | None = Field(default=None, ge=1)
    """Fewer slices than ``count`` will do, down to this many. By default exactly ``count``."""
    same_zone: bool = False
    """All slices must stand in one zone (Ray's node label ray.io/availability-zone)."""
    exclude: Names = Field(default=())
    """Slices that must not be used, by name."""
    sub_slice: bool = False
    """A part of a larger slice will do as well, along its valid boundaries; other jobs may hold the rest of
    that slice. Of several slices, each is a part of another one."""

    @property
    def shape(self) -> SliceShape:
        """The preferred shape of each of them."""
        return slice_shape(self.generation, self.topology, self.chips_per_host)

    @property
    def shapes(self) -> tuple[SliceShape, ...]:
        """Every shape that will do, in order of preference."""
        first = self.shape
        return (first, *(_alternative(topology, first) for topology in self.alternatives))

    @property
    def least(self) -> int:
        """The fewest slices that will do."""
        return self.count if self.min_count is None else self.min_count

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

    @field_validator("alternatives")
    @classmethod
    def _alternatives_exist(cls, alternatives: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        raise_broken("Slices", _broken_alternatives(alternatives, info))
        return alternatives

    @field_validator("min_count")
    @classmethod
    def _at_most_count(cls, min_count: int | None, info: ValidationInfo) -> int | None:
        if min_count is not None and min_count > info.data.get("count", min_count):
            raise broken(f"{min_count} is more than count, which is {info.data['count']}")
        return min_count

    @field_validator("exclude")
    @classmethod
    def _names_say_something(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        raise_broken(
            "Slices",
            (
                Broken((str(index),), "expected the name of a slice, got ''")
                for index, name in enumerate(names)
                if not name
            ),
        )
        return names


def _alternative(topology: str, first: SliceShape) -> SliceShape:
    """The shape that an alternative to ``first`` means.

    Raises:
        SpecError: there is no such topology, or it is not clear with which hosts.
    """
    kinds = [shape.chips_per_host for shape in slice_shapes(first.generation) if shape.topology == topology]
    like_first = first.chips_per_host if first.chips_per_host in kinds else None
    return slice_shape(first.generation, topology, like_first)


def _broken_alternatives(alternatives: tuple[str, ...], info: ValidationInfo) -> Iterator[Broken]:
    first = None
    if {"generation", "topology", "chips_per_host"} <= info.data.keys():  # else they are wrong, which is said
        first = slice_shape(info.data["generation"], info.data["topology"], info.data["chips_per_host"])
    for index, topology in enumerate(alternatives):
        at = (str(index),)
        if topology == info.data.get("topology"):
            yield Broken(at, f"{topology} is slices.topology itself; leave it out here")
        elif topology in alternatives[:index]:
            yield Broken(at, f"{topology} is listed twice")
        elif first is not None:
            try:
                _alternative(topology, first)
            except SpecError as error:
                yield Broken(at, str(error))
