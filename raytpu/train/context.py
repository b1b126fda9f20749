"""What a user's train function sees: the mesh, batches, compiled programs, checkpoints, and the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from raytpu.data import BatchStream
from raytpu.errors import SpecError
from raytpu.plan.watchdog import FINISHING
from raytpu.record import Averaged, Evaluated, EventLog, SampleWritten
from raytpu.runtime import ProgramCache
from raytpu.train.farewell import Farewell
from raytpu.train.job import TrainJob
from raytpu.train.loop_position import LoopPosition
from raytpu.train.programs import Program, fused
from raytpu.train.replicas.diloco_step import DilocoStep
from raytpu.train.replicas.replicated_step import ReplicatedStep, state_from_replica
from raytpu.train.replicas.session import ReplicaSession
from raytpu.train.step_record import Announce, StepRecord

if TYPE_CHECKING:  # loads Orbax, which a run without checkpoints does not need
    from raytpu.checkpoint import CheckpointStore


class TrainContext:
    """One process's part in a training run. Every method that says *collective* is called by all processes
    in the same order, or the slice hangs.

    Args:
        job: what is to be done.
        mesh: all devices of the gang.
        rows: gives the packed rows of a stream by name; may wait for the driver to prepare them.
        store: checkpoints, or ``None`` when the workload keeps none.
        programs: compiled programs of earlier attempts.
        log: this process's event log.
        announce: tells Ray Train that a checkpoint is durable; collective.
        farewell: the last save that all hosts agree on when the slices are taken away.
        position: where this process is in its loop, kept for the watchdog.
        session: of a replica with the others; ``None`` in lockstep.
    """

    def __init__(
        self,
        *,
        job: TrainJob,
        mesh: Mesh,
        rows: Callable[[str], Any],
        store: CheckpointStore | None,
        programs: ProgramCache,
        log: EventLog,
        announce: Announce,
        farewell: Farewell,
        position: LoopPosition,
        session: ReplicaSession | None = None,
    ) -> None:
        self.mesh = mesh
        self.config: Mapping[str, Any] = job.config
        self.start_step = 0
        """Steps that the restored checkpoint has behind it; 0 until ``restore`` finds one."""
        self._job, self._rows, self._store, self._programs, self._log = job, rows, store, programs, log
        self._position: dict[str, Any] | None = None
        self._steps_ahead = 0
        self._streams: list[BatchStream] = []
        self._train_stream: BatchStream | None = None
        self._session = session
        self._step: ReplicatedStep | DilocoStep | None = None
        self._loop_position = position
        self._record = StepRecord(
            job=job,
            store=store,
            log=log,
            announce=announce,
            farewell=farewell,
            position=position,
            session=session,
        )

    @property
    def process_index(self) -> int:
        """Index of this process in slice order; equal to the plan's, which was checked at start."""
        return jax.process_index()

    @property
    def process_count(self) -> int:
        """Number of hosts of the gang."""
        return jax.process_count()

    @property
    def batch_spec(self) -> PartitionSpec:
        """Rows of a batch lie over the batch axes of the mesh, in mesh order."""
        return PartitionSpec(tuple(self._job.mesh.batch_axes))

    @property
    def batch_sharding(self) -> NamedSharding:
        """``batch_spec`` on this mesh."""
        return NamedSharding(self.mesh, self.batch_spec)

    def jit(self, function: Callable[..., Any], **options: Any) -> Program:
        """``jax.jit``, compiled ahead of time on the first call, timed, and kept in the compile cache.

        Args:
            function: takes and returns pytrees of arrays.
            options: those of ``jax.jit``, such as ``donate_argnums`` and ``out_shardings``.

        Raises:
            SpecError: ``options`` has static arguments.
        """
        return Program(
            function,
            options,
            cache=self._programs,
            log=self._log,
            pause=partial(self._record.pause, "compiling"),
            waiting=self._loop_position.waiting,
        )

    def step(
        self,
        gradients: Callable[[Any, Any], tuple[Any, Mapping[str, Any]]],
        apply: Callable[[Any, Any], tuple[Any, Mapping[str, Any]]],
        parameters: Callable[[Any], Any] | None = None,
    ) -> Callable[[Any, Any], tuple[Any, Mapping[str, Any]]]:
        """The train step, ``(state, batch) -> (state, metrics)``, in the way that the workload's slices work.

        In lockstep both functions become one program. As replicas, each slice computes the gradients of its
        part of the batch, the slices average them, and each applies the average to its own copy of the
        state. The old state is donated in both.

        With ``train.replicas.every_steps`` above 1 each slice applies its own gradients, and only every so
        many steps the slices average how far their parameters came. Between these steps state and metrics are
        those of this slice.

        Make the step before ``restore``, so that a replica that joins compiles it before the others wait.

        Args:
            gradients: ``(state, batch) -> (gradients, metrics)`` of the *mean* loss of the batch it is given.
                Metrics are fp32 scalars; those of the parts are averaged.
            apply: ``(state, gradients) -> (state, metrics)``; what depends on all gradients, such as
                clipping, belongs here.
            parameters: picks the parameters out of a state, as ``lambda state: state.parameters``; what is
                left, such as the optimizer's state, is each slice's own between averages. Needed with
                ``every_steps`` above 1 only.

        Raises:
            SpecError: ``every_steps`` is above 1, and ``parameters`` is not given or picks nothing.
        """
        if self._session is None:
            return self.jit(fused(gradients, apply), donate_argnums=0)
        if self._session.place.settings.every_steps == 1:
            self._step = ReplicatedStep(
                self.jit(gradients), self.jit(apply, donate_argnums=(0, 1)), self._session
            )
        elif parameters is None:
            raise SpecError(
                "with train.replicas.every_steps, context.step must know what to average: give it "
                "parameters=lambda state: …, the part of the state that gradients are of"
            )
        else:
            self._step = DilocoStep(
                gradients,
                apply,
                parameters,
                session=self._session,
                jit=self.jit,
                meets=self._record.is_due,
            )
        self._record.whole = self._step.whole
        return self._step

    def restore(self, state: Any) -> Any:
        """The state of the newest good checkpoint, laid out as ``state``; or ``state`` itself.

        Damaged newer ones are put aside and recorded. Call it before ``batches("train")``, which then begins
        with the very next batch. Collective.

        Raises:
            CheckpointMismatch: the checkpoint is of another model.
            StorageError: there are checkpoints, and none is good.
        """
        if self._train_stream is not None:
            raise SpecError(
                'context.restore comes before context.batches("train"): it sets where data begins'
            )
        if self._session is None:
            return self._from_storage(state)
        return self._among_replicas(self._session, state)

    def _from_storage(self, state: Any) -> Any:
        if self._store is None:
            return state
        began = time.perf_counter()
        restored = self._store.restore_newest(state)
        if restored is None:
            return state
        self._record.restored(restored, time.perf_counter() - began)
        self._position, self.start_step = restored.position, restored.step
        return restored.state

    def _among_replicas(self, session: ReplicaSession, state: Any) -> Any:
        if self._step is None:
            raise SpecError(
                "with across_slices: replicas, make the step with context.step before context.restore"
            )
        if "train" in self._job.streams:
            self._step.prepare(state, self._abstract_part())
        whole = self._step.whole(state)
        if session.place.joining:
            number, whole = state_from_replica(session, whole, self._log)
            started = session.membership.started
            self._position = dict(started.position)
            self._steps_ahead = (number - started.step) * self._step.every
            self.start_step = number * self._step.every
            self._record.resume_at(self.start_step)
        else:
            whole = self._from_storage(whole)
            session.begin(self.start_step // self._step.every, self._position or {})
        return self._step.begin(whole, self.start_step)

    def _abstract_part(self) -> dict[str, jax.ShapeDtypeStruct]:
        session = self._session
        assert session is not None
        shape = (self._job.global_batch // session.place.parts, int(self._job.config["sequence_length"]))
        rows = jax.ShapeDtypeStruct(shape, "int32", sharding=self.batch_sharding)
        return {"tokens": rows, "targets": rows}

    def has_data(self, name: str) -> bool:
        """Whether the workload provides a stream of this name (``eval`` exists when ``holdout`` is set)."""
        return name in self._job.streams

    def batches(self, name: str = "train") -> Iterator[dict[str, jax.Array]]:
        """Global batches of a stream, each a dict of arrays ``[global_batch, sequence_length]``.

        ``tokens`` and ``targets`` (the tokens one place later), int32, over ``batch_spec``. Endless:
        epoch follows epoch, each in its own order. ``train`` goes on from the restored position;
        any other stream begins anew at each call. Collective.

        Raises:
            SpecError: the workload has no such stream.
            DeadlineExceeded: the driver did not prepare the data within ``deadlines.data_s``.
        """
        if name not in self._job.streams:
            known = ", ".join(self._job.streams) or "none"
            raise SpecError(f"the workload provides no data stream {name!r}; it has: {known}")
        if name == "train" and self._train_stream is not None:
            raise SpecError('context.batches("train") is already open; a run has one train stream')
        session = self._session if name == "train" else None  # others are read by each replica as a whole
        stream = BatchStream(
            self._rows(name),
            self.mesh,
            self.batch_spec,
            self._job.global_batch,
            self._job.seed,
            position=self._position if name == "train" else None,
            ahead=self._steps_ahead * self._job.global_batch if name == "train" else 0,
            deadline_s=self._job.deadlines.data_s,
            parts=1 if session is None else session.place.parts,
            wanted=(lambda: (0,)) if session is None else session.parts_to_read,
        )
        self._streams.append(stream)
        if name == "train":
            self._train_stream = stream
            return self._record.timed(stream)
        return iter(stream)

    def report(self, step: int, metrics: Mapping[str, Any], state: Any = None) -> None:
        """Record one finished step, and save ``state`` when a checkpoint is due.

        The metrics are fetched one step later, so that the devices are never waited for. A checkpoint is
        due every ``checkpoint.every_steps`` and at ``train.config.steps``. Collective.

        Args:
            step: steps done, this one included; so the first call after a fresh start says 1.
            metrics: scalars, as arrays or numbers; the same names at every step.
            state: pytree of global arrays; without it nothing is saved.

        Raises:
            SaveFailed: an earlier save failed in the background.
            RunStopped: the slices go to somebody else, and this step's state is saved. Let it pass.
        """
        position = self._train_stream.position if self._train_stream is not None else {}
        self._record.step_done(step, metrics, state, position)

    @contextmanager
    def evaluating(self, step: int) -> Iterator[dict[str, Any]]:
        """A block that evaluates: put metrics into the dict it gives. Its time is not the next step's.

        >>> with context.evaluating(step) as metrics:
        ...     metrics["loss"] = evaluate(state, batch)
        """
        metrics: dict[str, Any] = {}
        with self._record.pause("evaluating"):
            began = time.perf_counter()
            yield metrics
            values = {name: float(value) for name, value in metrics.items()}
        self._log.write(Evaluated(step=step, metrics=values, seconds=time.perf_counter() - began))

    def record_sample(self, text: str) -> None:
        """Record a text that the model wrote; the summary shows it. Process 0's is kept."""
        if self.process_index == 0:
            self._log.write(SampleWritten(text=text))

    def finish(self) -> None:
        """Wait until the last save is durable. Called after the train function. Collective.

        Raises:
            SaveFailed: the last save failed: a run whose last checkpoint is stale has not succeeded.
        """
        with self._record.intent(FINISHING):
            self._record.finish()
            if self._session is not None:
                self._session.finish(self._record.save_last)
                self._log.write(Averaged(rounds=self._session.rounds, sent_bytes=self._session.sent_bytes))
            if self._store is not None:
                self._store.close(self._job.deadlines.checkpoint_s)

    def close(self) -> None:
        """Stop the threads of all streams; safe after any failure.

        A save that is under way is not waited for: it may wait for a peer that is gone, and the error that
        ended the train function must get out.
        """
        for stream in self._streams:
            stream.close()
        if self._session is not None:
            self._session.close()
