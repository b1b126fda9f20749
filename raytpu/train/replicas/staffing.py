"""The slices of a run of replicas: started, brought up, buried when lost, replaced, and kept in reserve."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import ray

from raytpu.errors import RaytpuError, Refused, RunFailed
from raytpu.gang import HeldSlice, Host, Lease, call_hosts, further_slices, ray_inventory
from raytpu.gang.hosts import start_hosts_of
from raytpu.gang.release import RELEASE_S, within_s
from raytpu.plan import Patience, ProcessAssignment, Stuck
from raytpu.plan.gang import gang_if_it_fits
from raytpu.plan.replicas import mesh_of_slice, world_of_slice
from raytpu.record import PhaseTimed, ReplicaLost, StateChanged
from raytpu.spec import Replicas
from raytpu.train.data_streams import data_preparer, prepared_streams
from raytpu.train.job import ReplicaPlace, TrainJob
from raytpu.train.replicas.coordinator import Coordinator
from raytpu.train.replicas.replica import CALLS_AT_ONCE, Replica, ReplicaHost, own_failure
from raytpu.train.stuck import stuck_event
from raytpu.train.training import Training, hold_for

LOOK_S = 0.2

LAST_WORDS_S = 2.0
"""For the hosts of a lost replica to say what their train function raised, if it is that; gloo's failure and
Ray's word of a death take 0.1 to 0.35 s when idle."""

RETRY_S = 10.0
"""After no slice could be had, before asking again; the run goes on without it."""


class Staff:
    """All replicas of a run, and the threads that look after them.

    Args:
        training: what is to be run.
        lease: the slices that it begins with.
        settings: of the workload.
    """

    def __init__(self, training: Training, lease: Lease, settings: Replicas) -> None:
        self._training, self._lease, self._settings = training, lease, settings
        self._job: TrainJob = training.job_for(training.first_attempt, lease.plan)
        self.parts = training.slices.count
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._replicas: dict[str, Replica] = {}
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None
        self._lost, self._failed_starts = 0, 0
        self._over, self._short = threading.Event(), threading.Event()
        self._streams: dict[str, Any] = {}
        self._streams_ready = threading.Event()
        self._resources = ExitStack()
        founders = [(self._name(held), held) for held in lease.slices]
        self.coordinator = Coordinator(
            address=ray.util.get_node_ip_address(),
            founders=[member for member, _ in founders],
            hosts=len(lease.slices[0].hosts),
            parts=self.parts,
            settings=settings,
            patience=Patience.of(
                training.deadlines.model_copy(
                    update={"stuck_s": settings.stuck_s, "silence_s": settings.silence_s}
                )
            ),
            lost=self._on_lost,
            admitted=self._on_admitted,
            stuck=self._on_stuck,
        )
        for number, (member, held) in enumerate(founders):
            self._start(member, held, lease, joining=False, first=number == 0)
        self._in_thread(self._provide)
        self._in_thread(self._keep_full)

    def living(self) -> list[Replica]:
        """Those that take part, or are on their way to."""
        with self._lock:
            return [each for each in self._replicas.values() if each.lost is None and not each.reserve]

    def present(self) -> list[Replica]:
        """Those that are not lost, in reserve or not."""
        with self._lock:
            return [each for each in self._replicas.values() if each.lost is None]

    def expect_to_leave(self, replica: Replica) -> None:
        """It goes away soon: another one is made ready while it works."""
        replica.leaving = True
        self._short.set()

    def leases(self) -> list[Lease]:
        """Of all replicas, lost ones too; without those that were taken back with a notice."""
        with self._lock:
            leases = dict.fromkeys(each.lease for each in self._replicas.values())
        return [lease for lease in leases if lease.notice is None]

    def check(self) -> None:
        """Give up replicas that do not get to take part, and raise what went wrong for good.

        Raises:
            RunFailed: the program raised, or replicas are lost more often than ``recovery`` allows.
        """
        if self._failure is not None:
            raise self._failure
        limit_s, now_s = self._training.deadlines.first_step_s, time.monotonic()
        for replica in self.living():
            # From then on it waits for the others, a whole round of steps with `every_steps`.
            if replica.late_s(now_s) > limit_s and not self.coordinator.is_ready(replica.member):
                reason = f"it is not ready to take part {limit_s:g} s after its train function was called"
                self.coordinator.give_up(replica.member, reason)

    def raise_own_failure(self, references: Sequence[ray.ObjectRef] | None = None) -> None:
        """Raise what a train function has raised by itself, by default that of any replica."""
        if references is None:
            with self._lock:
                references = [each for replica in self._replicas.values() for each in replica.running]
        if not references:
            return
        done, _ = ray.wait(list(references), num_returns=len(references), timeout=0)
        own = next(filter(None, map(own_failure, done)), None)
        if own is not None:
            raise own

    def stop(self) -> None:
        """End every host, and give back every slice that was taken later than the first."""
        self._over.set()
        self._short.set()
        self.coordinator.close()
        with self._lock:
            actors = [host.actor for replica in self._replicas.values() for host in replica.hosts]
        within_s(RELEASE_S, lambda: [ray.kill(actor) for actor in actors])
        for thread in self._threads:
            thread.join(RELEASE_S)
        self._resources.close()

    # -- what happens to replicas ------------------------------------------------------------------------

    def _on_lost(self, member: str, reason: str) -> None:
        """From the coordinator's thread; the survivors go on already."""
        with self._lock:
            replica = self._replicas.get(member)
            if replica is None or replica.lost is not None or self._over.is_set():
                return
            replica.lost = reason
            self._lost += 1
            # One in reserve was not to take part: losing it again and again harms nobody.
            self._failed_starts += not (replica.admitted or replica.reserve or replica.leaving)
        living = f"{len(self.living())} of {self.parts} go on"
        self._training.log.write(
            StateChanged(state="replica lost", reason=f"{replica.held.name}: {reason}; {living}")
        )
        self._training.log.write(ReplicaLost(slice=replica.held.name, reason=reason))
        self._in_thread(self._bury, replica)
        recovery = self._training.recovery
        for count, limit, what in (
            (self._lost, recovery.max_lost_slices, "replicas were lost"),
            (self._failed_starts, recovery.max_start_failures, "replicas in a row did not get to take part"),
        ):
            if count > limit:
                self._fail(
                    RunFailed(f"{count} {what}, limit {limit}; the last: {replica.held.name}: {reason}")
                )
        self._short.set()

    def _on_admitted(self, member: str) -> None:
        with self._lock:
            replica = self._replicas.get(member)
            self._failed_starts = 0
        if replica is not None:
            replica.admitted = True
            name = f"replica {replica.held.name} takes part"
            self._training.log.write(PhaseTimed(name=name, seconds=time.monotonic() - replica.began_s))
            self._training.log.write(StateChanged(state="running", reason=self._in_words()))

    def _on_stuck(self, stuck: Stuck) -> None:
        self._training.log.write(stuck_event(stuck))

    def _in_words(self) -> str:
        view = self.coordinator.view
        return f"{0 if view is None else len(view.full)} of {self.parts} replicas"

    def _bury(self, replica: Replica) -> None:
        """Hear what its hosts still say, end them, and give the slice back."""
        if replica.running:
            ray.wait(replica.running, num_returns=len(replica.running), timeout=LAST_WORDS_S)
        try:
            self.raise_own_failure(replica.running)
        finally:
            within_s(RELEASE_S, lambda: [ray.kill(host.actor) for host in replica.hosts])
            replica.lease.report_lost(replica.held.hosts[0].assignment, str(replica.lost))

    # -- taking more -------------------------------------------------------------------------------------

    def _keep_full(self) -> None:
        """While the run lasts: as many replicas as there are parts, then as many in reserve as wanted."""
        while not self._over.is_set():
            self._short.clear()
            if sum(not each.leaving for each in self.living()) < self.parts:
                if not self._call_up():
                    self._replace()
            elif self._wants_reserve():
                self._take_reserve()
            else:
                self._short.wait(RETRY_S if self._training.recovery.spares else None)

    def _call_up(self) -> bool:
        """Let one of the reserve take part; whether there is one."""
        with self._lock:
            ready = [each for each in self._replicas.values() if each.reserve and each.lost is None]
            if not ready:
                return False
            ready[0].reserve, ready[0].began_s = False, time.monotonic()
            if ready[0].called_s is not None:
                ready[0].called_s = time.monotonic()
        self.coordinator.call_up(ready[0].member)
        return True

    def _replace(self) -> None:
        """Take another slice and let it join; when there is none, say so and wait a while."""
        try:
            lease = hold_for(self._training, slices=self._further(), alive=self._raise_when_over)
        except Refused as refusal:
            reason = f"{self._in_words()}; no slice: {str(refusal).splitlines()[0]}"
            self._training.log.write(StateChanged(state="running", reason=reason))
            self._over.wait(RETRY_S)
            return
        self._join(lease, reserve=False)

    def _wants_reserve(self) -> bool:
        view = self.coordinator.view
        if view is None or len(view.full) < self.parts:
            return False  # what brings the run to its full size comes first
        with self._lock:
            there = sum(each.reserve and each.lost is None for each in self._replicas.values())
        return there < self._training.recovery.spares

    def _take_reserve(self) -> None:
        """One slice more, if one is idle: nobody waits for it, and nobody is asked to leave."""
        want = self._further()
        if gang_if_it_fits(want, ray_inventory()) is None:
            self._short.wait(RETRY_S)
            return
        try:
            lease = hold_for(self._training, slices=want, timeout_s=RETRY_S, alive=self._raise_when_over)
        except Refused:  # somebody was faster
            return
        self._join(lease, reserve=True)

    def _further(self) -> Any:
        with self._lock:
            held = {each.held.name for each in self._replicas.values() if each.lost is None}
        return further_slices(self._training.slices, 1, held)

    def _join(self, lease: Lease, *, reserve: bool) -> None:
        self._resources.enter_context(lease)
        held = lease.slices[0]
        member = self._name(held)
        if reserve:
            self.coordinator.keep_back(member)
        self._start(member, held, lease, joining=True, reserve=reserve)

    # -- starting ----------------------------------------------------------------------------------------

    def _name(self, held: HeldSlice) -> str:
        return f"{held.name}#{next(self._numbers)}"

    def _start(
        self,
        member: str,
        held: HeldSlice,
        lease: Lease,
        *,
        joining: bool,
        first: bool = False,
        reserve: bool = False,
    ) -> None:
        place = ReplicaPlace(
            member=member,
            joining=joining,
            first=first,
            parts=self.parts,
            coordinator=self.coordinator.address,
            settings=self._settings,
        )
        gang = world_of_slice(held.planned, simulated=self._lease.plan.simulated)
        job = replace(self._job, gang=gang, mesh=mesh_of_slice(self._job.mesh), replica=place)

        def arguments(assignment: ProcessAssignment) -> dict[str, Any]:
            return {"host": assignment.host}

        hosts = start_hosts_of(held, ReplicaHost, arguments, max_concurrency=CALLS_AT_ONCE)
        replica = Replica(member, held, lease, hosts, job, reserve=reserve)
        with self._lock:
            self._replicas[member] = replica
        self._in_thread(self._bring_up, replica)

    def _bring_up(self, replica: Replica) -> None:
        """From actors that are being made to train functions that run; a failure loses the replica."""
        deadlines, program = self._training.deadlines, self._training.program
        hosts, start_s = replica.hosts, deadlines.host_start_s

        def call(method: str, *arguments: Any, of: Sequence[Host], waited_for: str, deadline_s: float) -> Any:
            return call_hosts(
                of,
                method,
                *arguments,
                waited_for=f"the hosts of {replica.held.name} {waited_for}",
                deadline_s=deadline_s,
                alive=lambda: self._raise_when_given_up(replica),
                failed=replica.lease.report_failed_start,
            )

        try:
            call("begin", replica.job, {}, of=hosts, waited_for="to start", deadline_s=start_s)
            name = program if isinstance(program, str) else None
            call("load", name, of=hosts, waited_for="to import JAX", deadline_s=start_s)
            process_0, waited_for = hosts[:1], "to be found"
            [address] = call("coordinator_address", of=process_0, waited_for=waited_for, deadline_s=start_s)
            call("join", address, of=hosts, waited_for="to join JAX's world", deadline_s=deadlines.jax_init_s)
            replica.lease.report_started()
            while not self._streams_ready.wait(LOOK_S):
                self._raise_when_given_up(replica)
            for (stream, rows), host in itertools.product(self._streams.items(), hosts):
                host.actor.provide.remote(stream, rows)
            replica.running.extend(host.actor.train.remote(program) for host in hosts)
            replica.called_s = time.monotonic()
        except RaytpuError as error:
            if not self._over.is_set():
                first = str(error).splitlines()[0]
                self.coordinator.give_up(replica.member, first)
                self._on_lost(replica.member, first)

    def _provide(self) -> None:
        if self._training.data:
            preparer = self._resources.enter_context(data_preparer(self._training))
            self._streams = prepared_streams(preparer, self._training, self._job, self._raise_when_over)
        self._streams_ready.set()

    # -- threads -----------------------------------------------------------------------------------------

    def _in_thread(self, work: Callable[..., None], *arguments: Any) -> None:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # the thread's boundary: raised again by check
                if not self._over.is_set():
                    self._fail(error)

        thread = threading.Thread(target=run, name=f"raytpu-replicas{work.__name__}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error

    def _raise_when_over(self) -> None:
        if self._over.is_set():
            raise RunFailed("the run is over")

    def _raise_when_given_up(self, replica: Replica) -> None:
        self._raise_when_over()
        if replica.lost is not None:
            raise RunFailed(f"{replica.held.name} was given up: {replica.lost}")
