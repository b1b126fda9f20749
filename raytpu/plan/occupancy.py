"""What Ray shows of a cluster, seen with what the book knows: who holds which chips. Pure.

Ray's own view of free chips lags by up to a second behind what was taken or given back. Where a lease stands
or stood a moment ago, the ledger is right and Ray's view is not asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from raytpu.plan.gang import PlannedSlice
from raytpu.plan.inventory import HostState, Inventory, SliceState
from raytpu.plan.ledger import Ledger


def seen_with(
    inventory: Inventory,
    ledger: Ledger,
    *,
    suspects: Mapping[str, str],
    settling: Set[str] = frozenset(),
) -> Inventory:
    """The inventory with the marks of the book.

    Args:
        inventory: what Ray shows.
        ledger: leases and quarantines; those of slices that Ray does not show are left out.
        suspects: reason by node id of hosts that do not answer, although Ray still counts them alive.
        settling: names of slices that a lease left so lately that Ray may not show it yet.
    """
    held: dict[str, list[tuple[PlannedSlice, str]]] = {}
    for lease in ledger.leases:
        for planned in lease.slices:
            held.setdefault(planned.name, []).append((planned, lease.owner))
    reasons = {each.slice_name: each.reason for each in ledger.quarantines}
    states = []
    for state in inventory.slices:
        if state.name in settling:
            state = replace(state, hosts=tuple(_idle(host) for host in state.hosts))
        if state.name in reasons:
            state = replace(state, quarantined=reasons[state.name])
        if suspects and any(host.node_id in suspects for host in state.hosts):
            state = replace(state, hosts=_suspected(state.hosts, suspects))
        if state.name in held:
            state = _trusted(state, [planned for planned, _ in held[state.name]])
            for planned, owner in held[state.name]:
                state = _taken(state, planned, owner)
        states.append(state)
    return Inventory(slices=tuple(states))


def with_holder(inventory: Inventory, planned: PlannedSlice, owner: str) -> Inventory:
    """``owner`` holds ``planned``. A slice that the inventory does not have changes nothing."""
    state = inventory.slice(planned.name)
    return inventory if state is None else inventory.with_slice(_taken(state, planned, owner))


def without_holder(inventory: Inventory, planned: PlannedSlice) -> Inventory:
    """What ``planned`` took is free again. A slice that the inventory does not have changes nothing."""
    state = inventory.slice(planned.name)
    if state is None:
        return inventory
    if planned.whole:
        return inventory.with_slice(
            replace(state, held_by=None, hosts=tuple(_idle(host) for host in state.hosts))
        )
    chips = _chips_by_worker(planned)
    hosts = tuple(
        replace(host, held_by=None, chips_free=min(host.chips, host.chips_free + chips[host.worker_id]))
        if host.worker_id in chips and host.alive
        else host
        for host in state.hosts
    )
    return inventory.with_slice(replace(state, hosts=hosts))


def kept_for(inventory: Inventory, slice_names: Iterable[str], owner: str) -> Inventory:
    """These slices are claimed by a request that comes first."""
    names = set(slice_names)
    claimed = [replace(state, kept_for=owner) for state in inventory.slices if state.name in names]
    return inventory.with_slices(claimed) if claimed else inventory


def _taken(state: SliceState, planned: PlannedSlice, owner: str) -> SliceState:
    if planned.whole:
        return replace(state, held_by=owner)
    chips = _chips_by_worker(planned)

    def take(host: HostState) -> HostState:
        if host.worker_id not in chips or not host.alive:
            return host
        free = max(0, host.chips_free - chips[host.worker_id])
        return replace(host, chips_free=free, held_by=owner if free == 0 else host.held_by)

    return replace(state, hosts=tuple(take(host) for host in state.hosts))


def _trusted(state: SliceState, parts: list[PlannedSlice]) -> SliceState:
    """Hosts on which the book has placed something, as if idle: their use is then counted from the ledger."""
    touched = {process.worker_id for planned in parts for process in planned.processes}
    return replace(
        state, hosts=tuple(_idle(host) if host.worker_id in touched else host for host in state.hosts)
    )


def _idle(host: HostState) -> HostState:
    return replace(host, chips_free=host.chips, held_by=None)


def _suspected(hosts: tuple[HostState, ...], suspects: Mapping[str, str]) -> tuple[HostState, ...]:
    """The hosts with those marked that do not answer; without those that another one has replaced already.

    Ray goes on counting a lost node as alive beside the node that took its place, for 13 s when measured.
    """
    well = {host.worker_id for host in hosts if host.alive and host.node_id not in suspects}
    return tuple(
        replace(host, suspect=suspects[host.node_id]) if host.node_id in suspects else host
        for host in hosts
        if host.node_id not in suspects or host.worker_id not in well
    )


def _chips_by_worker(planned: PlannedSlice) -> dict[int | None, int]:
    return {process.worker_id: process.chips for process in planned.processes}
