"""Every slice of a cluster with who has it, and everything that a book has to say beside. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from raytpu.errors import SliceVerdict
from raytpu.plan.book_view import BookView, Growing
from raytpu.plan.choice import own_shape
from raytpu.plan.diagnosis import describe
from raytpu.plan.gang import PlannedSlice
from raytpu.plan.inventory import Outsider, SliceState
from raytpu.plan.ledger import Lease, Notice, Quarantine
from raytpu.plan.verdict import health, host_list
from raytpu.plan.waiting import Waiting, waiting_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Somebody who has a slice, or a part of it."""

    who: str
    """Owner of a lease; or what of stock Ray it is, in words."""
    part: str
    """What of the slice, in words; empty for all of it."""
    since_s: float | None
    """By the book's clock; ``None`` when nobody knows."""
    lease_id: str | None
    """``None`` for what is outside raytpu."""
    state: str
    """``placing``, ``held`` or ``ending``, as the book says; ``outside``."""
    notice: Notice | None = None
    gone: bool = False
    """The owner of the lease ended or fell silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRow:
    """One slice."""

    name: str
    generation: str | None
    topology: str | None
    hosts_alive: int
    """Those that answer: Ray takes some time to find out about a host that died."""
    hosts: int
    """That the slice should have; where its labels do not tell, those that were ever seen."""
    chips_free: int
    """Of living hosts."""
    chips: int
    """That the slice should have; where its labels do not tell, those of living hosts."""
    holders: tuple[Holder, ...]
    kept_for: str | None
    """Owner of the first request in the queue that claims it while it is idle."""
    quarantined: str | None
    health: SliceVerdict
    """The slice by itself, whoever has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """Something that is held for an owner that is gone."""

    owner: str
    kind: str
    """``lease``, ``request`` or ``placement group``."""
    id: str
    """Of the lease or request; name of the group."""
    slices: tuple[str, ...]
    gone_since_s: float | None = None
    """``None`` when nobody knows."""
    ends_s: float | None = None
    """When it ends by itself; ``None``: never, or not known."""
    may_return: bool = False
    """The book was restarted a moment ago, and the owner may still come back to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrayGroup:
    """A placement group with the name of a lease that no book knows."""

    name: str
    owner: str
    slice_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicesReport:
    """What a person is told about the slices of a cluster."""

    has_book: bool
    """Whether the cluster has a book of slices at all; the first ``hold`` starts it."""
    now_s: float
    slices: tuple[SliceRow, ...]
    """In the natural order of their names."""
    queue: tuple[Waiting, ...]
    quarantines: tuple[Quarantine, ...]
    """Those of slices that are not there now included."""
    orphans: tuple[Orphan, ...]
    """By owner."""
    growing: tuple[Growing, ...]

    def slice(self, name: str) -> SliceRow | None:
        """The slice of that name."""
        return next((row for row in self.slices if row.name == name), None)


def slices_report(
    view: BookView, strays: Iterable[StrayGroup] = (), *, has_book: bool = True
) -> SlicesReport:
    """Join what the book says with the inventory.

    Args:
        view: the inventory in it may say who is outside raytpu; see ``outsiders.with_outsiders``.
        strays: groups that no lease of the book knows.
        has_book: ``False`` when ``view`` was made up from the inventory alone.
    """
    queue = waiting_line(view)
    kept: dict[str, str] = {}
    for waiting in queue:
        for name in waiting.claims:
            kept.setdefault(name, waiting.request.owner)
    orphans = [*_orphans(view), *map(_orphan_of, strays)]
    return SlicesReport(
        has_book=has_book,
        now_s=view.now_s,
        slices=tuple(_row(state, view, kept.get(state.name)) for state in view.inventory.in_order()),
        queue=queue,
        quarantines=view.ledger.quarantines,
        orphans=tuple(sorted(orphans, key=lambda orphan: (orphan.owner, orphan.kind, orphan.id))),
        growing=view.growing,
    )


def _row(state: SliceState, view: BookView, kept_for: str | None) -> SliceRow:
    own = own_shape(state)
    alive = [host for host in state.hosts if host.answers]
    leases = [_leased(lease, planned) for lease, planned in _leases_of(state.name, view)]
    return SliceRow(
        name=state.name,
        generation=state.generation,
        topology=state.topology,
        hosts_alive=len({host.node_id if host.worker_id is None else host.worker_id for host in alive}),
        hosts=own.hosts if own is not None else len(state.hosts),
        chips_free=0
        if state.held_by is not None
        else sum(host.chips_free for host in alive if host.held_by is None),
        chips=own.chips if own is not None else sum(host.chips for host in alive),
        holders=(*leases, *_outside(state)),
        kept_for=kept_for,
        quarantined=state.quarantined,
        health=health(state),
    )


def _leases_of(slice_name: str, view: BookView) -> Iterator[tuple[Lease, PlannedSlice]]:
    for lease in view.ledger.leases:
        for planned in lease.slices:
            if planned.name == slice_name:
                yield lease, planned


def _leased(lease: Lease, planned: PlannedSlice) -> Holder:
    return Holder(
        who=lease.owner,
        part=part_text(planned),
        since_s=lease.since_s,
        lease_id=lease.id,
        state=lease.state,
        notice=lease.notice,
        gone=lease.gone_since_s is not None,
    )


def part_text(planned: PlannedSlice) -> str:
    """``2x2 on host 0``; empty when all of the slice is held."""
    if planned.whole:
        return ""
    return f"{planned.shape.topology} on {host_list(process.worker_id for process in planned.processes)}"


def _outside(state: SliceState) -> Iterator[Holder]:
    """Who is outside raytpu, once each, with its hosts when it has not all of them."""
    hosts_of: dict[Outsider, list[int | None]] = {}
    for host in state.hosts:
        for outsider in host.outsiders:
            hosts_of.setdefault(outsider, []).append(host.worker_id)
    alive = sum(host.alive for host in state.hosts)
    for outsider, hosts in hosts_of.items():
        numbers = [number for number in hosts if number is not None]
        part = host_list(numbers) if numbers and len(hosts) < alive else ""
        yield Holder(who=outsider.who, part=part, since_s=outsider.since_s, lease_id=None, state="outside")


def _orphans(view: BookView) -> Iterator[Orphan]:
    for lease in view.ledger.leases:
        if lease.id in view.orphans and lease.state != "ending":
            gone = lease.gone_since_s
            yield Orphan(
                owner=lease.owner,
                kind="lease",
                id=lease.id,
                slices=tuple(planned.name for planned in lease.slices),
                gone_since_s=gone,
                ends_s=None if gone is None else gone + lease.request.orphan_grace_s,
                may_return=lease.id in view.awaited,
            )
    for request in view.ledger.requests:
        if request.id in view.orphans:
            yield Orphan(
                owner=request.owner,
                kind="request",
                id=request.id,
                slices=(),
                may_return=request.id in view.awaited,
            )


def _orphan_of(stray: StrayGroup) -> Orphan:
    return Orphan(owner=stray.owner, kind="placement group", id=stray.name, slices=(stray.slice_name,))


def slices_document(report: SlicesReport) -> dict[str, Any]:
    """The report as JSON-ready values. Times are those of the book's clock, in seconds since 1970."""
    return {
        "book": report.has_book,
        "now_s": report.now_s,
        "slices": [_row_document(row) for row in report.slices],
        "queue": [_waiting_document(waiting) for waiting in report.queue],
        "quarantines": [asdict(each) for each in report.quarantines],
        "orphans": orphans_document(report.orphans),
        "growing": [asdict(each) for each in report.growing],
    }


def orphans_document(orphans: Sequence[Orphan]) -> list[dict[str, Any]]:
    """Orphans as JSON-ready values."""
    return [asdict(orphan) | {"slices": list(orphan.slices)} for orphan in orphans]


def _row_document(row: SliceRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "generation": row.generation,
        "topology": row.topology,
        "hosts_alive": row.hosts_alive,
        "hosts": row.hosts,
        "chips_free": row.chips_free,
        "chips": row.chips,
        "holders": [asdict(holder) for holder in row.holders],
        "kept_for": row.kept_for,
        "quarantined": row.quarantined,
        "health": {"state": row.health.state, "why": row.health.why, "fix": row.health.fix},
    }


def _waiting_document(waiting: Waiting) -> dict[str, Any]:
    request = waiting.request
    return {
        "position": waiting.position,
        "owner": request.owner,
        "id": request.id,
        "priority": request.priority,
        "wants": describe(request.want),
        "since_s": request.arrived_s,
        "deadline_s": request.deadline_s,
        "sentence": waiting.diagnosis.sentence,
    }
