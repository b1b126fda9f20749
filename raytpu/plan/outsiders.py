"""Who has chips beside raytpu, joined with what the book shows of each host. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from raytpu.plan.inventory import HostState, Inventory, Outsider
from raytpu.plan.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipUse:
    """Chips of one host in the hands of one placement group or actor, as Ray's tables show it."""

    node_id: str
    lease_id: str | None
    """Of a placement group that bears the name of a lease; ``None`` for all others."""
    outsider: Outsider
    """What it is when no lease of that id is known."""


UNNAMED = Outsider(
    who="a task or actor",
    fix="Ray tells of no placement group or actor that has them; `ray list tasks` and `ray list actors` may",
)


def with_outsiders(inventory: Inventory, ledger: Ledger, uses: Sequence[ChipUse]) -> Inventory:
    """The inventory in which every host says who beside raytpu has chips of it.

    Not a host that does not answer: until Ray gives it up, it shows the chips as before the death.

    Args:
        inventory: as ``occupancy.seen_with`` gives it.
        uses: everything that Ray's tables show to have chips, the groups of leases included.
    """
    known = {lease.id for lease in ledger.leases}
    by_node: dict[str, list[Outsider]] = {}
    for use in uses:
        if use.lease_id not in known:
            by_node.setdefault(use.node_id, []).append(use.outsider)

    def told(host: HostState) -> HostState:
        if not host.answers or host.held_by is not None or host.chips_free == host.chips:
            return host
        named = tuple(dict.fromkeys(by_node.get(host.node_id, ())))
        if not named and host.chips_free + sum(host.parts) < host.chips:
            named = (UNNAMED,)
        return replace(host, outsiders=named)

    return inventory.with_slices(
        replace(state, hosts=tuple(told(host) for host in state.hosts))
        for state in inventory.slices
        if not state.idle and state.held_by is None
    )
