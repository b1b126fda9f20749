"""What a run holds over its life: the slices of its gang, of one or more leases, and some in reserve.

A lease is all or none, and never grows. When slices of one are lost, what is left of it stays held, and a
further lease takes as many slices as are missing: only what broke is replaced.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from raytpu.errors import SliceLost, Unplaceable
from raytpu.gang.cluster_view import raylet_addresses
from raytpu.gang.held import HeldSlice, PreemptionNotice, held_slice
from raytpu.gang.host_health import unwell
from raytpu.gang.lease import Lease, hold
from raytpu.gang.ray_inventory import ray_inventory
from raytpu.plan import Diagnosis, GangPlan, ProcessAssignment, deal_again
from raytpu.plan.gang import gang_if_it_fits
from raytpu.spec import Slices

RESERVE_S = 3.0
"""For the book to give a slice that is idle; longer means that somebody else was first."""

HEALTH_ANSWER_S = 1.0
"""For the raylet of a host whose process is gone; it answers in 0.5 ms, within 1 s on a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """A slice as it was granted."""

    lease: Lease
    granted: HeldSlice
    dropped: list[str] = field(default_factory=list)
    """Why its owner dropped it, before the book has confirmed that."""

    @property
    def name(self) -> str:
        return self.granted.name

    @property
    def lost(self) -> str | None:
        """Why it is lost; ``None`` while it is held."""
        return self.lease.lost.get(self.name, next(iter(self.dropped), None))


class Holding:
    """Holds ``want`` for a run, whole, and what takes the place of slices that are lost.

    Nothing is held before ``fill``. As a context manager everything is released at the end of the block.
    Methods may be called from any thread; ``fill`` from one at a time.

    Args:
        want: the slices of the gang.
        owner, priority, save_s, silence_s, waiting, alive: as for ``raytpu.gang.hold``.
        hold_s: for each ``fill``, from asking to holding.
    """

    def __init__(
        self,
        want: Slices,
        *,
        owner: str,
        hold_s: float,
        priority: int,
        save_s: float,
        silence_s: float,
        waiting: Callable[[Diagnosis], None],
        alive: Callable[[], None],
    ) -> None:
        self._want, self._owner, self._hold_s = want, owner, hold_s
        self._priority, self._save_s, self._silence_s = priority, save_s, silence_s
        self._waiting, self._alive = waiting, alive
        self._lock, self._reserving = threading.Lock(), threading.Lock()
        self._gang: list[_Part] = []
        self._spares: list[_Part] = []

    # -- what is held ----------------------------------------------------------------------------------

    @property
    def plan(self) -> GangPlan:
        """The gang: survivors in their order, then what came later, dealt as one."""
        with self._lock:
            planned = [part.granted.planned for part in self._gang]
            simulated = self._gang[0].lease.plan.simulated
        return deal_again(planned, simulated=simulated)

    @property
    def slices(self) -> tuple[HeldSlice, ...]:
        """The slices of the gang with their places in it."""
        with self._lock:
            groups = {part.name: part.granted.placement_group.id.binary() for part in self._gang}
        return tuple(held_slice(planned, groups[planned.name]) for planned in self.plan.slices)

    @property
    def spares(self) -> tuple[HeldSlice, ...]:
        """Slices in reserve; their places in a gang mean nothing yet."""
        with self._lock:
            return tuple(part.granted for part in self._spares if part.lost is None)

    @property
    def lost(self) -> Mapping[str, str]:
        """Reason by name of each slice of the gang that is lost and not replaced."""
        with self._lock:
            gang = list(self._gang)
        return {part.name: reason for part in gang if (reason := part.lost) is not None}

    @property
    def notice(self) -> PreemptionNotice | None:
        """The announcement that slices of the gang go to somebody of higher priority."""
        return next((lease.notice for lease in self._leases(self._gang) if lease.notice is not None), None)

    def check(self) -> None:
        """Raise when the gang is no longer held whole. Spares that somebody else needs are given up here.

        Raises:
            SliceLost: naming the slices and why; the others are still held.
            LeaseEnded: slices were taken back, or the book is gone for good.
        """
        if lost := self.lost:
            raise SliceLost(lost)
        for lease in self._leases(self._gang):
            lease.check(known=lease.lost)
        self._give_up_spares()

    # -- what the owner says ---------------------------------------------------------------------------

    def drop(self, host: ProcessAssignment, reason: str) -> None:
        """This host is of no use any more: its whole slice, a spare too, is dropped at once."""
        part = self._part_of(host)
        if part is not None:
            part.dropped.append(f"{host.host}: {reason}")
            part.lease.report_lost(host, reason)

    def report_failed_start(self, host: ProcessAssignment, reason: str) -> None:
        """See ``Lease.report_failed_start``."""
        part = self._part_of(host)
        if part is not None:
            part.lease.report_failed_start(host, reason)

    def report_started(self) -> None:
        """See ``Lease.report_started``."""
        for lease in self._leases(self._gang):
            lease.report_started()

    # -- taking and giving back ------------------------------------------------------------------------

    def fill(self) -> None:
        """Hold the gang whole: what is lost is forgotten, and spares or a further lease take its place.

        Slices that are lost meanwhile are replaced as well; one deadline counts for all of it.

        Raises:
            Unplaceable, DeadlineExceeded, LeaseEnded: as ``raytpu.gang.hold``.
        """
        until = time.monotonic() + self._hold_s
        while missing := self._missing_after_spares():
            try:
                lease = hold(
                    self._further(missing),
                    owner=self._owner,
                    timeout_s=max(0.0, until - time.monotonic()),
                    priority=self._priority,
                    save_s=self._save_s,
                    silence_s=self._silence_s,
                    waiting=self._waiting,
                    alive=self._alive_and_whole,
                )
            except SliceLost:  # one more; the request for the others is taken back
                continue
            with self._lock:
                self._gang += _parts(lease)

    def reserve(self, count: int, alive: Callable[[], None]) -> None:
        """Hold up to ``count`` slices beside the gang, as many as are idle now; nobody is asked to leave.

        Args:
            alive: called about twice a second while waiting; may raise to end the wait.
        """
        with self._reserving:  # or two that want one each take one too many
            self._reserve(count, alive)

    def _reserve(self, count: int, alive: Callable[[], None]) -> None:
        self._give_up_spares()
        missing = count - len(self.spares)
        inventory = ray_inventory() if missing > 0 else None
        while inventory is not None and missing > 0:
            # One lease each: a spare that joins the gang leaves nothing behind that is tied to it.
            want = self._further(1)
            if gang_if_it_fits(want, inventory) is None:
                return
            try:
                lease = hold(
                    want,
                    owner=self._owner,
                    timeout_s=RESERVE_S,
                    priority=self._priority,
                    save_s=self._save_s,
                    silence_s=self._silence_s,
                    alive=alive,
                )
            except Unplaceable:  # somebody was faster
                return
            with self._lock:
                self._spares += _parts(lease)
            missing -= 1

    def release(self) -> None:
        """Give everything back. Releasing twice is not an error."""
        with self._lock:
            leases = _leases_of([*self._gang, *self._spares])
            self._gang, self._spares = [], []
        for lease in leases:
            lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    # -- inside ----------------------------------------------------------------------------------------

    def _alive_and_whole(self) -> None:
        self._alive()
        self.check()

    def _missing_after_spares(self) -> int:
        """How many slices the gang lacks once the lost are forgotten and the spares have joined."""
        with self._lock:
            before = _leases_of([*self._gang, *self._spares])
            self._gang = [part for part in self._gang if part.lost is None]
            self._spares = [part for part in self._spares if part.lost is None and part.lease.notice is None]
            missing = self._want.count - len(self._gang)
            joining, self._spares = self._spares[:missing], self._spares[missing:]
            self._gang += joining
            after = _leases_of([*self._gang, *self._spares])
            missing = self._want.count - len(self._gang)
        for lease in before:
            if lease not in after:
                lease.release()
        return missing

    def _give_up_spares(self) -> None:
        """A spare that is lost is forgotten; one that somebody needs is given back before its notice ends."""
        with self._lock:
            gone = [part for part in self._spares if part.lost is not None or part.lease.notice is not None]
            self._spares = [part for part in self._spares if part not in gone]
        for part in gone:
            part.lease.release()

    def _further(self, count: int) -> Slices:
        with self._lock:
            held = {part.name for part in [*self._gang, *self._spares]}
        return further_slices(self._want, count, held)

    def _leases(self, parts: Sequence[_Part]) -> list[Lease]:
        with self._lock:
            return _leases_of(parts)

    def _part_of(self, host: ProcessAssignment) -> _Part | None:
        with self._lock:
            parts = [*self._gang, *self._spares]
            return next((part for part in parts if part.name == host.slice_name), None)


def _parts(lease: Lease) -> list[_Part]:
    return [_Part(lease=lease, granted=granted) for granted in lease.slices]


def _leases_of(parts: Sequence[_Part]) -> list[Lease]:
    return list(dict.fromkeys(part.lease for part in parts))


def further_slices(want: Slices, count: int, held: Set[str]) -> Slices:
    """``count`` more slices like those that are wanted, none of them one of ``held``, which belong to it."""
    exclude = [*want.exclude, *sorted(held)]
    if want.same_zone and held:
        exclude += _other_zones(held)
    return want.model_copy(update={"count": count, "min_count": None, "exclude": tuple(exclude)})


def _other_zones(held: Set[str]) -> list[str]:
    """Slices that stand elsewhere than those that are held."""
    slices = ray_inventory().slices
    zones = {state.zone for state in slices if state.name in held}
    return [state.name for state in slices if state.zone not in zones]


def unwell_hosts(hosts: Sequence[ProcessAssignment]) -> dict[str, str]:
    """Ask the raylet of each host once: the reason, by name of the host, of those that are not well."""
    raylets = raylet_addresses()
    known = {host.node_id: raylets[host.node_id] for host in hosts if host.node_id in raylets}
    reasons = unwell(known, HEALTH_ANSWER_S)
    found = {}
    for host in hosts:
        if host.node_id not in known:
            found[host.host] = "Ray counts its node as dead"
        elif host.node_id in reasons:
            found[host.host] = reasons[host.node_id]
    return found
