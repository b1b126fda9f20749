"""The book of a process's steps: how long each took, what it waited for, and when its state is saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from raytpu.data import BatchStream
from raytpu.errors import RunStopped, SpecError
from raytpu.plan.watchdog import AWAITING_DATA, FINISHING, SAVING
from raytpu.record import (
    CheckpointDurable,
    CheckpointQuarantined,
    CheckpointRestored,
    CheckpointSaved,
    CheckpointSlow,
    CheckpointVerified,
    EventLog,
    StepFinished,
    WrittenEvent,
)
from raytpu.record.storage import join_url
from raytpu.train.farewell import Farewell
from raytpu.train.job import TrainJob
from raytpu.train.loop_position import LoopPosition

if TYPE_CHECKING:  # loads Orbax, which a run without checkpoints does not need
    from raytpu.checkpoint import CheckpointStore, Restored
    from raytpu.checkpoint.orbax_store import SaveReport
    from raytpu.train.replicas.session import ReplicaSession

Announce = Callable[[str, int, Mapping[str, float]], None]
"""Tells Ray Train that a checkpoint is durable: path, step, metrics. Collective."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A step that has been dispatched and whose metrics have not been fetched."""

    step: int
    metrics: Mapping[str, Any]
    data_wait_s: float
    wait_s: float


class StepRecord:
    """Times steps by when their metrics arrive, one step behind the dispatch, and saves when due."""

    def __init__(
        self,
        *,
        job: TrainJob,
        store: CheckpointStore | None,
        log: EventLog,
        announce: Announce,
        farewell: Farewell,
        position: LoopPosition,
        session: ReplicaSession | None = None,
    ) -> None:
        self._job, self._store, self._log, self._announce = job, store, log, announce
        self._farewell, self._position, self._session = farewell, position, session
        self._mark = time.perf_counter()
        self._paused, self._paused_s = False, 0.0
        self._data_wait_s = 0.0
        self._step = 0
        self._pending: _Pending | None = None
        self._last_metrics: dict[str, float] = {}
        self._led, self._was_due = True, False
        self._every = 1 if job.replica is None else job.replica.settings.every_steps
        self.whole: Callable[[Any], Any] = lambda state: state
        """What is saved for the user's state."""
        self._last: tuple[int, Any, Mapping[str, Any]] | None = None
        """Step, state and position, kept by replicas only: the state is in memory there anyway."""
        self._saved_step: int | None = None
        self._saved_metrics: dict[str, float] = {}
        self._tokens = 0
        if "global_batch" in job.config and "sequence_length" in job.config:
            self._tokens = int(job.config["global_batch"]) * int(job.config["sequence_length"])

    def restored(self, restored: Restored, seconds: float) -> None:
        """Steps up to that of ``restored`` are done and durable."""
        self._step = restored.step
        if jax.process_index() == 0:
            for each in restored.quarantined:
                self._log.write(CheckpointQuarantined(step=each.step, reason=each.reason, path=each.path))
        self._log.write(
            CheckpointRestored(
                step=restored.step,
                seconds=seconds,
                path=self._path_of(restored.step),
                verified=restored.verified,
            )
        )

    def resume_at(self, step: int) -> None:
        """Steps up to ``step`` are done, and their state came from a living replica."""
        self._step = step
        self._farewell.resume_at(step)

    @contextmanager
    def pause(self, what: str) -> Iterator[None]:
        """``what`` happens inside, and is not part of a step's time (compiling, evaluating, saving).

        May be nested, as when an evaluation compiles its program: the time counts once.
        """
        self._flush()
        began, outermost = time.perf_counter(), not self._paused
        self._paused = True
        try:
            with self.intent(what):
                yield
        finally:
            if outermost:
                self._paused = False
                self._paused_s += time.perf_counter() - began

    @contextmanager
    def intent(self, what: str) -> Iterator[None]:
        """While the block runs, the watchdog knows what keeps this host from its step."""
        phase = nullcontext() if self._session is None else self._session.membership.phase(what)
        with phase, self._position.pausing(what):
            yield

    def timed(self, stream: BatchStream) -> Iterator[dict[str, jax.Array]]:
        """The batches of ``stream``, with the time that each was waited for. The first step begins here."""
        self._mark, self._paused_s = time.perf_counter(), 0.0
        batches = iter(stream)
        while True:
            with self.intent(AWAITING_DATA):
                batch = next(batches, None)
            if batch is None:
                return
            self._data_wait_s += stream.last_wait_s
            yield batch

    def step_done(
        self, step: int, metrics: Mapping[str, Any], state: Any, position: Mapping[str, Any]
    ) -> None:
        """See ``TrainContext.report``.

        Raises:
            RunStopped: the driver asked for this step to be the last; its state is durable.
        """
        if step != self._step + 1:
            raise SpecError(
                f"context.report was given step {step} after step {self._step}; steps are reported one by "
                "one, beginning with context.start_step + 1"
            )
        self._step = step
        if self._store is not None:
            self._store.raise_failed_save()
        self._flush()
        self._pending = _Pending(step, dict(metrics), self._data_wait_s, self._waited_s())
        self._data_wait_s = 0.0
        if self._session is not None:
            self._last = (step, state, position)
        self._farewell.passed(step)
        # Between outer steps replicas have states of their own, none of which is the run's.
        common = step % self._every == 0
        last = common and self._farewell.is_last(step)
        if state is not None and common and self._must_save(step, last):
            self._save(step, state, position)
        self._note_saves()
        if last and step != self._job.steps:
            saved = self._saved_step == step
            with self.intent(FINISHING):
                self.finish()
                if self._session is not None:
                    self._session.finish(self.save_last)
            raise RunStopped(self._farewell.reason + (f"; step {step} is saved" if saved else ""))

    def save_last(self) -> None:
        """Save the last step, in place of the replica that was to do it and is lost. Collective."""
        if self._store is not None and self._was_due and self._last is not None:
            self._save(*self._last)
            self.finish()

    def finish(self) -> None:
        """Fetch the last metrics and wait for the last save. Collective."""
        self._flush()
        if self._store is not None and self._saved_step is not None:
            self._settle_save(self._store)

    def _must_save(self, step: int, last: bool) -> bool:
        """Of replicas, which all have the same state, the one that leads saves: also when it has just come to
        lead, because the last save of its predecessor may not have become durable."""
        led, self._led = self._led, self._session is None or self._session.leads
        due = last or self.is_due(step)
        self._was_due = self._was_due or due
        return self._store is not None and self._led and (due or (self._was_due and not led))

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint of this step is wanted."""
        checkpoint = self._job.checkpoint
        return checkpoint is not None and (step % checkpoint.every_steps == 0 or step == self._job.steps)

    def _save(self, step: int, state: Any, position: Mapping[str, Any]) -> None:
        assert self._store is not None
        with self.pause(SAVING):
            began = time.perf_counter()
            self._settle_save(self._store)
            self._store.save(step, self.whole(state), dict(position))
            self._saved_step, self._saved_metrics = step, self._last_metrics
            self._log.write(CheckpointSaved(step=step, blocked_s=time.perf_counter() - began))

    def _settle_save(self, store: CheckpointStore) -> None:
        """Wait for the save that is under way and tell Ray Train that it is durable. Collective."""
        if self._saved_step is None:
            return
        store.wait(self._job.deadlines.checkpoint_s)
        self._note_saves()
        self._announce(self._path_of(self._saved_step), self._saved_step, self._saved_metrics)
        self._saved_step = None

    def _note_saves(self) -> None:
        if self._store is not None:
            for report in self._store.save_reports():
                event = self._event_of(report)
                if isinstance(event, CheckpointDurable):
                    self._farewell.saved(event.seconds)
                self._log.write(event)

    def _event_of(self, report: SaveReport) -> WrittenEvent:
        from raytpu.checkpoint import DurableSave, SlowSave

        if isinstance(report, SlowSave):
            return CheckpointSlow(step=report.step, seconds=report.seconds, limit_s=report.limit_s)
        if isinstance(report, DurableSave):
            return CheckpointDurable(
                step=report.step, seconds=report.seconds, path=self._path_of(report.step)
            )
        return CheckpointVerified(step=report.step, seconds=report.seconds, size=report.size)

    def _path_of(self, step: int) -> str:
        assert self._store is not None
        return join_url(self._store.directory, str(step))

    def _waited_s(self) -> float:
        exchanged_s = 0.0 if self._session is None else self._session.membership.take_exchanged_s()
        return self._position.take_waited_s() + exchanged_s

    def _flush(self) -> None:
        """Fetch the metrics of the pending step; their arrival is the end of that step."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        with self._position.waiting():
            values = {name: float(value) for name, value in pending.metrics.items()}
        now = time.perf_counter()
        seconds, self._mark, self._paused_s = now - self._mark - self._paused_s, now, 0.0
        self._last_metrics = values
        self._position.step_took(seconds)
        self._log.write(
            StepFinished(
                step=pending.step,
                seconds=seconds,
                data_wait_s=pending.data_wait_s,
                wait_s=pending.wait_s,
                metrics=values if jax.process_index() == 0 else {},
                tokens=self._tokens,
            )
        )
