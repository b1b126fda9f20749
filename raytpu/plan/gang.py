"""Which slices a job gets, and which host runs which process; or why none will do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raytpu.errors import Unplaceable
from raytpu.plan.inventory import Inventory, SliceState, natural_order
from raytpu.plan.refusal import Fit, describe_shape, next_step
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
    hosts_per_slice: int
    node_id: str
    address: str
    chips: int
    local_devices: int
    """JAX devices of this host: one a chip, two on v7x."""
    global_devices: int
    """JAX devices of the whole gang."""
    platform: Literal["cpu", "tpu"]

    @property
    def host(self) -> str:
        """Name of the host for a person, such as ``slice-0/2``."""
        return f"{self.slice_name}/{self.worker_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSlice:
    """One slice of a gang; ``processes`` are in worker order."""

    name: str
    index: int
    shape: SliceShape
    processes: tuple[ProcessAssignment, ...]


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
    reasons: dict[str, str] = {}
    for state in in_order:
        why_not = fit.why_not(state)
        if why_not is None:
            chosen.append(state)
            if len(chosen) == want.count:
                return _gang_of(chosen, shape)
        else:
            reasons[state.name] = why_not
    for state in chosen:
        reasons[state.name] = f"whole and idle, but only {len(chosen)} of the {want.count} wanted"
    raise Unplaceable(
        f"{want.count} whole {describe_shape(shape)} slice{'s' if want.count != 1 else ''}",
        [(state.name, reasons[state.name]) for state in in_order],
        next_step(want.count, fit, in_order, idle=len(chosen)),
    )


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
        planned.append(PlannedSlice(name=state.name, index=slice_index, shape=shape, processes=processes))
    return GangPlan(slices=tuple(planned), simulated=simulated)
