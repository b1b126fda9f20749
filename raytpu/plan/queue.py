"""What the book of slices does next: who gets slices, who is preempted, who is refused. Pure.

The rule of the queue:

* Higher priority goes first; within a band, who came first.
* A request that cannot be placed now *claims* every slice that it could use and that nobody holds whole: the
  idle ones, and what is left of those that are divided among others. A later request gets nothing of these,
  so it can pass only on slices that no earlier request could use: it delays nobody.
* A blocked request may preempt leases of a lower priority, whole ones only and only if that makes it fit: one
  lease if one is enough, else as few as the search below finds; lowest priority first, youngest first. Each
  holder gets a notice and the time to save that it declared; then its lease ends. A notice is final: whoever
  got it may have stopped its work by the time that the slices are no longer needed. What Ray has not yet
  given to its holder is taken back at once, and waits again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from itertools import islice

from raytpu.errors import Unplaceable
from raytpu.plan.choice import choose, wish
from raytpu.plan.diagnosis import Diagnosis, never_fits, not_given
from raytpu.plan.gang import GangPlan, gang_if_it_fits, plan_gang
from raytpu.plan.inventory import Inventory
from raytpu.plan.ledger import Lease, Ledger, Notice, Request
from raytpu.plan.occupancy import kept_for, with_holder, without_holder

TRIES = 64
"""Leases that are looked at one by one when somebody is to be preempted, each for a few milliseconds."""


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
class Recall:
    """A grant of which the holder has not heard is taken back; its request waits again."""

    lease: Lease
    by: str
    """Owner of the request that needs the slices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The lease ends now, whatever its owner thinks."""

    lease: Lease
    reason: str


Decision = Grant | Refuse | Wait | Preempt | Recall | End


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
            # Only an owner that comes back reads it. One that has ended was silent as well.
            silent_s = lease.request.silence_s + lease.request.orphan_grace_s
            reason = f"their owner was silent for more than {silent_s:g} s (deadlines.orphan_grace_s)"
            yield End(lease=lease, reason=reason)


def in_turn(requests: tuple[Request, ...]) -> list[Request]:
    """The order in which requests get their chance."""
    return sorted(requests, key=lambda request: (-request.priority, request.arrived))


class _Queue:
    """One pass over the queue.

    ``now`` is what can be had at once; ``soon`` is what will be left when the leases that were told to end
    are gone. Both shrink as earlier requests take or claim slices.
    """

    def __init__(self, ledger: Ledger, inventory: Inventory, now_s: float, growable: Set[str]) -> None:
        self._ledger, self._now_s, self._growable = ledger, now_s, growable
        self._now = self._held = inventory
        self._told = {
            lease.id for lease in ledger.leases if lease.notice is not None or lease.state == "ending"
        }
        self._blocked: list[Request] = []
        self._soon, self._served = self._later(self._told)

    def decisions(self) -> list[Decision]:
        found: list[Decision] = []
        for ahead, request in enumerate(in_turn(self._ledger.requests)):
            found += self._decide(request, ahead)
        return found

    def _decide(self, request: Request, ahead: int) -> list[Decision]:
        try:
            plan = plan_gang(request.want, self._now)
        except Unplaceable as refusal:
            return self._wait(request, ahead, refusal)
        if (
            request.tries and self._now_s >= request.deadline_s
        ):  # one that was not tried may take what is there
            why = not_given(request.want, self._now, request.tries)
            return [Refuse(request=request, error=why.refusal())]
        self._now, self._held, self._soon = (
            _with_plan(inventory, plan, request) for inventory in (self._now, self._held, self._soon)
        )
        return [Grant(request=request, plan=plan)]

    def _wait(self, request: Request, ahead: int, refusal: Unplaceable) -> list[Decision]:
        if self._now_s >= request.deadline_s:
            return [Refuse(request=request, error=refusal)]
        if request.id not in self._growable:
            never = never_fits(request.want, self._now)
            if never is not None:
                return [Refuse(request=request, error=never)]
        self._now = _claimed(self._now, request)
        self._blocked.append(request)
        after, served = _passed([request], self._soon)
        victims = [] if served else self._fewest(request)
        if victims:
            self._told |= {lease.id for lease in victims}
            self._soon, self._served = self._later(self._told)
        else:
            self._soon, self._served = after, self._served | served
        notices = [self._notice(lease, request) for lease in victims]
        return [*notices, Wait(request=request, diagnosis=Diagnosis.of(refusal), ahead=ahead)]

    def _notice(self, lease: Lease, request: Request) -> Preempt | Recall:
        if lease.state == "placing":
            return Recall(lease=lease, by=request.owner)
        until_s = self._now_s + lease.request.save_s
        return Preempt(lease=lease, notice=Notice(by=request.owner, until_s=until_s))

    def _fewest(self, request: Request) -> list[Lease]:
        """Whole leases of lower priority whose end makes ``request`` fit; none when nothing does.

        Exact while there are few to choose from; of hundreds, ``TRIES`` bounds how many are tried one by one.
        """
        lower = [
            lease
            for lease in self._ledger.leases
            if lease.request.priority < request.priority and lease.id not in self._told
        ]
        lower.sort(key=lambda lease: (lease.request.priority, -lease.since_s, lease.id))
        if not lower or not self._enough(request, lower):
            return []
        for lease in islice(self._single(request, lower), TRIES):
            if self._enough(request, [lease]):
                return [lease]
        # Of those who go first, as few as are enough together.
        number = bisect_left(
            range(len(lower)), True, key=lambda last: self._enough(request, lower[: last + 1])
        )
        needed = lower[: number + 1]
        if not self._enough(request, needed):
            needed = lower
        # Spare one lease after the other, the highest and oldest first, while the rest is still enough.
        for lease in needed[: -TRIES - 1 : -1]:
            rest = [each for each in needed if each is not lease]
            if self._enough(request, rest):
                needed = rest
        return needed

    def _single(self, request: Request, leases: list[Lease]) -> Iterator[Lease]:
        """Those that have as many slices that would do as are lacking."""
        wished = wish(request.want, self._soon)
        lacking = request.want.least - len(choose(wished, self._soon.in_order()))
        states = {state.name: state for state in self._soon.slices}
        for lease in leases:
            known = [states[planned.name] for planned in lease.slices if planned.name in states]
            fitting = [state for state in known if any(wished.fits(state, shape) for shape in wished.shapes)]
            if len(fitting) >= lacking:
                yield lease

    def _enough(self, request: Request, leases: list[Lease]) -> bool:
        """Whether ``request`` is served once these leases are gone as well, and still everybody before it."""
        _, served = self._later(self._told | {lease.id for lease in leases})
        return self._served | {request.id} <= served

    def _later(self, gone: Set[str]) -> tuple[Inventory, Set[str]]:
        """What is left when these leases are gone and the blocked requests have had their turn; whom of them
        it serves."""
        return _passed(self._blocked, _without_leases(self._held, self._ledger, gone))


def _passed(requests: Iterable[Request], inventory: Inventory) -> tuple[Inventory, Set[str]]:
    """What is left of an inventory when each request has taken or claimed its slices; who has taken."""
    served = set()
    for request in requests:
        plan = gang_if_it_fits(request.want, inventory)
        if plan is None:
            inventory = _claimed(inventory, request)
        else:
            inventory = _with_plan(inventory, plan, request)
            served.add(request.id)
    return inventory, served


def _with_plan(inventory: Inventory, plan: GangPlan, request: Request) -> Inventory:
    return with_holder(inventory, plan.slices, request.owner)


def _claimed(inventory: Inventory, request: Request) -> Inventory:
    wished = wish(request.want, inventory)
    names = [state.name for state in inventory.slices if wished.claims(state)]
    return kept_for(inventory, names, request.owner)


def _without_leases(inventory: Inventory, ledger: Ledger, lease_ids: Set[str]) -> Inventory:
    """The inventory as it would be without these leases."""
    gone = [lease for lease in ledger.leases if lease.id in lease_ids]
    return without_holder(inventory, [planned for lease in gone for planned in lease.slices])
