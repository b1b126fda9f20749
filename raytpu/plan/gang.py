"""Which slices a job gets, and which host runs which process; or why none will do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from raytpu.plan.choice import Candidate, choose, wish
from raytpu.plan.diagnosis import why_not
from raytpu.plan.inventory import Inventory
from raytpu.spec import Slices
from raytpu.topology import SliceShape, sub_slice_environment


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
    """Variables to set on this host because only a part of the slice is held; empty for a whole slice."""

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
    """The slices that the request gets, whole or as parts, and the process of each of their hosts.

    ``choice.choose`` says which; the order of names makes the plan a function of its inputs.
    ``process_index`` is ``slice_index * hosts_per_slice + position``: the order that the hardware has, not
    the order in which hosts happened to start.

    Args:
        exclude: names of slices not to use, beside those of the request; a name that the inventory does not
            have changes nothing.

    Raises:
        Unplaceable: the request does not fit now; it is the refusal that ``diagnose`` gives.
    """
    wished, in_order = wish(want, inventory, exclude), inventory.in_order()
    chosen = choose(wished, in_order)
    if len(chosen) < want.least:
        raise why_not(wished, in_order, len(chosen)).refusal()
    return _gang(chosen)


def deal_again(slices: Sequence[PlannedSlice], *, simulated: bool) -> GangPlan:
    """The gang of these slices, in this order: every index and count anew, the hosts as they are.

    For slices that were granted at different times: survivors first, in the order that they had, so that as
    few of their processes as possible get another index.
    """
    return GangPlan(
        slices=tuple(_dealt(planned, index, len(slices)) for index, planned in enumerate(slices)),
        simulated=simulated,
    )


def _dealt(planned: PlannedSlice, slice_index: int, slice_count: int) -> PlannedSlice:
    hosts = len(planned.processes)
    processes = tuple(
        replace(
            process,
            process_index=slice_index * hosts + process.position,
            process_count=slice_count * hosts,
            slice_index=slice_index,
            slice_count=slice_count,
            global_devices=slice_count * hosts * process.local_devices,
        )
        for process in planned.processes
    )
    return replace(planned, index=slice_index, processes=processes)


def gang_if_it_fits(want: Slices, inventory: Inventory) -> GangPlan | None:
    """As ``plan_gang``, for those who do not ask why not: ten times sooner."""
    chosen = choose(wish(want, inventory), inventory.in_order())
    return None if len(chosen) < want.least else _gang(chosen)


def _gang(chosen: list[Candidate]) -> GangPlan:
    slices = tuple(_planned(candidate, index, len(chosen)) for index, candidate in enumerate(chosen))
    return GangPlan(slices=slices, simulated=chosen[0].state.simulated)


def _planned(candidate: Candidate, slice_index: int, slice_count: int) -> PlannedSlice:
    shape, state = candidate.shape, candidate.state
    by_worker = {host.worker_id: host for host in state.hosts if host.alive}
    hosts = [by_worker[worker_id] for worker_id in candidate.worker_ids]
    addresses = [host.address for host in hosts]
    devices = shape.devices_per_host
    processes = tuple(
        ProcessAssignment(
            process_index=slice_index * len(hosts) + position,
            process_count=slice_count * len(hosts),
            slice_name=state.name,
            slice_index=slice_index,
            slice_count=slice_count,
            worker_id=worker_id,
            position=position,
            hosts_per_slice=len(hosts),
            node_id=host.node_id,
            address=host.address,
            chips=shape.chips_per_host,
            local_devices=devices,
            global_devices=slice_count * len(hosts) * devices,
            platform="cpu" if state.simulated else "tpu",
            environment=_environment(candidate, position, addresses),
        )
        for position, (worker_id, host) in enumerate(zip(candidate.worker_ids, hosts, strict=True))
    )
    return PlannedSlice(name=state.name, index=slice_index, shape=shape, of=candidate.of, processes=processes)


def _environment(candidate: Candidate, position: int, addresses: list[str]) -> dict[str, str]:
    if candidate.part is None:
        return {}
    told = sub_slice_environment(candidate.part, position, addresses)
    if candidate.state.simulated:  # as many CPU devices as the part has; JAX prefers it to XLA_FLAGS
        told["JAX_NUM_CPU_DEVICES"] = str(candidate.shape.devices_per_host)
    return told
