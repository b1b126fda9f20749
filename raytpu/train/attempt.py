"""One attempt: start the hosts of a held gang, train, and say how it ended. Its processes end with it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError
from ray.train import Result, RunConfig, WorkerGroupError

from raytpu.errors import LeaseEnded, RaytpuError, RunFailed, SliceLost
from raytpu.gang import Holding, Host, call_hosts, start_hosts, unwell_hosts
from raytpu.gang.hosts import first_line
from raytpu.gang.release import RELEASE_S, within_s
from raytpu.plan import Ending, EndingKind, Patience, ProcessAssignment
from raytpu.record import EventLog, PhaseTimed, StateChanged
from raytpu.spec import Deadlines, Recovery, TextData
from raytpu.train.data_streams import data_preparer, prepared_streams
from raytpu.train.deaths import in_words, is_taken_back
from raytpu.train.endings import Circumstances, cause_of, decided_elsewhere, ending_of, needs_no_cause
from raytpu.train.entrypoint import TrainFunction
from raytpu.train.hand_over import HandOver
from raytpu.train.host_watch import HostWatch
from raytpu.train.job import TrainJob
from raytpu.train.ray_train_seam import HostWorker, gang_trainer, run_on_this_host
from raytpu.train.standby import Standbys
from raytpu.train.stuck import end_of

# Where Ray Train 2.60 keeps the error that it wraps (ray/train/v2/_internal/exceptions.py).
_WRAPPED = ("_base_exc", "health_check_failure", "failure")

# A peer's failed collective reaches us in 0.1 s and Ray's word of the death that caused it in up to 0.35 s,
# measured on an idle machine; ten times that, because under load the order is anybody's.
DEATH_PATIENCE_S = 4.0

HEALTH_PATIENCE_S = 1.0
"""A host may go down process by process: only one that is well for this long after the death of its process
has lost that alone. By feel."""

POLL_S = 0.5

READY_AFTER_S = 5.0
"""Between the first step and the start of what the next attempt could use: a run that is over sooner is not
disturbed. By feel."""

READY_AGAIN_S = 15.0
"""Between two looks at whether spares and standbys are complete. By feel."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What an attempt needs beside a connected Ray. ``data`` is prepared while the hosts start."""

    job: TrainJob
    program: str | TrainFunction
    holding: Holding
    """Holds the gang of ``job``, whole."""
    standbys: Standbys
    predecessors: Mapping[str, int]
    """Id of the process that an earlier attempt had on a host, by the host's name."""
    deadlines: Deadlines
    recovery: Recovery
    run_config: RunConfig
    log: EventLog
    data: Mapping[str, TextData] = field(default_factory=dict)
    datasets: dict[str, Any] | None = None
    dataset_config: Any = None
    stop_requested: Callable[[], None] = field(default=lambda: None)
    """Called about twice a second; raises to end the attempt."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an attempt ended."""

    ending: Ending
    result: Result | None = None
    """When it completed."""
    error: RaytpuError | None = None
    """When it did not."""
    accounts: Mapping[str, str] = field(default_factory=dict)
    """All that Ray says of each host process that died by itself, by the host's name: for the record."""
    processes: Mapping[str, int] = field(default_factory=dict)
    """Id of each host's process, by the host's name, as far as they came up."""


def run_attempt(attempt: Attempt) -> Outcome:
    """Train once, on the gang that is held. Its processes are killed when this returns or raises."""
    adopted = attempt.standbys.take(attempt.holding.slices, attempt.holding.spares)
    hosts = start_hosts(attempt.holding, HostWorker, lambda assignment: {"host": assignment.host}, adopted)
    with _killed_after(hosts), data_preparer(attempt) as preparer, _hand_over(attempt, hosts) as hand_over:
        watch = HostWatch(hosts)
        background = _Background(attempt, hosts, watch, preparer)
        try:
            result = _train(attempt, hosts, watch, background, hand_over)
        except RaytpuError as error:
            told, ending = _explained(hand_over.explained(error), attempt, hosts, watch, background)
            return Outcome(ending=ending, error=told, accounts=watch.lost, processes=background.processes)
        return Outcome(ending=Ending(kind=EndingKind.COMPLETED), result=result)


@contextmanager
def _killed_after(hosts: tuple[Host, ...]) -> Iterator[None]:
    try:
        yield
    finally:
        within_s(RELEASE_S, lambda: [ray.kill(host.actor) for host in hosts])


@contextmanager
def _hand_over(attempt: Attempt, hosts: tuple[Host, ...]) -> Iterator[HandOver]:
    hand_over = HandOver(
        attempt.holding, hosts, attempt.recovery, saves=attempt.job.checkpoint is not None, log=attempt.log
    )
    try:
        yield hand_over
    finally:
        hand_over.close()


def _train(
    attempt: Attempt,
    hosts: tuple[Host, ...],
    watch: HostWatch,
    background: _Background,
    hand_over: HandOver,
) -> Result:
    background.start()
    patience = Patience.of(attempt.deadlines)

    def look() -> None:
        attempt.stop_requested()
        hand_over.look()
        attempt.holding.check()
        background.raise_failure()
        watch.raise_lost()
        stuck = watch.stuck(patience)
        if stuck is not None:
            raise end_of(stuck, hosts, attempt.holding, attempt.log)

    program = attempt.program  # the only thing that the function below may take along: it is pickled
    trainer = gang_trainer(
        lambda: run_on_this_host(program),
        placement_group=attempt.holding.slices[0].placement_group,
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
        raise _cause(error, hosts, watch) from None
    except RayActorError as error:
        if "creation task" in str(
            error
        ):  # Ray's word for a constructor that raised; the cause is in the text
            raise RunFailed(f"Ray Train's controller did not start on the head:\n{error}") from error
        raise RunFailed(
            f"lost the head of the cluster, where this run's controller was: {first_line(error)}\n"
            "  was the cluster taken down? run the same file again when it is back"
        ) from error
    finally:
        background.cancel()


def _cause(error: WorkerGroupError, hosts: tuple[Host, ...], watch: HostWatch) -> RaytpuError:
    failures: dict[int, BaseException] = {}
    for rank, failure in error.worker_failures.items():
        original = next(filter(None, (getattr(failure, name, None) for name in _WRAPPED)), failure)
        if isinstance(original, RayActorError):
            watch.note_death(hosts[rank].name, original)
        else:
            failures[rank] = original
    return cause_of([host.name for host in hosts], failures, watch.deaths)


def _explained(
    error: RaytpuError,
    attempt: Attempt,
    hosts: tuple[Host, ...],
    watch: HostWatch,
    background: _Background,
) -> tuple[RaytpuError, Ending]:
    """The error and the ending, after looking for a lost host behind them. Broken hosts are reported."""
    holding = attempt.holding
    if not decided_elsewhere(error):
        patience_s = 0.0 if needs_no_cause(error) else DEATH_PATIENCE_S
        assignments = [host.assignment for host in hosts]
        error = _look_for_cause(holding, assignments, watch, patience_s) or error
    lost = holding.lost
    deaths = {} if lost else dict(watch.lost)
    failed_starts: dict[str, str] = {}
    if not background.joined and not lost and not isinstance(error, LeaseEnded):
        failed_starts = {name: in_words(each) for name, each in deaths.items()} | background.failed_starts
        if len(failed_starts) < len(hosts):  # all of them: it is the program that does not start
            for host in hosts:
                if host.name in failed_starts:
                    holding.report_failed_start(host.assignment, failed_starts[host.name])
    seen = Circumstances(
        run=attempt.job.run,
        started=background.joined,
        steps_done=watch.steps_done,
        last_step=watch.last_step,
        lost=lost,
        deaths=deaths,
        failed_starts=failed_starts,
    )
    return ending_of(error, seen)


def _look_for_cause(
    holding: Holding, hosts: list[ProcessAssignment], watch: HostWatch, patience_s: float
) -> LeaseEnded | None:
    """Until a slice is known to be lost, or the lease has ended, which is returned, or none of it can be.

    A host whose raylet is gone takes its slice along. The book would tell within two seconds; that a process
    of the host has died, or an error that only a lost peer explains, is reason to ask sooner.

    A driver that was frozen sees its hosts die before it hears that its lease has ended, and why.
    """
    began_s = time.monotonic()
    until_s = began_s + patience_s
    while True:
        watch.look()
        if watch.lost and not any(map(is_taken_back, watch.lost.values())):
            until_s = min(until_s, began_s + HEALTH_PATIENCE_S)  # a host is down, or is known to be well soon
        try:
            holding.check()
        except LeaseEnded as ended:
            return ended
        except SliceLost:
            return None
        unwell = unwell_hosts(hosts)
        for host in hosts:
            if host.host in unwell and host.slice_name not in holding.lost:
                holding.drop(host, unwell[host.host])
        if holding.lost or time.monotonic() >= until_s:
            return None
        time.sleep(0.1)


_WAITED_FOR = {
    "begin": "the hosts to start",
    "load": "the hosts to start and import JAX",
    "join": "the hosts to join JAX's world",
}


class _Background:
    """What goes on while Ray Train's controller starts: the hosts join JAX's world, the data is prepared."""

    def __init__(
        self, attempt: Attempt, hosts: tuple[Host, ...], watch: HostWatch, preparer: ActorHandle | None
    ) -> None:
        self._attempt, self._job = attempt, attempt.job
        self._hosts, self._watch, self._preparer = hosts, watch, preparer
        self.joined = False
        """All hosts are in JAX's world."""
        self.processes: dict[str, int] = {}
        """Id of each host's process, by the host's name."""
        self.failed_starts: dict[str, str] = {}
        """Reason by name of each host that did not come up."""
        self._failure: BaseException | None = None
        self._cancelled = threading.Event()
        work = [self._join, self._make_ready] + ([self._provide] if preparer is not None else [])
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
        processes = self._call(
            "begin", self._job, self._attempt.predecessors, deadline_s=deadlines.host_start_s
        )
        self.processes = {host.name: pid for host, pid in zip(self._hosts, processes, strict=True)}
        self._call("load", program if isinstance(program, str) else None, deadline_s=deadlines.host_start_s)
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
        self._call("join", coordinator, deadline_s=deadlines.jax_init_s)
        self.joined = True
        self._attempt.holding.report_started()
        self._attempt.log.write(StateChanged(state="running"))

    def _call(self, method: str, *arguments: Any, deadline_s: float) -> list[Any]:
        def failed(host: ProcessAssignment, reason: str) -> None:
            self.failed_starts[host.host] = reason

        return call_hosts(
            self._hosts,
            method,
            *arguments,
            waited_for=_WAITED_FOR[method],
            deadline_s=deadline_s,
            alive=self._alive,
            failed=failed,
        )

    def _make_ready(self) -> None:
        """Once the run trains: hold spares and start standbys, and see to it that they are complete.

        What fails here costs the next attempt some seconds, and never this one anything.
        """
        recovery, holding = self._attempt.recovery, self._attempt.holding
        while not self._watch.steps_done:
            if self._cancelled.wait(POLL_S):
                return
        wait_s = READY_AFTER_S
        while not self._cancelled.wait(wait_s):
            try:
                if recovery.spares:
                    holding.reserve(recovery.spares, self._alive)
                if recovery.standby:
                    self._attempt.standbys.cover([*holding.slices, *holding.spares])
            except (RaytpuError, RayError) as error:
                _log.info("not ready for the next attempt: %s", error)
            wait_s = READY_AGAIN_S

    def _provide(self) -> None:
        assert self._preparer is not None
        streams = prepared_streams(self._preparer, self._attempt, self._job, self._alive)
        for name, rows in streams.items():
            # Not awaited here: a host may be joining, and takes it after that.
            for host in self._hosts:
                host.actor.provide.remote(name, rows)
