"""What Ray shows of a cluster, seen with what the book knows: who holds which chips. Pure.

Ray's own view of free chips lags by up to a second behind what was taken or given back. Where a lease stands
or stood a moment ago, the ledger is right; Ray's view says only what others have there beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
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
    kept_nodes: Set[str] = frozenset(),
) -> Inventory:
    """The inventory with the marks of the book.

    Args:
        inventory: what Ray shows.
        ledger: leases and quarantines; those of slices that Ray does not show are left out.
        suspects: reason by node id of hosts that do not answer, although Ray still counts them alive.
        settling: names of slices that a lease left so lately that Ray may not show it yet.
        kept_nodes: ids of nodes that the book itself has taken, whole, for whoever it will give them to.
    """
    held: dict[str, list[tuple[PlannedSlice, str]]] = {}
    for lease in ledger.leases:
        for planned in lease.slices:
            held.setdefault(planned.name, []).append((planned, lease.owner))
    reasons = {each.slice_name: each.reason for each in ledger.quarantines}
    states = []
    for state in inventory.slices:
        if state.name in settling:
            state = state.vacated()
        elif kept_nodes:
            state = state.vacated({host.worker_id for host in state.hosts if host.node_id in kept_nodes})
        if state.name in reasons:
            state = replace(state, quarantined=reasons[state.name])
        if suspects and any(host.node_id in suspects for host in state.hosts):
            state = replace(state, hosts=_suspected(state.hosts, suspects))
        if state.name in held:
            state = _counted(state, held[state.name])
        states.append(state)
    return Inventory(slices=tuple(states))


def _counted(state: SliceState, leases: Sequence[tuple[PlannedSlice, str]]) -> SliceState:
    """The slice with the use of its hosts as the ledger counts it; what Ray shows beyond that is somebody
    else's."""
    shown = {host.worker_id: host for host in state.hosts if host.alive}
    state = state.vacated({process.worker_id for planned, _ in leases for process in planned.processes})
    for planned, owner in leases:
        state = _taken(state, planned, owner)
    if state.held_by is not None:
        return state  # nobody counts the chips of a slice that is held whole

    def with_others(host: HostState) -> HostState:
        if not host.parts:
            return host
        before = shown[host.worker_id]
        others = max(0, before.chips - before.chips_free - sum(host.parts))
        return replace(host, chips_free=max(0, host.chips_free - others), crowded=before.crowded)

    return replace(state, hosts=tuple(with_others(host) for host in state.hosts))


def with_holder(inventory: Inventory, slices: Iterable[PlannedSlice], owner: str) -> Inventory:
    """``owner`` holds these. A slice that the inventory does not have changes nothing."""
    return _changed(inventory, slices, lambda state, planned: _taken(state, planned, owner))


def without_holder(inventory: Inventory, slices: Iterable[PlannedSlice]) -> Inventory:
    """What these took is free again. A slice that the inventory does not have changes nothing."""
    return _changed(inventory, slices, _left)


def _changed(
    inventory: Inventory,
    slices: Iterable[PlannedSlice],
    change: Callable[[SliceState, PlannedSlice], SliceState],
) -> Inventory:
    """Each change on the one before, in one pass over the inventory: a large lease has hundreds of slices."""
    by_name = {state.name: state for state in inventory.slices}
    changed: dict[str, SliceState] = {}
    for planned in slices:
        if planned.name in by_name:
            changed[planned.name] = change(changed.get(planned.name, by_name[planned.name]), planned)
    return inventory.with_slices(changed.values()) if changed else inventory


def _left(state: SliceState, planned: PlannedSlice) -> SliceState:
    if planned.whole:
        return replace(state.vacated(), held_by=None)
    chips = _chips_by_worker(planned)

    def give_back(host: HostState) -> HostState:
        if host.worker_id not in chips or not host.alive:
            return host
        parts = list(host.parts)
        parts.remove(chips[host.worker_id])
        free = min(host.chips, host.chips_free + chips[host.worker_id])
        return replace(host, held_by=None, crowded=False, parts=tuple(parts), chips_free=free)

    return replace(state, hosts=tuple(give_back(host) for host in state.hosts))


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
        taken = chips[host.worker_id]
        free = max(0, host.chips_free - taken)
        return replace(
            host,
            chips_free=free,
            parts=tuple(sorted((*host.parts, taken))),
            held_by=owner if free == 0 else host.held_by,
        )

    return replace(state, hosts=tuple(take(host) for host in state.hosts))


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
