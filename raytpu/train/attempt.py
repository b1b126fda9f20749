"""One attempt: hold the slices, start the hosts, train, and give everything back however it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError
from ray.train import Result, RunConfig, WorkerGroupError

from raytpu.errors import DeadlineExceeded, HostLost, RaytpuError, RunFailed
from raytpu.gang import Host, Lease, call_hosts, hold, start_hosts
from raytpu.gang.hosts import first_line
from raytpu.gang.release import RELEASE_S, within_s
from raytpu.plan import Diagnosis, GangPlan, ProcessAssignment
from raytpu.record import EventLog, PhaseTimed, StateChanged
from raytpu.spec import Deadlines, Slices, TextData
from raytpu.train.data_streams import start_preparer
from raytpu.train.endings import cause_of, is_peer_failure
from raytpu.train.entrypoint import TrainFunction
from raytpu.train.farewell import SaveOnNotice
from raytpu.train.host_watch import HostWatch
from raytpu.train.job import TrainJob
from raytpu.train.ray_train_seam import HostWorker, gang_trainer, run_on_this_host

# Where Ray Train 2.60 keeps the error that it wraps (ray/train/v2/_internal/exceptions.py).
_WRAPPED = ("_base_exc", "health_check_failure", "failure")

# A peer's failed collective reaches us in 0.1 s and Ray's word of the death that caused it in up to 0.35 s,
# measured on an idle machine; ten times that, because under load the order is anybody's.
DEATH_PATIENCE_S = 4.0
POLL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What an attempt needs beside a connected Ray.

    ``job_for`` makes the job once the slices are known. ``data`` is prepared while the hosts start.
    """

    name: str
    slices: Slices
    program: str | TrainFunction
    job_for: Callable[[GangPlan], TrainJob]
    deadlines: Deadlines
    priority: int
    run_config: RunConfig
    log: EventLog
    data: Mapping[str, TextData] = field(default_factory=dict)
    datasets: dict[str, Any] | None = None
    dataset_config: Any = None
    stop_requested: Callable[[], None] = field(default=lambda: None)
    """Called about twice a second; raises to end the attempt."""


def run_attempt(attempt: Attempt) -> Result:
    """Train once. Every slice and process is free again when this returns or raises.

    Raises:
        Unplaceable, DeadlineExceeded: the slices could not be held, or a host was late.
        DataError: the data cannot be read, or holds less than one batch.
        HostMismatch, HostLost, ProgramFailed, SaveFailed: the attempt failed.
        RaytpuError: whatever ``stop_requested`` raised.
    """

    attempt.log.write(StateChanged(state="holding slices"))
    began = time.perf_counter()
    with hold_for(attempt) as lease:
        attempt.log.write(PhaseTimed(name="hold slices", seconds=time.perf_counter() - began))
        attempt.log.write(StateChanged(state="starting hosts"))
        job = attempt.job_for(lease.plan)
        with _hosts(lease, job) as hosts, data_preparer(attempt) as preparer:
            return _train(attempt, lease, hosts, _Background(attempt, lease, job, hosts, preparer))


def hold_for(
    attempt: Attempt, slices: Slices | None = None, alive: Callable[[], None] | None = None
) -> Lease:
    """Hold ``slices`` (by default all of the attempt's) in its name; the record has what it waits for.

    Raises:
        as ``gang.hold``.
    """

    def waiting(diagnosis: Diagnosis) -> None:
        attempt.log.write(StateChanged(state="waiting", reason=str(diagnosis.refusal())))

    return hold(
        attempt.slices if slices is None else slices,
        owner=attempt.name,
        timeout_s=attempt.deadlines.hold_s,
        priority=attempt.priority,
        save_s=attempt.deadlines.save_s,
        silence_s=attempt.deadlines.orphan_grace_s,
        waiting=waiting,
        alive=attempt.stop_requested if alive is None else alive,
    )


@contextmanager
def _hosts(lease: Lease, job: TrainJob) -> Iterator[tuple[Host, ...]]:
    def arguments(assignment: ProcessAssignment) -> dict[str, Any]:
        return {"assignment": assignment, "job": job}

    hosts = start_hosts(lease, HostWorker, arguments)
    try:
        yield hosts
    finally:
        within_s(RELEASE_S, lambda: [ray.kill(host.actor) for host in hosts])


@contextmanager
def data_preparer(attempt: Attempt) -> Iterator[ActorHandle | None]:
    if not attempt.data:
        yield None
        return
    preparer = start_preparer()
    try:
        yield preparer
    finally:
        within_s(RELEASE_S, lambda: ray.kill(preparer))


def _train(attempt: Attempt, lease: Lease, hosts: tuple[Host, ...], background: _Background) -> Result:
    background.start()
    watch, preemption = HostWatch(hosts), SaveOnNotice(lease, hosts, attempt.log)

    def look() -> None:
        attempt.stop_requested()
        preemption.look()
        lease.check()
        background.raise_failure()
        watch.raise_lost()

    program = attempt.program  # the only thing that the function below may take along: it is pickled
    trainer = gang_trainer(
        lambda: run_on_this_host(program),
        placement_group=lease.slices[0].placement_group,
        hosts=hosts,
        run_config=attempt.run_config,
        watch=look,
        start_deadline_s=attempt.deadlines.host_start_s,
        datasets=attempt.datasets,
        dataset_config=attempt.dataset_config,
    )
    try:
        return trainer.fit()
    except WorkerGroupError as error:
        background.raise_failure()
        raise _diagnose(error, hosts, watch) from None
    except RayActorError as error:
        if "creation task" in str(
            error
        ):  # Ray's word for a constructor that raised; the cause is in the text
            raise RunFailed(f"Ray Train's controller did not start on the head:\n{error}") from error
        raise HostLost(
            f"lost the head of the cluster, where this run's controller was: {first_line(error)}\n"
            "  was the cluster taken down? run the same file again when it is back"
        ) from error
    finally:
        background.cancel()


def _diagnose(error: WorkerGroupError, hosts: tuple[Host, ...], watch: HostWatch) -> RaytpuError:
    failures: dict[int, BaseException] = {}
    for rank, failure in error.worker_failures.items():
        original = next(filter(None, (getattr(failure, name, None) for name in _WRAPPED)), failure)
        if isinstance(original, RayActorError):
            watch.deaths.setdefault(hosts[rank].name, " ".join(str(original).split()))
        else:
            failures[rank] = original
    if all(is_peer_failure(failure) for failure in failures.values()):
        watch.settle(DEATH_PATIENCE_S)
    return cause_of([host.name for host in hosts], failures, watch.deaths)


def prepared_streams(
    preparer: ActorHandle, attempt: Attempt, job: TrainJob, alive: Callable[[], None]
) -> dict[str, Any]:
    """The packed rows of each data stream. They live as long as ``preparer`` does.

    Raises:
        DataError: the data cannot be read, or holds less than one batch.
        DeadlineExceeded: it takes longer than ``deadlines.data_s``.
    """
    began, deadline_s = time.perf_counter(), attempt.deadlines.data_s
    pending = preparer.prepare.remote(attempt.data, int(job.config["sequence_length"]), job.global_batch)
    while not ray.wait([pending], timeout=POLL_S)[0]:
        alive()
        if time.perf_counter() - began > deadline_s:
            raise DeadlineExceeded("Ray Data to prepare the data", deadline_s)
    try:
        streams: dict[str, Any] = ray.get(pending)
    except RayTaskError as error:
        if isinstance(error.cause, RaytpuError):
            raise error.cause from None
        raise
    attempt.log.write(PhaseTimed(name="prepare data", seconds=time.perf_counter() - began))
    return streams


class _Background:
    """What goes on while Ray Train's controller starts: the hosts join JAX's world, the data is prepared."""

    def __init__(
        self,
        attempt: Attempt,
        lease: Lease,
        job: TrainJob,
        hosts: tuple[Host, ...],
        preparer: ActorHandle | None,
    ) -> None:
        self._attempt, self._lease, self._job = attempt, lease, job
        self._hosts, self._preparer = hosts, preparer
        self._failure: BaseException | None = None
        self._cancelled = threading.Event()
        work = [self._join] + ([self._provide] if preparer is not None else [])
        self._threads = [threading.Thread(target=self._guard, args=(each,), daemon=True) for each in work]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def cancel(self) -> None:
        """The attempt is over: stop waiting, and wait for the threads to have stopped."""
        self._cancelled.set()
        for thread in self._threads:
            thread.join(RELEASE_S)  # each looks twice a second; longer means that Ray's head is gone

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # raised again in the driver's thread, by raise_failure
            if not self._cancelled.is_set() and self._failure is None:
                self._failure = error

    def _alive(self) -> None:
        if self._cancelled.is_set():
            raise RunFailed("the attempt is over")

    def _join(self) -> None:
        deadlines, program = self._attempt.deadlines, self._attempt.program
        began = time.perf_counter()
        call_hosts(
            self._hosts,
            "load",
            program if isinstance(program, str) else None,
            waited_for="the hosts to start and import JAX",
            deadline_s=deadlines.host_start_s,
            alive=self._alive,
            failed=self._lease.report_failed_start,
        )
        self._attempt.log.write(
            PhaseTimed(name="hosts up, JAX imported", seconds=time.perf_counter() - began)
        )
        [coordinator] = call_hosts(
            self._hosts[:1],
            "coordinator_address",
            waited_for="the address of process 0",
            deadline_s=deadlines.host_start_s,
            alive=self._alive,
        )
        call_hosts(
            self._hosts,
            "join",
            coordinator,
            waited_for="the hosts to join JAX's world",
            deadline_s=deadlines.jax_init_s,
            alive=self._alive,
            failed=self._lease.report_failed_start,
        )
        self._lease.report_started()
        self._attempt.log.write(StateChanged(state="running"))

    def _provide(self) -> None:
        assert self._preparer is not None
        streams = prepared_streams(self._preparer, self._attempt, self._job, self._alive)
        for name, rows in streams.items():
            # Not awaited here: a host may be joining, and takes it after that.
            for host in self._hosts:
                host.actor.provide.remote(name, rows)
