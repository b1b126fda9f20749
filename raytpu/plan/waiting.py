"""The queue of a book as it stands: who waits, behind whom, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, replace

from raytpu.plan import ledger as entries
from raytpu.plan.book_view import BookView
from raytpu.plan.diagnosis import Diagnosis, describe, diagnose
from raytpu.plan.gang import GangPlan
from raytpu.plan.ledger import Lease, Request
from raytpu.plan.queue import Grant, Preempt, Recall, Refuse, Wait, decide, in_turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A request in the queue."""

    request: Request
    ahead: tuple[Request, ...]
    """Those that get their chance before it, the first one first."""
    diagnosis: Diagnosis
    """Against what those before it leave."""
    claims: tuple[str, ...]
    """Slices that nobody behind it gets."""
    served: bool = False
    """It fits: the book is about to give it ``claims``."""
    never: bool = False
    """No waiting makes it fit, and the cluster cannot grow."""
    ending_for_it: tuple[Lease, ...] = ()
    """Leases that are, or are about to be, told to end for it."""

    @property
    def position(self) -> int:
        """From 1."""
        return len(self.ahead) + 1


def waiting_line(view: BookView) -> tuple[Waiting, ...]:
    """Every request of the book, in the order in which they get their chance."""
    # The book knows whose slices the cluster can grow, and has refused what never fits: these only wait.
    return tuple(_line(view, growable={request.id for request in view.ledger.requests}))


def waiting_with(view: BookView, request: Request, *, growable: bool) -> Waiting:
    """What would become of one more request, if it came now.

    Args:
        growable: whether the cluster can bring up slices of its shape.
    """
    ledger = entries.with_request(view.ledger, request)
    ids = {each.id for each in view.ledger.requests} | ({request.id} if growable else set())
    line = _line(replace(view, ledger=ledger), growable=ids)
    return next(each for each in line if each.request.id == request.id)


def _line(view: BookView, growable: Set[str]) -> Iterator[Waiting]:
    order = in_turn(view.ledger.requests)
    place = {request.id: number for number, request in enumerate(order)}
    told: list[Lease] = []
    for decision in decide(view.ledger, view.inventory, view.now_s, growable=growable):
        match decision:
            case Preempt(lease=lease) | Recall(lease=lease):  # before the wait of the request that it is for
                told.append(lease)
            case Wait(request=request, diagnosis=diagnosis):
                yield Waiting(
                    request=request,
                    ahead=tuple(order[: place[request.id]]),
                    diagnosis=diagnosis,
                    claims=tuple(each.name for each in diagnosis.slices if each.state == "usable"),
                    ending_for_it=(*_told_before(view, request), *told),
                )
                told = []
            case Grant(request=request, plan=plan):
                yield Waiting(
                    request=request,
                    ahead=tuple(order[: place[request.id]]),
                    diagnosis=_served(view, request, plan),
                    claims=tuple(planned.name for planned in plan.slices),
                    served=True,
                )
            case Refuse(request=request, error=error):
                yield Waiting(
                    request=request,
                    ahead=tuple(order[: place[request.id]]),
                    diagnosis=Diagnosis.of(error),
                    claims=(),
                    never=view.now_s < request.deadline_s,
                )


def _told_before(view: BookView, request: Request) -> Iterator[Lease]:
    for lease in view.ledger.leases:
        if lease.notice is not None and lease.notice.by == request.owner:
            yield lease


def _served(view: BookView, request: Request, plan: GangPlan) -> Diagnosis:
    names = ", ".join(planned.name for planned in plan.slices)
    return Diagnosis(
        sentence=f"{describe(request.want)} can be had now: {names}",
        slices=diagnose(request.want, view.inventory).slices,
        next_step="",
    )
