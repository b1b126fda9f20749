"""What the book of slices does next: who gets slices, who is preempted, who is refused. Pure.

The rule of the queue:

* Higher priority goes first; within a band, who came first.
* A request that cannot be placed now *claims* every idle slice that it could use. A later request gets none
  of those, so it can pass only on slices that no earlier request could use: it delays nobody.
* A blocked request may preempt leases of a lower priority, whole ones only and only if that makes it fit: one
  lease if one is enough, else as few as the search below finds; lowest priority first, youngest first. Each
  holder gets a notice and the time to save that it declared; then its lease ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

from raytpu.errors import Unplaceable
from raytpu.plan.diagnosis import Diagnosis, never_fits
from raytpu.plan.gang import GangPlan, plan_gang
from raytpu.plan.inventory import Inventory
from raytpu.plan.ledger import Lease, Ledger, Notice, Request
from raytpu.plan.occupancy import kept_for, with_holder, without_holder


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The request gets these slices."""

    request: Request
    plan: GangPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """The request ends without slices: its deadline has passed, or it can never fit."""

    request: Request
    error: Unplaceable


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The request waits on; ``ahead`` others go before it."""

    request: Request
    diagnosis: Diagnosis
    ahead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    """The holder is told that its lease ends."""

    lease: Lease
    notice: Notice


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The lease ends now, whatever its owner thinks."""

    lease: Lease
    reason: str


Decision = Grant | Refuse | Wait | Preempt | End


def decide(
    ledger: Ledger, inventory: Inventory, now_s: float, *, growable: Set[str] = frozenset()
) -> list[Decision]:
    """Everything to do now, in the order in which to do it.

    Args:
        ledger: as it is.
        inventory: of the cluster, with the marks of ``seen_with``.
        now_s: by the book's clock.
        growable: ids of requests for whose slices the cluster can grow; those are not refused before their
            deadline for never fitting.
    """
    ending = list(_ending(ledger, now_s))
    return ending + _Queue(ledger, inventory, now_s, growable).decisions()


def _ending(ledger: Ledger, now_s: float) -> Iterator[End]:
    for lease in ledger.leases:
        if lease.state == "ending":
            continue
        if lease.notice is not None and now_s >= lease.notice.until_s:
            yield End(lease=lease, reason=f"preempted by {lease.notice.by}")
        elif lease.gone_since_s is not None and now_s >= lease.gone_since_s + lease.request.orphan_grace_s:
            yield End(lease=lease, reason="its owner is gone")


def in_turn(requests: tuple[Request, ...]) -> list[Request]:
    """The order in which requests get their chance."""
    return sorted(requests, key=lambda request: (-request.priority, request.arrived))


class _Queue:
    """One pass over the queue.

    ``now`` is what can be had at once; ``soon`` has in addition the slices of leases that were told to end.
    Both shrink as earlier requests take or claim slices.
    """

    def __init__(self, ledger: Ledger, inventory: Inventory, now_s: float, growable: Set[str]) -> None:
        self._ledger, self._now_s, self._growable = ledger, now_s, growable
        self._now = inventory
        told = {lease.id for lease in ledger.leases if lease.notice is not None or lease.state == "ending"}
        self._soon = _without_leases(inventory, ledger, told)
        self._told = told

    def decisions(self) -> list[Decision]:
        found: list[Decision] = []
        for ahead, request in enumerate(in_turn(self._ledger.requests)):
            found += self._decide(request, ahead)
        return found

    def _decide(self, request: Request, ahead: int) -> list[Decision]:
        try:
            plan = plan_gang(request.want, self._now)
        except Unplaceable as refusal:
            return self._blocked(request, ahead, refusal)
        self._take(plan, request)
        return [Grant(request=request, plan=plan)]

    def _blocked(self, request: Request, ahead: int, refusal: Unplaceable) -> list[Decision]:
        if self._now_s >= request.deadline_s:
            return [Refuse(request=request, error=refusal)]
        if request.id not in self._growable:
            never = never_fits(request.want, self._now)
            if never is not None:
                return [Refuse(request=request, error=never)]
        diagnosis = Diagnosis.of(refusal)
        victims = self._victims(request)
        usable = [verdict.name for verdict in diagnosis.slices if verdict.state == "usable"]
        self._now = kept_for(self._now, usable, request.owner)
        notices: list[Decision] = [
            Preempt(
                lease=lease,
                notice=Notice(by=request.owner, until_s=self._now_s + lease.request.save_s),
            )
            for lease in victims
        ]
        return [*notices, Wait(request=request, diagnosis=diagnosis, ahead=ahead)]

    def _victims(self, request: Request) -> list[Lease]:
        """Leases to end for ``request``, and its claim on what it will have then."""
        plan = _plan_or_none(request, self._soon)
        victims: list[Lease] = []
        if plan is None:
            victims = self._fewest(request)
            if not victims:
                return []
            self._told |= {lease.id for lease in victims}
            self._soon = _without_leases(self._soon, self._ledger, {lease.id for lease in victims})
            plan = plan_gang(request.want, self._soon)
        self._soon = kept_for(self._soon, [planned.name for planned in plan.slices], request.owner)
        return victims

    def _fewest(self, request: Request) -> list[Lease]:
        """Whole leases of lower priority whose end makes ``request`` fit; none when nothing does."""
        lower = [
            lease
            for lease in self._ledger.leases
            if lease.request.priority < request.priority and lease.id not in self._told
        ]
        lower.sort(key=lambda lease: (lease.request.priority, -lease.since_s, lease.id))
        if _plan_or_none(request, self._without(lower)) is None:
            return []
        for lease in lower:
            if _plan_or_none(request, self._without([lease])) is not None:
                return [lease]
        # Spare one lease after the other, the highest and oldest first, while the rest is still enough.
        needed = lower
        for lease in reversed(lower):
            rest = [each for each in needed if each is not lease]
            if _plan_or_none(request, self._without(rest)) is not None:
                needed = rest
        return needed

    def _without(self, leases: list[Lease]) -> Inventory:
        return _without_leases(self._soon, self._ledger, {lease.id for lease in leases})

    def _take(self, plan: GangPlan, request: Request) -> None:
        for planned in plan.slices:
            self._now = with_holder(self._now, planned, request.owner)
            self._soon = with_holder(self._soon, planned, request.owner)


def _without_leases(inventory: Inventory, ledger: Ledger, lease_ids: set[str]) -> Inventory:
    """The inventory as it would be without these leases."""
    for lease in ledger.leases:
        if lease.id in lease_ids:
            for planned in lease.slices:
                inventory = without_holder(inventory, planned)
    return inventory


def _plan_or_none(request: Request, inventory: Inventory) -> GangPlan | None:
    try:
        return plan_gang(request.want, inventory)
    except Unplaceable:
        return None
