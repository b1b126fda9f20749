"""What the owner of a lease sees of its slices."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raytpu.gang.placement import HOST_CPUS, group_of
from raytpu.plan import PlannedSlice, ProcessAssignment
from raytpu.topology import SliceShape


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldHost:
    """A host of a held slice."""

    name: str
    """Slice and worker id, such as ``slice-0/2``."""
    worker_id: int
    node_id: str
    """Ray's id of the node, in hex."""
    address: str
    chips: int
    """Chips of this host that are held."""
    assignment: ProcessAssignment
    """Everything a JAX process on this host must know about its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSlice:
    """A slice, or a part of one, that belongs to the lease."""

    name: str
    shape: SliceShape
    """What is held: of a part, the part's shape."""
    hosts: tuple[HeldHost, ...]
    """In the order of the hardware."""
    placement_group: PlacementGroup
    """Bundle ``i`` is host ``i``."""
    planned: PlannedSlice

    def options(self, host: HeldHost) -> dict[str, Any]:
        """For ``.options(**…)`` of a Ray actor: to be the one process of ``host``, with its chips."""
        return {
            "num_cpus": HOST_CPUS,
            "resources": {"TPU": host.chips},
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self.placement_group, placement_group_bundle_index=host.assignment.position
            ),
        }

    def idle_options(self, host: HeldHost) -> dict[str, Any]:
        """For ``.options(**…)`` of a Ray actor: to be on ``host`` beside its one process, without chips."""
        return self.options(host) | {"num_cpus": 0, "resources": {}}

    def environment(self, host: HeldHost) -> dict[str, str]:
        """What makes the TPU runtime on ``host`` see the held chips only; empty for a whole slice."""
        return dict(host.assignment.environment)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionNotice:
    """The lease ends at a time that is known."""

    by: str
    """Who needs the slices."""
    until_s: float
    """By this process's monotonic clock."""

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.until_s - time.monotonic())


def held_slice(planned: PlannedSlice, group_id: bytes) -> HeldSlice:
    """What an owner sees of a granted slice; ``group_id`` is that of its placement group."""
    return HeldSlice(
        name=planned.name,
        shape=planned.shape,
        hosts=tuple(
            HeldHost(
                name=process.host,
                worker_id=process.worker_id,
                node_id=process.node_id,
                address=process.address,
                chips=process.chips,
                assignment=process,
            )
            for process in planned.processes
        ),
        placement_group=group_of(group_id),
        planned=planned,
    )
