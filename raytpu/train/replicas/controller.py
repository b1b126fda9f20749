"""A run of replicas from the driver: start the slices, replace those that are lost, end when all have ended.

Ray Train restarts its workers all together, so it has no part in this: the hosts are actors of raytpu's own.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.train import Result

from raytpu.errors import (
    HostLost,
    RaytpuError,
    Refused,
    RunFailed,
)
from raytpu.gang import HeldSlice, Host, Lease, call_hosts
from raytpu.gang.hosts import start_hosts_of
from raytpu.gang.release import RELEASE_S, within_s
from raytpu.plan import ProcessAssignment
from raytpu.plan.replicas import mesh_of_slice, world_of_slice
from raytpu.record import PhaseTimed, StateChanged
from raytpu.spec import Replicas
from raytpu.train.data_streams import data_preparer, prepared_streams
from raytpu.train.farewell import SaveOnNotice
from raytpu.train.job import ReplicaPlace, TrainJob
from raytpu.train.ray_train_seam import result_of
from raytpu.train.replicas.coordinator import Coordinator
from raytpu.train.replicas.replica import CALLS_AT_ONCE, Replica, ReplicaHost, ended_reason, own_failure
from raytpu.train.training import Training, hold_for

LOOK_S = 0.2

LAST_WORDS_S = 2.0
"""For the hosts of a lost replica to say what their train function raised, if it is that; gloo's failure and
Ray's word of a death take 0.1 to 0.35 s when idle."""

RETRY_S = 10.0
"""After no slice could be had as a replacement, before asking again; the run goes on without it."""


def run_replicas(attempt: Training, replicas: Replicas) -> Result:
    """Train once, on slices that are replicas. Every slice and process is free again at the end.

    Raises:
        as ``run_attempt``.
    """
    log = attempt.log
    log.write(StateChanged(state="holding slices"))
    began = time.perf_counter()
    with hold_for(attempt) as lease:
        log.write(PhaseTimed(name="hold slices", seconds=time.perf_counter() - began))
        log.write(StateChanged(state="starting hosts"))
        run = ReplicaRun(attempt, lease, replicas)
        ended = run.train()
    last = max(ended, key=lambda each: each["metrics"]["step"] if each else -1)
    return result_of(attempt.run_config, last.get("metrics", {}), last.get("path"))


class ReplicaRun:
    """One run of replicas. Made, run once, and thrown away.

    Args:
        attempt: what is to be run.
        lease: the slices that it begins with.
        settings: of the workload.
    """

    def __init__(self, attempt: Training, lease: Lease, settings: Replicas) -> None:
        self._attempt, self._lease, self._settings = attempt, lease, settings
        self._job: TrainJob = attempt.job_for(attempt.first_attempt, lease.plan)
        self._parts = attempt.slices.count
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._replicas: dict[str, Replica] = {}
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None
        self._last_save: SaveOnNotice | None = None
        self._over = threading.Event()
        self._streams: dict[str, Any] = {}
        self._streams_ready = threading.Event()
        self._seeking = 0
        self._resources = ExitStack()
        founders = [(self._name(held), held) for held in lease.slices]
        self._coordinator = Coordinator(
            address=ray.util.get_node_ip_address(),
            founders=[member for member, _ in founders],
            hosts=len(lease.slices[0].hosts),
            parts=self._parts,
            settings=settings,
            lost=self._on_lost,
            admitted=self._on_admitted,
        )
        for number, (member, held) in enumerate(founders):
            self._start(member, held, lease, joining=False, first=number == 0)

    def train(self) -> list[dict[str, Any]]:
        """Until every living replica has ended; what each of their hosts returned.

        Raises:
            RunFailed: the program raised, or every replica is lost.
            RaytpuError: whatever the attempt's ``stop_requested`` raised.
        """
        try:
            if self._attempt.data:
                self._in_thread(self._provide)
            else:
                self._streams_ready.set()
            while True:
                self._attempt.stop_requested()
                if self._failure is not None:
                    raise self._failure
                self._check_leases()
                ended = self._ended()
                if ended is not None:
                    return ended
                self._check_coordinator()
                time.sleep(LOOK_S)
        finally:
            self._stop()

    def _check_coordinator(self) -> None:
        try:
            self._coordinator.check()
        except HostLost:
            self._raise_own_failure()
            raise

    # -- what happens to replicas ------------------------------------------------------------------------

    def _on_lost(self, member: str, reason: str) -> None:
        """From the coordinator's thread; the survivors go on already."""
        with self._lock:
            replica = self._replicas.get(member)
            if replica is None or replica.lost is not None or self._over.is_set():
                return
            replica.lost = reason
        living = len(self._living())
        self._attempt.log.write(
            StateChanged(
                state="replica lost",
                reason=f"{replica.held.name}: {reason}; {living} of {self._parts} go on",
            )
        )
        self._in_thread(self._bury, replica)
        self._in_thread(self._replace)

    def _on_admitted(self, member: str) -> None:
        with self._lock:
            replica = self._replicas.get(member)
        if replica is not None:
            seconds = time.monotonic() - replica.began_s
            self._attempt.log.write(
                PhaseTimed(name=f"replica {replica.held.name} takes part", seconds=seconds)
            )
            self._attempt.log.write(StateChanged(state="running", reason=self._in_words()))

    def _bury(self, replica: Replica) -> None:
        """Hear what its hosts still say, end them, and give the slice back."""
        done: list[ray.ObjectRef] = []
        if replica.running:
            done, _ = ray.wait(replica.running, num_returns=len(replica.running), timeout=LAST_WORDS_S)
        within_s(RELEASE_S, lambda: [ray.kill(host.actor) for host in replica.hosts])
        own = next(filter(None, map(own_failure, done)), None)
        if own is not None:
            self._fail(own)
            return
        replica.lease.report_lost(replica.held.hosts[0].assignment, str(replica.lost))

    def _replace(self) -> None:
        """Take another slice and let it join; ask again as long as there is none."""
        attempt = self._attempt
        while not self._over.is_set():
            try:
                lease = hold_for(
                    attempt,
                    slices=attempt.slices.model_copy(update={"count": 1}),
                    alive=self._raise_when_over,
                )
            except Refused as refusal:
                first = str(refusal).splitlines()[0]
                attempt.log.write(
                    StateChanged(state="running", reason=f"{self._in_words()}; no slice: {first}")
                )
                self._over.wait(RETRY_S)
                continue
            with self._lock:
                self._resources.enter_context(lease)
            held = lease.slices[0]
            try:
                self._start(self._name(held), held, lease, joining=True)
            except RaytpuError as error:
                self._fail(error)
            return

    # -- starting ----------------------------------------------------------------------------------------

    def _name(self, held: HeldSlice) -> str:
        return f"{held.name}#{next(self._numbers)}"

    def _start(
        self, member: str, held: HeldSlice, lease: Lease, *, joining: bool, first: bool = False
    ) -> None:
        gang = world_of_slice(held.planned, simulated=self._lease.plan.simulated)
        place = ReplicaPlace(
            member=member,
            joining=joining,
            first=first,
            parts=self._parts,
            coordinator=self._coordinator.address,
            settings=self._settings,
        )
        job = replace(self._job, gang=gang, mesh=mesh_of_slice(self._job.mesh), replica=place)

        def arguments(assignment: ProcessAssignment) -> dict[str, Any]:
            return {"host": assignment.host}

        hosts = start_hosts_of(held, ReplicaHost, arguments, max_concurrency=CALLS_AT_ONCE)
        replica = Replica(member, held, lease, hosts, job)
        with self._lock:
            self._replicas[member] = replica
        self._in_thread(self._bring_up, replica)

    def _bring_up(self, replica: Replica) -> None:
        """From actors that are being made to train functions that run; a failure loses the replica."""
        attempt, deadlines = self._attempt, self._attempt.deadlines
        program = attempt.program

        def call(method: str, *arguments: Any, of: Sequence[Host], waited_for: str, deadline_s: float) -> Any:
            return call_hosts(
                of,
                method,
                *arguments,
                waited_for=f"the hosts of {replica.held.name} {waited_for}",
                deadline_s=deadline_s,
                alive=self._raise_when_over,
                failed=replica.lease.report_failed_start,
            )

        hosts, start_s = replica.hosts, deadlines.host_start_s
        name = program if isinstance(program, str) else None
        try:
            call("begin", replica.job, {}, of=hosts, waited_for="to start", deadline_s=start_s)
            call("load", name, of=hosts, waited_for="to import JAX", deadline_s=start_s)
            [address] = call(
                "coordinator_address", of=hosts[:1], waited_for="to be found", deadline_s=start_s
            )
            call("join", address, of=hosts, waited_for="to join JAX's world", deadline_s=deadlines.jax_init_s)
            replica.lease.report_started()
            while not self._streams_ready.wait(LOOK_S):
                self._raise_when_over()
            for (stream, rows), host in itertools.product(self._streams.items(), hosts):
                host.actor.provide.remote(stream, rows)
            replica.running.extend(host.actor.train.remote(program) for host in hosts)
        except RaytpuError as error:
            if not self._over.is_set():
                self._coordinator.give_up(replica.member, str(error).splitlines()[0])
                self._on_lost(replica.member, str(error).splitlines()[0])

    def _provide(self) -> None:
        preparer = self._resources.enter_context(data_preparer(self._attempt))
        self._streams = prepared_streams(preparer, self._attempt, self._job, self._raise_when_over)
        self._streams_ready.set()

    # -- looking -----------------------------------------------------------------------------------------

    def _living(self) -> list[Replica]:
        with self._lock:
            return [replica for replica in self._replicas.values() if replica.lost is None]

    def _in_words(self) -> str:
        view = self._coordinator.view
        with_state = () if view is None else view.full
        return f"{len(with_state)} of {self._parts} replicas"

    def _check_leases(self) -> None:
        """What the book knows sooner, such as a host that is down with everything on it; and what it wants.

        Of several leases, one that is announced to end is given up: the others go on. When all slices go, the
        hosts save a last step together and end.
        """
        living = self._living()
        for replica in living:
            reason = replica.lease.lost.get(replica.held.name) or ended_reason(replica.lease)
            notice = replica.lease.notice
            if reason is None and notice is not None:
                if any(other.lease.notice is None for other in living):
                    reason = f"its slice goes to {notice.by}"
                else:
                    self._farewell(replica.lease, living).look()
            if reason is not None:
                self._coordinator.give_up(replica.member, reason)

    def _farewell(self, lease: Lease, living: Sequence[Replica]) -> SaveOnNotice:
        if self._last_save is None:
            hosts = [host for replica in living for host in replica.hosts]
            self._last_save = SaveOnNotice(lambda: lease.notice, hosts, self._attempt.log)
        return self._last_save

    def _ended(self) -> list[dict[str, Any]] | None:
        """What the hosts returned, once all those that have the state have ended."""
        view = self._coordinator.view
        if view is None:
            return None
        full = [each for each in self._living() if each.member in view.full]
        references = [reference for replica in full for reference in replica.running]
        if not references or len(references) < sum(len(replica.hosts) for replica in full):
            return None
        done, rest = ray.wait(references, num_returns=len(references), timeout=0)
        self._raise_own_failure(done)
        if rest:
            return None
        try:
            return ray.get(done)
        except (RayActorError, RayTaskError):
            return None  # a death that the coordinator is about to hear of

    def _raise_own_failure(self, done: Sequence[ray.ObjectRef] | None = None) -> None:
        if done is None:
            with self._lock:
                references = [reference for each in self._replicas.values() for reference in each.running]
            done, _ = ray.wait(references, num_returns=len(references), timeout=0) if references else ([], [])
        own = next(filter(None, map(own_failure, done)), None)
        if own is not None:
            raise own

    # -- threads -----------------------------------------------------------------------------------------

    def _in_thread(self, work: Callable[..., None], *arguments: Any) -> None:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # the thread's boundary: raised again in the driver's
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

    def _stop(self) -> None:
        """End every host and give back every slice that was taken later than the first."""
        self._over.set()
        self._coordinator.close()
        with self._lock:
            actors = [host.actor for replica in self._replicas.values() for host in replica.hosts]
        within_s(RELEASE_S, lambda: [ray.kill(actor) for actor in actors])
        for thread in self._threads:
            thread.join(RELEASE_S)
        self._resources.close()
