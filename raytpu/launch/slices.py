"""The slices of a running cluster: who has them, who waits, and what a person can do about it."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from raytpu.errors import Refused, WrongRequest
from raytpu.gang import open_book, ray_inventory
from raytpu.gang.cluster_view import raylet_addresses
from raytpu.gang.holdings import ASK_S
from raytpu.gang.host_health import unwell
from raytpu.gang.open_book import ask_book, existing_book
from raytpu.gang.outsiders import chip_uses
from raytpu.gang.placement import OurGroup, our_groups, remove
from raytpu.launch.connect import connected
from raytpu.plan import Inventory
from raytpu.plan.book_view import BookView
from raytpu.plan.ledger import Ledger, Quarantine
from raytpu.plan.occupancy import seen_with
from raytpu.plan.outsiders import with_outsiders
from raytpu.plan.slices_report import Orphan, SliceRow, SlicesReport, StrayGroup, slices_report


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The connected cluster at a moment."""

    view: BookView
    """Without a book: made up from the inventory alone. The inventory says who is outside raytpu."""
    has_book: bool
    strays: tuple[OurGroup, ...]
    """Placement groups with the name of a lease that the book does not know."""

    @property
    def report(self) -> SlicesReport:
        strays = [
            StrayGroup(name=group.name, owner=group.owner, slice_name=group.slice_name)
            for group in self.strays
        ]
        return slices_report(self.view, strays, has_book=self.has_book)


def look() -> Seen:
    """What the cluster that this process is connected to has. Starts no book.

    Raises:
        Refused: the book runs another version of raytpu.
        DeadlineExceeded: the book does not answer.
    """
    # Both before the book is asked, and the groups again after it: what is granted or given back in between
    # is neither an outsider nor a stray.
    uses, before = chip_uses(), our_groups()
    book = existing_book()
    if book is None:
        view = BookView(ledger=Ledger(), inventory=ray_inventory(), orphans=frozenset(), now_s=time.time())
    else:
        view = ask_book(book, "view")
    view = replace(view, inventory=_with_silent(view.inventory))
    known = {lease.id for lease in view.ledger.leases} | {request.id for request in view.ledger.requests}
    still = {group.name for group in our_groups()}
    return Seen(
        view=replace(view, inventory=with_outsiders(view.inventory, view.ledger, uses)),
        has_book=book is not None,
        strays=tuple(group for group in before if group.lease_id not in known and group.name in still),
    )


def _with_silent(inventory: Inventory) -> Inventory:
    """The inventory in which idle hosts that do not answer are suspect.

    The book watches what is held; of the others Ray itself knows after 13 s that they died.
    """
    idle = {
        host.node_id
        for state in inventory.slices
        if state.held_by is None
        for host in state.hosts
        if host.alive and host.held_by is None and host.suspect is None
    }
    raylets = {node_id: address for node_id, address in raylet_addresses().items() if node_id in idle}
    return seen_with(inventory, Ledger(), suspects=unwell(raylets, ASK_S))


def slices_now(on: str, *, home: str, environment: Mapping[str, str]) -> SlicesReport:
    """What the cluster that ``on`` means has.

    Raises:
        WrongRequest: no such cluster.
        Refused: it or its book does not answer.
    """
    with connected(on, None, home=home, environment=environment):
        return look().report


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What came of ending what is held for owners that are gone."""

    now_s: float
    ended: tuple[Orphan, ...]
    kept: tuple[Orphan, ...]
    """Their owner is back, or may still come back to a book that was restarted a moment ago."""


def end_orphans(
    on: str,
    confirm: Callable[[tuple[Orphan, ...], float], None],
    *,
    home: str,
    environment: Mapping[str, str],
) -> Collected:
    """End whatever is held for owners that are gone.

    Args:
        confirm: given what would be ended, and the present by the book's clock; raises to leave all as it is.
    """
    with connected(on, None, home=home, environment=environment):
        seen = look()
        report = seen.report
        endable = tuple(orphan for orphan in report.orphans if not orphan.may_return)
        kept = [orphan for orphan in report.orphans if orphan.may_return]
        ended: list[Orphan] = []
        if endable:
            confirm(endable, report.now_s)
        for orphan in endable:
            (ended if _end(orphan, seen) else kept).append(orphan)
        return Collected(now_s=report.now_s, ended=tuple(ended), kept=tuple(kept))


def _end(orphan: Orphan, seen: Seen) -> bool:
    if orphan.kind == "placement group":
        remove([group.group for group in seen.strays if group.name == orphan.id])
        return True
    return bool(ask_book(open_book(), "end_orphan", orphan.id))


def quarantine_slice(
    name: str,
    reason: str,
    on: str,
    confirm: Callable[[SliceRow], None],
    *,
    home: str,
    environment: Mapping[str, str],
) -> None:
    """From now on nobody gets the slice; whoever holds it keeps it.

    Args:
        confirm: given the slice as it is; raises to leave it so.

    Raises:
        WrongRequest: the cluster has no such slice.
        Refused: it is under quarantine already.
    """
    with connected(on, None, home=home, environment=environment):
        report = look().report
        row = report.slice(name)
        if row is None:
            raise WrongRequest(
                _unknown(name, [each.name for each in report.slices], "slices of this cluster")
            )
        if row.quarantined is not None:
            raise Refused(f"{name} is under quarantine already: {row.quarantined}")
        confirm(row)
        ask_book(open_book(), "quarantine", name, reason)


def release_slice(
    name: str,
    on: str,
    confirm: Callable[[Quarantine], None],
    *,
    home: str,
    environment: Mapping[str, str],
) -> None:
    """Lift a quarantine: the slice can be had again.

    Args:
        confirm: given the quarantine; raises to leave it.

    Raises:
        WrongRequest: the slice is not under quarantine.
    """
    with connected(on, None, home=home, environment=environment):
        seen = look()
        quarantines = {each.slice_name: each for each in seen.view.ledger.quarantines}
        if name not in quarantines:
            if seen.view.inventory.slice(name) is None:
                raise WrongRequest(_unknown(name, list(quarantines), "under quarantine"))
            listed = ", ".join(quarantines) or "none"
            raise WrongRequest(f"{name} is not under quarantine\n  under quarantine: {listed}")
        confirm(quarantines[name])
        ask_book(open_book(), "lift", name)


def _unknown(name: str, known: list[str], what: str) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"no slice {name!r}{meant}\n  {what}: {', '.join(known) or 'none'}"
