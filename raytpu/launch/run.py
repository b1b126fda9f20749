"""Run a workload: check, connect, train, and add up what happened."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raytpu.checkpoint import newest_durable_step
from raytpu.errors import StorageError, Unplaceable
from raytpu.launch.checks import check_request
from raytpu.launch.connect import connected, search_path
from raytpu.plan import WorkloadPlan, plan_workload
from raytpu.record import (
    EventTail,
    Recorded,
    RunDirectory,
    RunEnded,
    read_events,
    remember_run,
    request_stop,
)
from raytpu.record.storage import join_url
from raytpu.spec import Workload

if TYPE_CHECKING:
    from ray.train import Result

PROGRESS_INTERVAL_S = 0.3


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How to run, apart from what."""

    on: str = "sim"
    """Where; see ``raytpu.launch.connect.connected``."""
    home: str = "~/.raytpu"
    """raytpu's folder on this machine: index of runs, compile cache, running simulations."""
    environment: Mapping[str, str] | None = None
    fresh: bool = False
    """Begin anew beside what the run has."""
    connecting: Callable[[], None] | None = None
    """Called when nothing is known to be wrong, before slices are brought up or a cluster is connected to."""
    planned: Callable[[WorkloadPlan], None] | None = None
    """Called with the plan before anything is held."""
    progress: Callable[[Recorded], None] | None = None
    """Called with each event as it is recorded, from a thread of its own."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run that came to its end."""

    directory: RunDirectory
    result: Result | None
    """Ray Train's result: metrics and checkpoint of the last report; ``None`` when an earlier run of the same
    workload had finished it, and there was nothing to do."""


def run_directory(workload: Workload, *, fresh: bool) -> RunDirectory:
    """The lineage that a run of ``workload`` would use."""
    choose = RunDirectory.fresh if fresh else RunDirectory.newest
    return choose(workload.checkpoint.path, workload.name)


def run(workload: Workload, options: RunOptions | None = None) -> Finished:
    """Train ``workload`` to its end, in this process as the driver.

    When this process ends, in any way, the hosts and slices are freed.

    Raises:
        WrongRequest: before anything is started.
        Refused: the slices cannot be held, or another driver owns the run.
        RunFailed: run it again to go on from the newest durable checkpoint.
    """
    options = options if options is not None else RunOptions()
    directory = run_directory(workload, fresh=options.fresh)
    check_request(workload, directory)
    if is_finished(workload, directory):
        return Finished(directory=directory, result=None)
    if options.connecting is not None:
        options.connecting()
    with connected(options.on, workload.slices, home=options.home, environment=options.environment or {}):
        _warm_up_book()
        if options.planned is not None:
            _show_plan(workload, options.planned)
        return train(workload, options)


def _warm_up_book() -> None:
    """Let the book of slices start while this process still imports: it is asked in a second or two."""
    from raytpu.gang import open_book

    open_book()


def _show_plan(workload: Workload, planned: Callable[[WorkloadPlan], None]) -> None:
    """Tell what will happen on the slices that are free now; if none are, holding them says why."""
    from raytpu.gang import ray_inventory

    with contextlib.suppress(Unplaceable):
        planned(plan_workload(workload, ray_inventory()))


def is_finished(workload: Workload, directory: RunDirectory) -> bool:
    """Whether the run has ended well and all its steps are in a durable checkpoint."""
    steps = workload.train.config.get("steps")
    if not isinstance(steps, int) or (newest_durable_step(directory.checkpoints) or 0) < steps:
        return False
    endings = [each.event for each in read_events(directory) if isinstance(each.event, RunEnded)]
    return bool(endings) and endings[-1].outcome == "finished"


def train(workload: Workload, options: RunOptions, on_start: Callable[[], None] = lambda: None) -> Finished:
    """Train ``workload`` on the cluster that this process is connected to.

    ``on_start`` is called once this process is the driver of the run.
    """
    from raytpu.train import JaxTrainer

    trainer = JaxTrainer.from_workload(
        workload,
        fresh=options.fresh,
        python_path=search_path(),
        compile_cache=join_url(options.home, "compile-cache"),
    )

    def remember() -> None:
        remember_run(trainer.directory, join_url(options.home, "runs"))
        on_start()

    with _stopped_by_sigterm(trainer.directory), _following(trainer.directory, options.progress):
        result = trainer.fit(on_start=remember, followed=options.progress is not None)
    return Finished(directory=trainer.directory, result=result)


@contextmanager
def _stopped_by_sigterm(directory: RunDirectory) -> Iterator[None]:
    """SIGTERM asks for the end of the run, as ``raytpu stop`` does.

    Ray's own handler leaves with exit code 15 and no word, and wraps what another one raises.
    """
    if threading.current_thread() is not threading.main_thread():  # Python sets handlers nowhere else
        yield
        return

    def ask(*_: object) -> None:
        request_stop(directory, "SIGTERM", who=f"a signal to process {os.getpid()}")

    before = signal.signal(signal.SIGTERM, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


@contextmanager
def _following(directory: RunDirectory, progress: Callable[[Recorded], None] | None) -> Iterator[None]:
    """Hand new events to ``progress`` while the block runs, and the rest at its end."""
    if progress is None:
        yield
        return
    tail = EventTail(directory)
    tail.poll()  # what earlier drivers wrote is not news
    ended = threading.Event()

    def follow() -> None:
        last = False
        while not last:
            last = ended.wait(PROGRESS_INTERVAL_S)
            try:
                for recorded in tail.poll():
                    progress(recorded)
            except StorageError:
                continue  # a view only: the run itself tells when the storage is gone

    thread = threading.Thread(target=follow, name="raytpu-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
