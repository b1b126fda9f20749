"""Which slices a job gets, and which host runs which process; or why none will do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from raytpu.plan.diagnosis import diagnose
from raytpu.plan.inventory import Inventory, SliceState, natural_order
from raytpu.plan.refusal import Fit
from raytpu.spec import Slices
from raytpu.topology import SliceShape


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessAssignment:
    """Everything that one host must know about its place in the gang."""

    process_index: int
    process_count: int
    slice_name: str
    slice_index: int
    slice_count: int
    worker_id: int
    """Label of the host in its physical slice, whatever part of it is held."""
    position: int
    """Index of the host inside what is held; ``worker_id`` when that is the whole slice."""
    hosts_per_slice: int
    """Hosts held of each slice."""
    node_id: str
    address: str
    chips: int
    """Chips used on this host: all of them, or fewer when a part of one host is held."""
    local_devices: int
    """JAX devices of this host: one a chip, two on v7x."""
    global_devices: int
    """JAX devices of the whole gang."""
    platform: Literal["cpu", "tpu"]
    environment: Mapping[str, str] = field(default_factory=dict)
    """What libtpu on this host must be told because only a part of the slice is held; empty for a whole."""

    @property
    def host(self) -> str:
        """Name of the host for a person, such as ``slice-0/2``."""
        return f"{self.slice_name}/{self.worker_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSlice:
    """One slice of a gang, or a part of one; ``processes`` are in the order of their position."""

    name: str
    """Name of the physical slice."""
    index: int
    shape: SliceShape
    """Shape of what is held."""
    of: SliceShape
    """Shape of the physical slice; ``shape`` when all of it is held."""
    processes: tuple[ProcessAssignment, ...]

    @property
    def whole(self) -> bool:
        """Whether all of the slice is held, not a part."""
        return self.shape == self.of


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPlan:
    """The slices of one job, in the order of their slice index."""

    slices: tuple[PlannedSlice, ...]
    simulated: bool

    @property
    def processes(self) -> tuple[ProcessAssignment, ...]:
        """Every process, in the order of its process index."""
        return tuple(process for planned in self.slices for process in planned.processes)


def plan_gang(want: Slices, inventory: Inventory, exclude: frozenset[str] = frozenset()) -> GangPlan:
    """The first whole and idle slices of the wanted shape, in natural name order.

    Name order makes the plan a function of its inputs. ``process_index`` is
    ``slice_index * hosts_per_slice + worker_id``: the order that the hardware has, not the order in which
    hosts happened to start.

    Args:
        exclude: names of slices not to use; a name that the inventory does not have changes nothing.

    Raises:
        Unplaceable: carrying one reason per slice of the inventory, in natural name order.
    """
    shape = want.shape
    in_order = sorted(inventory.slices, key=lambda state: natural_order(state.name))
    real_exist = any(not state.simulated for state in in_order)
    fit = Fit(shape=shape, hosts=shape.hosts, exclude=exclude, real_slices_exist=real_exist)
    chosen: list[SliceState] = []
    for state in in_order:
        if fit.why_not(state) is None:
            chosen.append(state)
            if len(chosen) == want.count:
                return _gang_of(chosen, shape)
    raise diagnose(want, inventory, exclude).refusal()


def _gang_of(chosen: list[SliceState], shape: SliceShape) -> GangPlan:
    simulated = chosen[0].simulated
    hosts, chips, devices = shape.hosts, shape.chips_per_host, shape.devices_per_host
    planned = []
    for slice_index, state in enumerate(chosen):
        by_worker = {host.worker_id: host for host in state.hosts if host.alive}
        processes = tuple(
            ProcessAssignment(
                process_index=slice_index * hosts + worker_id,
                process_count=len(chosen) * hosts,
                slice_name=state.name,
                slice_index=slice_index,
                slice_count=len(chosen),
                worker_id=worker_id,
                position=worker_id,
                hosts_per_slice=hosts,
                node_id=by_worker[worker_id].node_id,
                address=by_worker[worker_id].address,
                chips=chips,
                local_devices=devices,
                global_devices=len(chosen) * hosts * devices,
                platform="cpu" if simulated else "tpu",
            )
            for worker_id in range(hosts)
        )
        planned.append(
            PlannedSlice(name=state.name, index=slice_index, shape=shape, of=shape, processes=processes)
        )
    return GangPlan(slices=tuple(planned), simulated=simulated)
