"""The placement groups of each lease, taken and given back beside the book's own turn."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup

from raytpu.errors import Refused
from raytpu.gang import placement
from raytpu.gang.cluster_view import ClusterView
from raytpu.gang.host_health import HostHealth
from raytpu.plan import ledger as entries
from raytpu.plan.ledger import Lease, Ledger

ASK_S = 2.0
"""For the raylets of chosen slices to answer before Ray is asked to place anything on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Ray's answer to a grant: held, or not; and hosts, by node id, that were found not to answer."""

    lease_id: str
    held: bool
    unwell: Mapping[str, str]
    refusal: Refused | None = None
    """Why it cannot be held at all, on whichever slices; nothing of it is held."""


@dataclass(frozen=True, slots=True)
class Removed:
    """Ray has back every host of a lease that has ended."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Ray raised where nothing was expected: what is held is not known any more.

    Only the start of a book, which compares Ray's groups with the ledger, finds out. Not for a placement that
    was refused before Ray had it, or whose groups are removed again: of those it is known.
    """

    error: BaseException


class Holdings:
    """Places and removes in a few threads, in order for each lease; each result comes back as an event.

    Args:
        report: called with ``Placed``, ``Removed`` and ``Failed``, from a thread of the pool.
    """

    def __init__(self, report: Callable[[Any], None]) -> None:
        self._report = report
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="book-work")
        self._groups: dict[str, dict[str, PlacementGroup]] = {}
        self._last: dict[str, Future[None]] = {}
        self._unwanted: set[str] = set()
        """Leases that end while they are being placed."""
        self._lock = threading.Lock()
        self._health, self._health_lock = HostHealth(), threading.Lock()

    def ids_of(self, lease_id: str) -> dict[str, bytes]:
        """Id of the placement group of each slice of a lease."""
        with self._lock:
            return {name: group.id.binary() for name, group in self._groups.get(lease_id, {}).items()}

    def place(self, lease: Lease, view: ClusterView) -> None:
        """Ask the hosts whether they are well, then Ray for all of them."""
        with self._lock:
            self._unwanted.discard(lease.id)
        self._submit(lease.id, partial(self._place, lease, view))

    def drop(self, lease_id: str, slice_name: str) -> None:
        """Give one slice of a lease back; whatever runs on it ends."""
        with self._lock:
            group = self._groups.get(lease_id, {}).pop(slice_name, None)
        if group is not None:
            self._submit(lease_id, partial(placement.remove, [group]))

    def remove(self, lease_id: str) -> None:
        """Give everything of a lease back; what is being placed is given up."""
        with self._lock:
            self._unwanted.add(lease_id)
        self._submit(lease_id, partial(self._remove, lease_id))

    def reconcile(self, ledger: Ledger) -> Ledger:
        """Make the ledger of an earlier book and Ray's placement groups agree, when a book starts.

        What was being placed goes back to the queue; groups that no lease knows are removed; a held lease
        loses the slices whose group is gone.
        """
        groups: dict[str, dict[str, placement.OurGroup]] = {}
        for ours in placement.our_groups():
            groups.setdefault(ours.lease_id, {})[ours.slice_name] = ours
        unclaimed = []
        for lease_id, by_slice in groups.items():
            lease = ledger.lease(lease_id)
            for slice_name, ours in by_slice.items():
                if (lease is not None and lease.state == "held" and lease.holds(slice_name)) or (
                    lease is not None and lease.state == "ending"
                ):
                    self._groups.setdefault(lease_id, {})[slice_name] = ours.group
                else:
                    unclaimed.append(ours.group)
        placement.remove(unclaimed)
        for lease in ledger.leases:
            if lease.state == "placing":
                ledger = entries.unplaced(ledger, lease.id)
            elif lease.state == "held":
                for planned in lease.slices:
                    if planned.name not in groups.get(lease.id, {}):
                        reason = "its placement group was gone when the book restarted"
                        ledger = entries.slice_lost(ledger, lease.id, planned.name, reason)
        return ledger

    def _submit(self, lease_id: str, work: Callable[[], None]) -> None:
        """Do ``work`` after what was asked for this lease before: no removal may pass a placement."""
        with self._lock:
            mine = self._last[lease_id] = self._pool.submit(self._do, self._last.get(lease_id), work)
        mine.add_done_callback(lambda _: self._forget(lease_id, mine))

    def _do(self, before: Future[None] | None, work: Callable[[], None]) -> None:
        try:
            if before is not None:
                before.result()  # it has a thread, or has ended: it was submitted first
            work()
        except BaseException as error:  # boundary of the pool: raised again in the book's own thread
            self._report(Failed(error))

    def _forget(self, lease_id: str, done: Future[None]) -> None:
        with self._lock:
            if self._last.get(lease_id) is done:
                del self._last[lease_id]

    def _place(self, lease: Lease, view: ClusterView) -> None:
        unwell = self._unwell(lease, view)
        patience_s = placement.patience_s(lease.request, time.time())
        groups, refusal = None, None
        if not unwell:
            try:
                groups = placement.place(
                    lease, view.heads, patience_s, lambda: lease.id not in self._unwanted
                )
            except RayError:
                raise  # a call that failed may yet have made its group: see Failed
            except Exception as error:  # boundary: one request that Ray does not take must not end the others
                traceback.print_exc()
                reason = f"{type(error).__name__}: {error}"
                refusal = Refused(f"the slices of {lease.owner!r} could not be taken: {reason}")
        if groups is not None:
            with self._lock:
                self._groups[lease.id] = groups
        self._report(Placed(lease_id=lease.id, held=groups is not None, unwell=unwell, refusal=refusal))

    def _unwell(self, lease: Lease, view: ClusterView) -> dict[str, str]:
        raylets = {
            view.raylets[process.node_id]: process.node_id
            for process in lease.plan.processes
            if process.node_id in view.raylets
        }
        with self._health_lock:
            failures = self._health.ask(raylets, ASK_S)
            self._health.forget(view.raylets.values())
        return {raylets[address]: reason for address, reason in failures.items()}

    def _remove(self, lease_id: str) -> None:
        with self._lock:
            groups = self._groups.pop(lease_id, {})
            self._unwanted.discard(lease_id)
        placement.remove(groups.values())
        self._report(Removed(lease_id))
