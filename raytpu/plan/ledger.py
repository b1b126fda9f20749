"""The book of slices as data: who waits, who holds what, what is under quarantine. Pure.

A ledger never changes; each function below returns the next one. ``plan.queue`` decides on it, the book
actor in ``gang`` acts on the decisions and keeps the ledger where a restarted book finds it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from raytpu.plan.gang import GangPlan, PlannedSlice
from raytpu.spec import Slices


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A wish for slices, and what its owner declared about holding them. Times by the book's clock."""

    id: str
    """Unique; whoever knows it can take the lease over from an owner that is gone."""
    owner: str
    """In words for a person, such as the name of a run."""
    want: Slices
    arrived: int
    """Place in the order of arrival; kept when the book restarts or the slices could not be placed."""
    arrived_s: float
    deadline_s: float
    """Until when the owner waits."""
    priority: int = 0
    """Band in the queue; a higher one goes first and may preempt."""
    save_s: float = 30.0
    """Time between a notice of preemption and its end, in which the owner can save."""
    orphan_grace_s: float = 0.0
    """How long the lease outlives its owner; until then a successor can take it over."""
    silence_s: float = 10.0
    """Silence after which an owner whose connection stands counts as gone."""
    job: str = ""
    """Ray job that the owner belongs to, in hex."""
    tries: int = 0
    """How often it was granted slices that Ray then did not give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A preemption that was announced to the holder."""

    by: str
    """Owner of the request that needs the slices."""
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to whole slices, or to parts of them; all were granted at once."""

    request: Request
    slices: tuple[PlannedSlice, ...]
    """What is still held; a lost slice leaves this tuple."""
    simulated: bool
    since_s: float
    state: Literal["placing", "held", "ending"] = "placing"
    """``placing``: granted, and Ray is asked for the hosts. ``ending``: over, and Ray takes them back."""
    recalled: bool = False
    """Ending before its owner has heard of it: its request waits again when Ray has the hosts back."""
    notice: Notice | None = None
    gone_since_s: float | None = None
    """When the owner ended or fell silent; ``None`` while it is there."""
    lost: tuple[tuple[str, str], ...] = ()
    """Slices lost from this lease, each with the reason."""

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def owner(self) -> str:
        return self.request.owner

    @property
    def plan(self) -> GangPlan:
        return GangPlan(slices=self.slices, simulated=self.simulated)

    def holds(self, slice_name: str) -> bool:
        return any(planned.name == slice_name for planned in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A slice that nobody gets until somebody lifts it."""

    slice_name: str
    reason: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailures:
    """How often in a row a host failed to start a job's process."""

    slice_name: str
    host: str
    times: int


START_FAILURES_TO_QUARANTINE = 3
"""By feel: once may be the job, twice bad luck; the third job in a row that a host fails is the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Everything that a book must not forget."""

    requests: tuple[Request, ...] = ()
    """Those that wait, in the order of arrival."""
    leases: tuple[Lease, ...] = ()
    """In the order in which they were granted."""
    quarantines: tuple[Quarantine, ...] = ()
    failures: tuple[StartFailures, ...] = ()
    next_arrival: int = 1

    def request(self, request_id: str) -> Request | None:
        return next((each for each in self.requests if each.id == request_id), None)

    def lease(self, lease_id: str) -> Lease | None:
        return next((each for each in self.leases if each.id == lease_id), None)

    def holders(self, slice_name: str) -> Iterator[Lease]:
        """Leases that hold the slice or a part of it."""
        return (lease for lease in self.leases if lease.holds(slice_name))


# -- the queue -------------------------------------------------------------------------------------------


def with_request(ledger: Ledger, request: Request) -> Ledger:
    """``request`` at the end of the queue, with the next number of arrival. Twice is once."""
    if ledger.request(request.id) is not None or ledger.lease(request.id) is not None:
        return ledger
    numbered = replace(request, arrived=ledger.next_arrival)
    return replace(ledger, requests=(*ledger.requests, numbered), next_arrival=ledger.next_arrival + 1)


def without_request(ledger: Ledger, request_id: str) -> Ledger:
    """The queue without a request; an unknown one changes nothing."""
    return replace(ledger, requests=tuple(each for each in ledger.requests if each.id != request_id))


# -- leases ----------------------------------------------------------------------------------------------


def granted(ledger: Ledger, request_id: str, plan: GangPlan, now_s: float) -> Ledger:
    """The request has become a lease that is being placed.

    Raises:
        ValueError: no such request waits, or a host of the plan is held: a bug of the book's.
    """
    request = ledger.request(request_id)
    if request is None:
        raise ValueError(f"no request {request_id} waits")
    for planned in plan.slices:
        for holder in ledger.holders(planned.name):
            if overlap(planned, next(each for each in holder.slices if each.name == planned.name)):
                raise ValueError(f"{planned.name} would be held twice: by {holder.owner} and {request.owner}")
    lease = Lease(request=request, slices=plan.slices, simulated=plan.simulated, since_s=now_s)
    return replace(without_request(ledger, request_id), leases=(*ledger.leases, lease))


def overlap(one: PlannedSlice, other: PlannedSlice) -> bool:
    """Whether two parts of a slice need more chips of some host than it has."""
    chips_of_host = one.of.chips_per_host
    used = {process.worker_id: process.chips for process in other.processes}
    return any(
        used.get(process.worker_id, 0) + process.chips > chips_of_host
        for process in one.processes
        if process.worker_id in used
    )


def placed(ledger: Ledger, lease_id: str, now_s: float) -> Ledger:
    """Ray has given every host of the lease."""
    return _changed(ledger, lease_id, lambda lease: replace(lease, state="held", since_s=now_s))


def unplaced(ledger: Ledger, lease_id: str) -> Ledger:
    """Ray did not give the hosts: the request waits again, at the place in the queue that it had."""
    lease = ledger.lease(lease_id)
    if lease is None:
        return ledger
    return _requeued(ledger, lease, replace(lease.request, tries=lease.request.tries + 1))


def _requeued(ledger: Ledger, lease: Lease, request: Request) -> Ledger:
    """The lease has become a request again; an owner that is gone waits for nothing."""
    after = without_lease(ledger, lease.id)
    if lease.gone_since_s is not None:
        return after
    waiting = sorted((*ledger.requests, request), key=lambda each: each.arrived)
    return replace(after, requests=tuple(waiting))


def ending(ledger: Ledger, lease_id: str) -> Ledger:
    """The lease is over, and its slices come back; an unknown one changes nothing."""
    return _changed(ledger, lease_id, lambda lease: replace(lease, state="ending", recalled=False))


def recalled(ledger: Ledger, lease_id: str) -> Ledger:
    """The grant is taken back before its owner has heard of it."""
    return _changed(ledger, lease_id, lambda lease: replace(lease, state="ending", recalled=True))


def given_back(ledger: Ledger, lease_id: str) -> Ledger:
    """Ray has every host of an ending lease: it is gone, or its request waits again."""
    lease = ledger.lease(lease_id)
    if lease is not None and lease.recalled:
        return _requeued(ledger, lease, lease.request)
    return without_lease(ledger, lease_id)


def without_lease(ledger: Ledger, lease_id: str) -> Ledger:
    """Nothing of the lease is held any more; an unknown one changes nothing."""
    return replace(ledger, leases=tuple(each for each in ledger.leases if each.id != lease_id))


def slice_lost(ledger: Ledger, lease_id: str, slice_name: str, reason: str) -> Ledger:
    """The lease goes on without a slice; without its last one it is over."""

    def drop(lease: Lease) -> Lease:
        kept = tuple(planned for planned in lease.slices if planned.name != slice_name)
        return replace(lease, slices=kept, lost=(*lease.lost, (slice_name, reason)))

    after = _changed(ledger, lease_id, drop)
    lease = after.lease(lease_id)
    return without_lease(after, lease_id) if lease is not None and not lease.slices else after


def noticed(ledger: Ledger, lease_id: str, notice: Notice) -> Ledger:
    """A preemption was announced; a second one changes nothing."""
    return _changed(
        ledger, lease_id, lambda lease: replace(lease, notice=notice) if lease.notice is None else lease
    )


def owner_gone(ledger: Ledger, lease_id: str, now_s: float) -> Ledger:
    """The owner ended or fell silent; the time of the first word counts."""
    return _changed(
        ledger,
        lease_id,
        lambda lease: replace(lease, gone_since_s=now_s) if lease.gone_since_s is None else lease,
    )


def owner_back(ledger: Ledger, lease_id: str) -> Ledger:
    """The owner, or a successor that knows the lease's id, is there."""
    return _changed(ledger, lease_id, lambda lease: replace(lease, gone_since_s=None))


def _changed(ledger: Ledger, lease_id: str, change: Callable[[Lease], Lease]) -> Ledger:
    return replace(
        ledger, leases=tuple(change(each) if each.id == lease_id else each for each in ledger.leases)
    )


# -- quarantine ------------------------------------------------------------------------------------------


def quarantined(ledger: Ledger, quarantine: Quarantine) -> Ledger:
    """Nobody gets the slice any more; whoever holds it keeps it. The first reason counts."""
    if any(each.slice_name == quarantine.slice_name for each in ledger.quarantines):
        return ledger
    return replace(ledger, quarantines=(*ledger.quarantines, quarantine))


def lifted(ledger: Ledger, slice_name: str) -> Ledger:
    """The slice can be had again, and its hosts begin with a clean record."""
    return replace(
        ledger,
        quarantines=tuple(each for each in ledger.quarantines if each.slice_name != slice_name),
        failures=tuple(each for each in ledger.failures if each.slice_name != slice_name),
    )


def start_failed(ledger: Ledger, slice_name: str, host: str, reason: str, now_s: float) -> Ledger:
    """One more failed start of ``host``; at the limit its slice is put under quarantine."""
    before = next((each.times for each in ledger.failures if each.host == host), 0)
    counted = StartFailures(slice_name=slice_name, host=host, times=before + 1)
    others = tuple(each for each in ledger.failures if each.host != host)
    after = replace(ledger, failures=(*others, counted))
    if counted.times < START_FAILURES_TO_QUARANTINE:
        return after
    why = f"host {host} failed to start {counted.times} times in a row; last: {reason}"
    return quarantined(after, Quarantine(slice_name=slice_name, reason=why, since_s=now_s))


def started_well(ledger: Ledger, slice_name: str) -> Ledger:
    """Every host of the slice has started a process: what failed before is forgotten."""
    if not any(each.slice_name == slice_name for each in ledger.failures):
        return ledger
    return replace(ledger, failures=tuple(each for each in ledger.failures if each.slice_name != slice_name))
