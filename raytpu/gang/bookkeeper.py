"""What the book does with each thing that happens. All rules are in ``plan.queue`` and ``plan.ledger``.

Used by one thread. What takes time (asking raylets, placing and removing groups) happens in ``holdings`` and
comes back as an event.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from raytpu.errors import RaytpuError, Refused
from raytpu.gang import ray_internals, stream
from raytpu.gang.cluster_view import ClusterView, look
from raytpu.gang.desk import Caller, Heard, Left
from raytpu.gang.growth import Growth, Wanted
from raytpu.gang.health_watch import HealthWatch, HostsChanged
from raytpu.gang.holdings import Failed, Holdings, Placed, Removed
from raytpu.gang.ledger_store import read_ledger, write_ledger
from raytpu.plan import Diagnosis, Inventory
from raytpu.plan import ledger as entries
from raytpu.plan.book_view import BookView
from raytpu.plan.growth import shortfalls
from raytpu.plan.ledger import Lease, Quarantine
from raytpu.plan.occupancy import seen_with
from raytpu.plan.queue import End, Grant, Preempt, Recall, Refuse, Wait, decide

LOOK_S = 1.0
"""How old the view of the cluster may be when somebody waits."""

SETTLE_S = 3.0
"""Ray's view of free chips lags behind what was given back, by up to a second when measured."""

RETURN_S = 10.0
"""For an owner to come back to a restarted book, if its own silence limit is not longer."""

CALM_S = 3.0
"""After a restart, nothing is given out for this long, or until all are back: the late keep their place."""

STALL_S = 2.0
"""A turn that comes so much later found the book itself stopped or starved, not its owners silent."""


class Bookkeeper:
    """The ledger, and everything that changes it.

    Args:
        report: takes events from other threads, to be handed to ``turn``.
    """

    def __init__(self, report: Callable[[Any], None]) -> None:
        self._health = HealthWatch(report)
        self._growth = Growth()
        self._holdings = Holdings(report)
        self._callers: dict[str, Caller] = {}
        self._suspects: dict[str, str] = {}
        self._settling: dict[str, float] = {}
        self._said: dict[str, tuple[Any, int]] = {}
        self._outbox: list[tuple[Caller, Any]] = []
        self._removing: set[str] = set()
        self._view = ClusterView.empty()
        self._written = read_ledger()
        self._ledger = self._holdings.reconcile(self._written)
        self._started_s = self._passed_s = time.monotonic()
        # Owners that were here before the restart, and until when they may come back.
        self._awaited = {
            request.id: self._started_s + max(RETURN_S, request.silence_s)
            for request in (*self._ledger.requests, *(lease.request for lease in self._ledger.leases))
        }

    def turn(self, events: list[Any]) -> None:
        """Take in what has happened, decide, write the ledger down, and only then act."""
        for event in events:
            self._handle(event)
        self._pass_time()
        if self._ledger.requests and self._view.age_s > LOOK_S:
            self._look()
        work = self._decide()
        if self._ledger is not self._written:
            write_ledger(self._ledger)
            self._written = self._ledger
        # Not before: who was told of a lease that then is not in the ledger would share its slices.
        for caller, message in self._outbox:
            caller.tell(message)
        self._outbox.clear()
        for act in work:
            act()
        self._watch()

    def _handle(self, event: Any) -> None:
        match event:
            case Heard(caller, message):
                self._hear(caller, message)
            case Left(caller):
                self._leave(caller)
            case Placed():
                self._after_placing(event)
            case Removed(lease_id):
                self._after_removing(lease_id)
            case Failed(error):
                raise error  # the next book begins with what Ray has
            case HostsChanged():
                self._suspects = {
                    node: reason for node, reason in self._suspects.items() if node not in event.well
                } | dict(event.lost)
                for node_id, reason in event.lost.items():
                    self._host_lost(node_id, reason)

    # -- what owners say -------------------------------------------------------------------------------

    def _hear(self, caller: Caller, message: Any) -> None:
        if isinstance(message, stream.Ask):
            self._asked(caller, message)
            return
        if isinstance(message, stream.Beat):
            caller.tell(stream.Beat())
        lease_id = caller.lease_id
        if lease_id is None or self._callers.get(lease_id) is not caller:
            return  # somebody else owns it by now
        lease = self._ledger.lease(lease_id)
        if lease is not None and lease.gone_since_s is not None:
            self._ledger = entries.owner_back(self._ledger, lease_id)  # it was silent, and speaks again
        match message:
            case stream.Release():
                self._ledger = entries.without_request(self._ledger, lease_id)
                if lease is None:
                    self._tell(lease_id, stream.Done())
                else:
                    self._ledger = entries.ending(self._ledger, lease_id)
            case stream.HostFailed() if lease is not None:
                self._failed(lease, message)
            case stream.StartedWell() if lease is not None:
                for planned in lease.slices:
                    self._ledger = entries.started_well(self._ledger, planned.name)

    def _asked(self, caller: Caller, ask: stream.Ask) -> None:
        request = ask.request
        known = self._ledger.lease(request.id) or self._ledger.request(request.id)
        before = self._callers.get(request.id)
        if known is None and ask.must_exist:
            self._outbox.append((caller, stream.Over("the book does not know it any more")))
            return
        if before is not None and before is not caller and before.session != ask.session:
            taken = Refused(f"lease {request.id} has an owner that is alive")
            self._outbox.append((caller, stream.Refused(taken)))
            return
        caller.lease_id, caller.session = request.id, ask.session
        self._callers[request.id] = caller
        self._awaited.pop(request.id, None)
        self._said.pop(request.id, None)
        if before is not None and before is not caller:
            before.close()
        if isinstance(known, Lease):
            self._ledger = entries.owner_back(self._ledger, request.id)
            if known.state == "held":
                self._tell_granted(known)
            if known.notice is not None:
                left_s = max(0.0, known.notice.until_s - time.time())
                self._tell(request.id, stream.Noticed(by=known.notice.by, seconds=left_s))
        elif known is None:
            now_s = time.time()
            absolute = replace(request, arrived_s=now_s, deadline_s=now_s + request.deadline_s)
            self._ledger = entries.with_request(self._ledger, absolute)
            if self._view.age_s > LOOK_S / 2:
                self._look()

    def _leave(self, caller: Caller) -> None:
        lease_id = caller.lease_id
        if lease_id is not None and self._callers.get(lease_id) is caller:
            del self._callers[lease_id]
            self._gone(lease_id)

    def _gone(self, lease_id: str) -> None:
        """An owner ended, or did not come back: it waits no more, and its lease has its grace."""
        self._ledger = entries.without_request(self._ledger, lease_id)
        self._ledger = entries.owner_gone(self._ledger, lease_id, time.time())
        self._said.pop(lease_id, None)

    def _failed(self, lease: Lease, failure: stream.HostFailed) -> None:
        if failure.lost:
            self._slice_lost(lease, failure.slice_name, f"{failure.host}: {failure.reason}")
        else:
            self._ledger = entries.start_failed(
                self._ledger, failure.slice_name, failure.host, failure.reason, time.time()
            )

    # -- time ------------------------------------------------------------------------------------------

    def _pass_time(self) -> None:
        now_s = time.monotonic()
        stalled_s, self._passed_s = now_s - self._passed_s, now_s
        for lease_id, caller in list(self._callers.items()):
            if stalled_s > STALL_S:
                caller.heard_s += stalled_s
            known = self._ledger.lease(lease_id) or self._ledger.request(lease_id)
            if known is None:
                continue
            request = known.request if isinstance(known, Lease) else known
            if now_s - caller.heard_s > request.silence_s:
                if isinstance(known, Lease):
                    self._ledger = entries.owner_gone(self._ledger, lease_id, time.time())
                else:
                    caller.close()  # frozen while it waits: when it wakes up it asks anew
        if self._awaited:
            self._pass_awaited(now_s)
        self._settling = {name: until for name, until in self._settling.items() if until > now_s}

    def _pass_awaited(self, now_s: float) -> None:
        ended = ray_internals.ended_jobs()
        for lease_id, until in list(self._awaited.items()):
            known = self._ledger.lease(lease_id) or self._ledger.request(lease_id)
            request = known.request if isinstance(known, Lease) else known
            if request is None or now_s >= until or request.job in ended:
                del self._awaited[lease_id]
                self._gone(lease_id)

    # -- the cluster -----------------------------------------------------------------------------------

    def _look(self) -> None:
        self._view = look()
        alive = self._view.raylets
        for node_id in [node for node in self._suspects if node not in alive]:
            del self._suspects[node_id]  # Ray knows by now
        for lease in self._ledger.leases:
            for planned in lease.slices:
                dead = [process for process in planned.processes if process.node_id not in alive]
                if dead and lease.state == "held":
                    self._slice_lost(lease, planned.name, f"{dead[0].host}: Ray counts its node as dead")

    def _watch(self) -> None:
        """Which raylets are asked: of everything held, of what is under suspicion or claimed twice."""
        held = {process.node_id for lease in self._ledger.leases for process in lease.plan.processes}
        alive = self._view.raylets
        asked = held | self._suspects.keys() | self._view.contested
        self._health.watch({node: alive[node] for node in asked if node in alive})

    def _host_lost(self, node_id: str, reason: str) -> None:
        for lease in self._ledger.leases:
            for planned in lease.slices if lease.state == "held" else ():
                for process in planned.processes:
                    if process.node_id == node_id:
                        self._slice_lost(lease, planned.name, f"{process.host}: {reason}")

    def _slice_lost(self, lease: Lease, slice_name: str, reason: str) -> None:
        """Drop the whole slice: Ray ends what still runs on it, and the owner is told."""
        current = self._ledger.lease(lease.id)
        if current is None or not current.holds(slice_name) or current.state != "held":
            return
        self._ledger = entries.slice_lost(self._ledger, lease.id, slice_name, reason)
        self._holdings.drop(lease.id, slice_name)
        self._tell(lease.id, stream.Lost(slice_name=slice_name, reason=reason))
        if self._ledger.lease(lease.id) is None:
            self._tell(lease.id, stream.Over("every slice of it is lost"))
            self._callers.pop(lease.id, None)

    # -- what has come of it ---------------------------------------------------------------------------

    def _after_placing(self, placed: Placed) -> None:
        self._suspects |= placed.unwell
        lease = self._ledger.lease(placed.lease_id)
        if lease is None or lease.state != "placing":  # it was released meanwhile; removing comes next
            return
        died = any(process.node_id in self._suspects for process in lease.plan.processes)
        if not placed.held or died:
            self._ledger = entries.unplaced(self._ledger, lease.id)
            if placed.held:
                self._holdings.remove(lease.id)
            if placed.refusal is not None:
                self._refuse(lease.id, placed.refusal)
            for planned in lease.slices:  # somebody else may be there: Ray's view counts again
                self._settling.pop(planned.name, None)
            self._look()
            return
        self._ledger = entries.placed(self._ledger, lease.id, time.time())
        self._tell_granted(lease)

    def _after_removing(self, lease_id: str) -> None:
        self._removing.discard(lease_id)
        lease = self._ledger.lease(lease_id)
        if lease is not None and lease.state == "ending":
            self._ledger = entries.given_back(self._ledger, lease_id)
            until = time.monotonic() + SETTLE_S
            self._settling |= {planned.name: until for planned in lease.slices}
            if self._ledger.request(lease_id) is None:
                self._tell(lease_id, stream.Done())
                self._callers.pop(lease_id, None)

    def _refuse(self, request_id: str, error: RaytpuError) -> None:
        self._ledger = entries.without_request(self._ledger, request_id)
        self._tell(request_id, stream.Refused(error))
        self._callers.pop(request_id, None)

    def _tell_granted(self, lease: Lease) -> None:
        self._tell(lease.id, stream.Granted(lease=lease, groups=self._holdings.ids_of(lease.id)))

    def _tell(self, lease_id: str, message: Any) -> None:
        """Say it to the owner, if it is there, when the ledger has been written."""
        if lease_id in self._callers:
            self._outbox.append((self._callers[lease_id], message))

    # -- decisions -------------------------------------------------------------------------------------

    def _decide(self) -> list[Callable[[], None]]:
        """Enter the decisions into the ledger; what is left to do once it is written down."""
        calm = bool(self._awaited) and time.monotonic() < self._started_s + CALM_S
        now_s = time.time()
        growable = {each.id for each in self._ledger.requests if self._growth.hopeful(each.id)}
        work: list[Callable[[], None]] = []
        wanted, given = list[Wanted](), set[str]()
        seen, ledger = self._seen(), self._ledger
        for decision in decide(ledger, seen, now_s, growable=growable):
            match decision:
                case End(lease=lease, reason=reason):
                    self._ledger = entries.ending(self._ledger, lease.id)
                    self._tell(lease.id, stream.Over(reason))
                case Preempt(lease=lease, notice=notice):
                    self._ledger = entries.noticed(self._ledger, lease.id, notice)
                    self._tell(lease.id, stream.Noticed(by=notice.by, seconds=notice.until_s - now_s))
                case Recall(lease=lease):
                    self._ledger = entries.recalled(self._ledger, lease.id)
                case Refuse(request=request, error=error):
                    self._refuse(request.id, self._growth.told(Diagnosis.of(error), request.id).refusal())
                case Wait(request=request, diagnosis=diagnosis, ahead=ahead):
                    told = self._growth.told(diagnosis, request.id)
                    if self._said.get(request.id) != (told, ahead):
                        self._said[request.id] = (told, ahead)
                        self._tell(request.id, stream.Waiting(diagnosis=told, ahead=ahead))
                    if request.id in growable & self._callers.keys():
                        lacks = shortfalls(request, diagnosis, ledger, seen, now_s)
                        wanted.append(Wanted(request=request, lacks=lacks))
                case Grant(request=request, plan=plan) if not calm and request.id in self._callers:
                    self._ledger = entries.granted(self._ledger, request.id, plan, now_s)
                    self._said.pop(request.id, None)
                    new = self._ledger.lease(request.id)
                    assert new is not None
                    given |= {process.node_id for process in plan.processes}
                    work.append(partial(self._holdings.place, new, self._view))
        work.insert(0, partial(self._growth.want, wanted, seen, given))  # what stands there goes first
        # A lease that is over keeps its slices in the ledger until Ray has them back.
        for lease in self._ledger.leases:
            if lease.state == "ending" and lease.id not in self._removing:
                self._removing.add(lease.id)
                work.append(partial(self._holdings.remove, lease.id))
        return work

    def _seen(self) -> Inventory:
        return seen_with(
            self._view.inventory,
            self._ledger,
            suspects=self._suspects,
            settling=self._settling.keys(),
            kept_nodes=self._growth.kept_nodes,
        )

    # -- commands --------------------------------------------------------------------------------------

    def show(self) -> BookView:
        self._look()
        known = [*self._ledger.requests, *(lease.request for lease in self._ledger.leases)]
        return BookView(
            ledger=self._ledger,
            inventory=self._seen(),
            orphans=frozenset(request.id for request in known if not self._has_owner(request.id)),
            awaited=frozenset(self._awaited),
            growing=self._growth.growing,
            now_s=time.time(),
        )

    def quarantine(self, slice_name: str, reason: str) -> None:
        self._look()
        if self._view.inventory.slice(slice_name) is None:
            names = ", ".join(state.name for state in self._view.inventory.slices) or "none"
            raise Refused(f"no slice {slice_name!r} in this cluster; its slices: {names}")
        self._ledger = entries.quarantined(
            self._ledger, Quarantine(slice_name=slice_name, reason=reason, since_s=time.time())
        )

    def lift(self, slice_name: str) -> None:
        before = self._ledger
        self._ledger = entries.lifted(before, slice_name)
        if self._ledger.quarantines == before.quarantines:
            names = ", ".join(each.slice_name for each in before.quarantines) or "none"
            raise Refused(f"slice {slice_name!r} is not under quarantine; under quarantine: {names}")

    def end_orphan(self, lease_id: str) -> bool:
        if self._has_owner(lease_id) or lease_id in self._awaited:
            return False
        self._ledger = entries.without_request(self._ledger, lease_id)
        self._ledger = entries.ending(self._ledger, lease_id)
        self._tell(lease_id, stream.Over("it was ended while its owner was silent"))
        return True

    def _has_owner(self, lease_id: str) -> bool:
        """Whether an owner is connected, and is not counted as gone because it has been silent."""
        lease = self._ledger.lease(lease_id)
        silent = lease is not None and lease.gone_since_s is not None
        return lease_id in self._callers and not silent
