"""``JaxTrainer``: a train function, whole slices, and a directory that remembers.

A step up from ``ray.train.v2.jax.JaxTrainer``: the same loop runs, ``fit()`` returns Ray's own ``Result``,
and the slices are held whole and by name, ranks follow the hardware, and a run goes on from its newest
durable checkpoint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import PurePosixPath
from typing import Any, Literal

import ray
from ray.train import CheckpointConfig, Result, RunConfig, ScalingConfig

from raytpu.errors import RaytpuError, RunStopped, SpecError, WrongRequest
from raytpu.plan import EndingKind, GangPlan, plan_mesh
from raytpu.record import (
    AttemptEnded,
    AttemptStarted,
    EventLog,
    RunDirectory,
    RunEnded,
    RunLease,
    RunStarted,
    stop_requested,
)
from raytpu.record.storage import make_folder
from raytpu.spec import (
    Checkpoint,
    Deadlines,
    Mesh,
    Recovery,
    Replicas,
    Slices,
    TextData,
    Workload,
    outer_steps_fit,
    workload_yaml,
)
from raytpu.train.data_streams import stream_names
from raytpu.train.entrypoint import TrainFunction, bind, load_entrypoint
from raytpu.train.job import TrainJob
from raytpu.train.replicas.controller import run_replicas
from raytpu.train.scaling import slices_of
from raytpu.train.supervisor import reason_of, supervise
from raytpu.train.training import Training


class JaxTrainer:
    """Trains a JAX program on whole TPU slices.

    Args:
        train_loop_per_worker: the train function, or ``"package.module:function"``. It takes ``context``
            (a ``TrainContext``), ``config``, both, or nothing; a loop written for Ray's JaxTrainer fits.
        train_loop_config: what ``config`` will be. ``steps``, ``global_batch``, ``sequence_length`` and
            ``seed`` have a meaning to raytpu as well.
        slices: which slices, and how many.
        scaling_config: Ray's, in place of ``slices``.
        mesh: axes over ICI and DCN; default ``fsdp`` over the chips of a slice, ``replica`` over slices.
        data: text streams that Ray Data reads, tokenises and packs; the loop takes ``context.batches()``.
        checkpoint: where and how often; without it nothing is saved by ``context.report``.
        run_config: Ray's: ``name``, ``storage_path`` (default of the run's root), ``callbacks`` and
            ``logging_config``. Refused: ``failure_config.max_failures``, ``checkpoint_config.num_to_keep``
            and ``worker_runtime_env``, which would do nothing.
        datasets: Ray Datasets, for loops that call ``ray.train.get_dataset_shard``.
        dataset_config: Ray's, for ``datasets``.
        deadlines: how long each wait may last.
        recovery: what follows a lost slice or an error: further attempts, and what is kept ready for them.
        priority: band in the queue for slices; a higher one goes first, and preempts lower ones.
        across_slices: how several slices train as one; see ``train.across_slices`` of the workload.
        replicas: settings of ``across_slices="replicas"``.
        fresh: begin anew beside what the run has, instead of going on.
        python_path: folders where hosts look for modules too.

    Raises:
        SpecError: the arguments contradict each other.
        EntrypointError: there is no such train function, or it does not take this config.
    """

    def __init__(
        self,
        train_loop_per_worker: TrainFunction | str,
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        slices: Slices | None = None,
        scaling_config: ScalingConfig | None = None,
        mesh: Mesh | None = None,
        data: Mapping[str, TextData] | None = None,
        checkpoint: Checkpoint | None = None,
        run_config: RunConfig | None = None,
        datasets: dict[str, Any] | None = None,
        dataset_config: Any = None,
        deadlines: Deadlines | None = None,
        recovery: Recovery | None = None,
        priority: int = 0,
        across_slices: Literal["lockstep", "replicas"] = "lockstep",
        replicas: Replicas | None = None,
        fresh: bool = False,
        python_path: Sequence[str] = (),
        compile_cache: str | None = None,
        document: str | None = None,
    ) -> None:
        if (slices is None) == (scaling_config is None):
            raise SpecError("JaxTrainer takes either slices=Slices(...) or scaling_config=ScalingConfig(...)")
        self.slices = slices if slices is not None else slices_of(scaling_config)
        self.run_config = run_config if run_config is not None else RunConfig()
        _refuse_unused(self.run_config)
        self._program = train_loop_per_worker
        self._config = dict(train_loop_config or {})
        self._mesh = plan_mesh(mesh, self.slices)
        self._data = dict(data or {})
        self._checkpoint = checkpoint
        self._datasets, self._dataset_config = datasets, dataset_config
        self._priority = priority
        self._recovery = recovery if recovery is not None else Recovery()
        self._replicas = (replicas or Replicas()) if across_slices == "replicas" else None
        if self._replicas is not None:
            _refuse_for_replicas(self.run_config, datasets)
        if broken := list(outer_steps_fit(replicas or Replicas(), across_slices, self._config, checkpoint)):
            raise SpecError("; ".join(f"{'.'.join(map(str, rule.at))}: {rule.message}" for rule in broken))
        self._deadlines = deadlines if deadlines is not None else Deadlines()
        self._python_path = tuple(python_path)
        self._compile_cache = compile_cache
        self._document = document
        root = checkpoint.path if checkpoint is not None else str(self.run_config.storage_path)
        open_directory = RunDirectory.fresh if fresh else RunDirectory.newest
        self.directory: RunDirectory = open_directory(root, str(self.run_config.name))
        function = load_entrypoint(self._program) if isinstance(self._program, str) else self._program
        bind(function, self._config)

    @classmethod
    def from_workload(cls, workload: Workload, **options: Any) -> JaxTrainer:
        """The trainer of a workload document. ``options`` are further arguments of ``JaxTrainer``."""
        return cls(
            workload.train.entrypoint,
            train_loop_config=workload.train.config,
            slices=workload.slices,
            mesh=workload.train.mesh,
            data=workload.data,
            checkpoint=workload.checkpoint,
            run_config=RunConfig(name=workload.name, storage_path=workload.checkpoint.path),
            deadlines=workload.deadlines,
            recovery=workload.recovery,
            priority=workload.priority,
            across_slices=workload.train.across_slices,
            replicas=workload.train.replicas,
            document=workload_yaml(workload),
            **options,
        )

    def fit(self, on_start: Callable[[], None] = lambda: None, *, followed: bool = False) -> Result:
        """Train to the end. Ray must be connected to a cluster that has the slices.

        Args:
            on_start: called once this process is the driver of the run.
            followed: the caller shows the record of the run while it is written, so that what the run waits
                for need not be logged as a warning of the logger ``raytpu``.

        Raises:
            WrongRequest: Ray is not connected, or the storage cannot be written.
            Refused: the slices cannot be held, or another driver owns this run.
            RunFailed: the last attempt failed, and ``recovery`` allows no other one; running again goes on
                from the newest durable checkpoint.
        """
        directory = self.directory
        if not ray.is_initialized():  # Ray's own way is to start a cluster of this machine, without slices
            raise WrongRequest(
                "JaxTrainer.fit needs a Ray that is connected to the slices\n"
                "  call ray.init(address=…) first, with the address of the cluster or of raytpu.simulate(…)"
            )
        directory.check_writable()
        address = ray.get_runtime_context().gcs_address
        with RunLease.take(directory, address) as lease:
            attempt = max(directory.attempts_with_logs(), default=0) + 1
            on_start()
            if self._document is not None:
                directory.write_workload(self._document)
            with EventLog(directory, "driver") as log:
                training = self._training(attempt, log, lease, followed)
                log.write(self._started(lease, address))
                return self._recorded(training)

    def _started(self, lease: RunLease, address: str) -> RunStarted:
        steps = self._config.get("steps")
        return RunStarted(
            run=self.directory.run,
            lineage=self.directory.lineage,
            cluster=address,
            driver=f"{lease.driver.hostname}:{lease.driver.pid}",
            steps=None if steps is None else int(steps),
            checkpoints=self.directory.checkpoints if self._checkpoint is not None else "",
            version=version("raytpu"),
        )

    def _recorded(self, training: Training) -> Result:
        """Write down how the run ends, whatever ends it."""
        outcome, reason = "failed", "the driver was interrupted"
        try:
            result = self._train(training)
            outcome, reason = "finished", ""
            return result
        except RunStopped as stop:
            outcome, reason = "stopped", str(stop)
            raise
        except RaytpuError as error:
            reason = reason_of(error)
            raise
        except KeyboardInterrupt:
            outcome, reason = "stopped", "interrupted by Ctrl-C"
            raise
        finally:
            training.log.write(RunEnded(outcome=outcome, reason=reason))

    def _train(self, training: Training) -> Result:
        if self._replicas is None:
            return supervise(training)
        with _one_attempt(training):
            return run_replicas(training, self._replicas)

    def _training(self, first_attempt: int, log: EventLog, lease: RunLease, followed: bool) -> Training:
        directory = self.directory

        def job_for(attempt: int, gang: GangPlan) -> TrainJob:
            make_folder(directory.logs(attempt))
            return TrainJob(
                run=directory.run,
                attempt=attempt,
                directory=directory.url,
                driver_token=lease.driver.token,
                gang=gang,
                mesh=self._mesh,
                config=self._config,
                streams=stream_names(self._data),
                checkpoint=self._checkpoint,
                deadlines=self._deadlines,
                compile_cache=self._compile_cache,
                python_path=self._python_path,
            )

        def stop_requested_now() -> None:
            lease.check()
            wish = stop_requested(directory)
            if wish is not None:
                raise RunStopped(f"run {directory.run} was stopped by {wish.who}: {wish.reason}")

        return Training(
            name=directory.run,
            slices=self.slices,
            program=self._program,
            first_attempt=first_attempt,
            job_for=job_for,
            deadlines=self._deadlines,
            recovery=self._recovery,
            priority=self._priority,
            run_config=self._ray_run_config(),
            log=log,
            with_checkpoints=self._checkpoint is not None,
            python_path=self._python_path,
            data=self._data,
            datasets=self._datasets,
            dataset_config=self._dataset_config,
            stop_requested=stop_requested_now,
            followed=followed,
        )

    def _ray_run_config(self) -> RunConfig:
        """Ray Train's experiment folder is the run's directory, so that its checkpoints are Ray's as well.

        Deleting old checkpoints is left to the store that writes them: ``num_to_keep`` stays unset.
        """
        return dataclasses.replace(
            self.run_config,
            name=PurePosixPath(self.directory.url).name,
            storage_path=self.directory.run_url,
            checkpoint_config=CheckpointConfig(),
        )


@contextmanager
def _one_attempt(training: Training) -> Iterator[None]:
    """Begin and end of the attempt that a run of replicas is, in the record."""
    ending, reason = EndingKind.STOPPED, "the driver was interrupted"
    training.log.write(AttemptStarted(attempt=training.first_attempt))
    try:
        yield
        ending, reason = EndingKind.COMPLETED, ""
    except RaytpuError as error:
        ending = EndingKind.STOPPED if isinstance(error, RunStopped) else EndingKind.FAILED
        reason = str(error)
        raise
    finally:
        training.log.write(AttemptEnded(ending=ending, reason=reason))


def _refuse_for_replicas(run_config: RunConfig, datasets: Mapping[str, Any] | None) -> None:
    """Ray Train has no part in a run of replicas, so what only it reads would do nothing."""
    given = [name for name, is_set in (("datasets", datasets), ("callbacks", run_config.callbacks)) if is_set]
    if given:
        raise SpecError(
            f'across_slices="replicas": {" and ".join(given)} would do nothing: Ray Train has no part in '
            "such a run; give data= for context.batches, or use lockstep"
        )


def _refuse_unused(run_config: RunConfig) -> None:
    """An option that is taken and does nothing is believed in."""
    unused = {
        "failure_config.max_failures": run_config.failure_config.max_failures != 0,
        "checkpoint_config.num_to_keep": run_config.checkpoint_config.num_to_keep is not None,
        "worker_runtime_env": bool(run_config.worker_runtime_env),
    }
    given = [name for name, is_set in unused.items() if is_set]
    if given:
        raise SpecError(
            f"run_config: {', '.join(given)} would do nothing here; recovery=Recovery(…) says what follows "
            "a failure, checkpoint=Checkpoint(keep=…) what is kept, and host processes use the node's "
            "environment"
        )
