"""The workload's data, as the streams that a loop can ask for, prepared by an actor of its own.

Ray Data runs where it is called, and cannot be told to stop. In an actor it starts while the hosts do, and
``ray.kill`` ends it with the attempt, whatever it is doing. The actor owns the blocks: it lives as long as
the attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raytpu.errors import DeadlineExceeded, RaytpuError
from raytpu.gang.release import RELEASE_S, within_s
from raytpu.record import EventLog, PhaseTimed
from raytpu.spec import Deadlines, TextData
from raytpu.train.job import TrainJob

POLL_S = 0.5


def stream_names(data: Mapping[str, TextData]) -> tuple[str, ...]:
    """Names of the streams: one a section, and ``eval`` where ``train`` holds documents back."""
    names = list(data)
    if "train" in data and data["train"].holdout > 0 and "eval" not in data:
        names.append("eval")
    return tuple(names)


class DataPreparer:
    """Has Ray Data read, tokenise and pack."""

    def prepare(
        self, data: Mapping[str, TextData], sequence_length: int, global_batch: int
    ) -> dict[str, Any]:
        """Packed rows of each stream.

        Raises:
            DataError: a source cannot be read, or holds less than one batch.
        """
        from raytpu.data import prepare_text

        streams: dict[str, Any] = {}
        for name, source in data.items():
            prepared = prepare_text(source, sequence_length=sequence_length, global_batch=global_batch)
            streams[name] = prepared["train"]
            if "eval" in prepared and "eval" not in data:
                streams["eval"] = prepared["eval"]
        return streams


class NeedsData(Protocol):
    """A run, or an attempt of one."""

    @property
    def data(self) -> Mapping[str, TextData]: ...
    @property
    def deadlines(self) -> Deadlines: ...
    @property
    def log(self) -> EventLog: ...


@contextmanager
def data_preparer(run: NeedsData) -> Iterator[ActorHandle | None]:
    """The actor that prepares the data, for the length of a block; ``None`` for a run without data."""
    if not run.data:
        yield None
        return
    preparer = start_preparer()
    try:
        yield preparer
    finally:
        within_s(RELEASE_S, lambda: ray.kill(preparer))


def prepared_streams(
    preparer: ActorHandle, run: NeedsData, job: TrainJob, alive: Callable[[], None]
) -> dict[str, Any]:
    """The packed rows of each data stream. They live as long as ``preparer`` does.

    Raises:
        DataError: the data cannot be read, or holds less than one batch.
        DeadlineExceeded: it takes longer than ``deadlines.data_s``.
    """
    began, deadline_s = time.perf_counter(), run.deadlines.data_s
    pending = preparer.prepare.remote(run.data, int(job.config["sequence_length"]), job.global_batch)
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
    run.log.write(PhaseTimed(name="prepare data", seconds=time.perf_counter() - began))
    return streams


def start_preparer() -> ray.actor.ActorHandle:
    """A ``DataPreparer`` on this driver's node, which outlives every host that may be lost."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(DataPreparer).options(num_cpus=0, scheduling_strategy=here).remote()
