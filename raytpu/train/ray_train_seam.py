"""The one module that touches Ray Train's private parts; ``tests/train/test_ray_train_seam.py`` tells when
Ray changes them.

Ray Train picks hosts by itself, starts its workers after its controller is up, and orders ranks by slice
name as a string. raytpu has chosen and held the hosts, and started one process on each, before Ray Train's
controller exists. What joins the two:

=============================================  ======================================================
``ScalingConfig._validate_tpu_config``         skipped: its table lacks shapes (v5p 4x4x28, v6e 2x4 on two
                                               hosts) and it refuses chips without ``use_tpu``
``WorkerGroup._create_placement_group``        gives the gang's placement group instead of a new one
``WorkerGroup._create_workers``                adopts the gang's actors, rank = process index of the plan
``TrainController.worker_group_cls``           a class attribute: names the worker group above
``DataParallelTrainer._initialize_and_run_…``  starts that controller and watches it while it runs
``DataParallelTrainer._create_default_…``      without the cleaner that would remove the gang's group
``CHECKPOINT_MANAGER_SNAPSHOT_FILENAME``       deleted before a start: it names checkpoints of earlier starts
                                               that the store has deleted since, and Ray refuses such a run
``RayTrainWorker``                             base of the adopted actors
=============================================  ======================================================

Seen in Ray 2.60.0. Controller, results, callbacks and ``ray.train.report`` stay Ray's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.train import Checkpoint as RayCheckpoint
from ray.train import Result, RunConfig, ScalingConfig
from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.constants import (
    CHECKPOINT_MANAGER_SNAPSHOT_FILENAME,
    get_env_vars_to_propagate,
)
from ray.train.v2._internal.execution.context import DistributedContext
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.worker_group.placement_group_handle import PlacementGroupHandle
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker, Worker
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.report_config import CheckpointUploadMode
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raytpu.errors import DeadlineExceeded
from raytpu.gang import Host
from raytpu.gang.placement import HOST_CPUS
from raytpu.gang.release import RELEASE_S, within_s
from raytpu.record.storage import delete_file, join_url
from raytpu.train.host_process import HostProcess, this_process

POLL_S = 0.5
"""How often the controller looks at its workers (Ray's default is 2 s), and the driver at the controller."""

CONTROLLER_ENVIRONMENT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": str(POLL_S),
    # Its watcher restarts the group on a drain notice without choosing another slice, and costs a process.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}


class HostWorker(HostProcess, RayTrainWorker):
    """A host process that Ray Train can adopt as a worker."""

    def __init__(self, host: str) -> None:
        RayTrainWorker.__init__(self)
        HostProcess.__init__(self, host)


@dataclass(kw_only=True)
class GangBackendConfig(BackendConfig):
    """Carries the gang to Ray Train's controller."""

    placement_group: PlacementGroup
    hosts: tuple[Host, ...]

    @property
    def backend_cls(self) -> type[Backend]:
        """Nothing to set up: the hosts join JAX's world on the driver's word."""
        return Backend


@dataclass
class GangScalingConfig(ScalingConfig):
    """As many workers as the gang has hosts, each with its chips."""

    def _validate_tpu_config(self) -> None:
        pass


class _HeldPlacement(PlacementGroupHandle):
    """The gang's placement group: it exists already, and whoever held it releases it."""

    def __init__(self, group: PlacementGroup) -> None:
        self._group = group

    @property
    def placement_group(self) -> PlacementGroup:
        return self._group

    def ready(self) -> ray.ObjectRef:
        return self._group.ready()

    def wait(self, timeout_seconds: float = 30) -> bool:
        return self._group.wait(timeout_seconds)

    def shutdown(self) -> None:
        pass


class GangWorkerGroup(WorkerGroup):
    """A worker group over the gang's actors."""

    @property
    def _gang(self) -> GangBackendConfig:
        return self._train_run_context.backend_config

    def _create_placement_group(self, *_: Any) -> PlacementGroupHandle:
        return _HeldPlacement(self._gang.placement_group)

    def _create_workers(
        self,
        num_workers: int,
        placement_group: PlacementGroup,  # noqa: ARG002 (Ray's signature)
        resources_per_worker: dict[str, float],
        *_: Any,
        **__: Any,
    ) -> list[Worker]:
        hosts = self._gang.hosts
        facts = ray.get([host.actor.get_metadata.remote() for host in hosts])
        return [
            Worker(
                host.actor,
                fact,
                resources_per_worker,
                distributed_context=DistributedContext(
                    world_rank=rank, world_size=num_workers, local_rank=0, local_world_size=1, node_rank=rank
                ),
                placement_group_bundle_index=rank,
            )
            for rank, (host, fact) in enumerate(zip(hosts, facts, strict=True))
        ]


class GangController(TrainController):
    """Ray Train's controller over a gang."""

    worker_group_cls = GangWorkerGroup


class GangTrainer(DataParallelTrainer):
    """Ray Train's trainer over a gang.

    Args:
        watch: called about twice a second while the controller runs; may raise to end the run.
        start_deadline_s: for the controller's own process to come up.
        arguments: those of ``DataParallelTrainer``.
    """

    def __init__(self, *, watch: Callable[[], None], start_deadline_s: float, **arguments: Any) -> None:
        self._watch, self._start_deadline_s = watch, start_deadline_s
        super().__init__(**arguments)

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()
        return [each for each in callbacks if not isinstance(each, PlacementGroupCleanerCallback)]

    def _initialize_and_run_controller(self, **arguments: Any) -> Result:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        controller_class = ray.remote(
            num_cpus=0,
            scheduling_strategy=here,
            runtime_env={"env_vars": get_env_vars_to_propagate() | CONTROLLER_ENVIRONMENT},
        )(GangController)
        controller = controller_class.remote(**arguments)
        up, is_up = controller.__ray_ready__.remote(), False
        running = controller.run.remote()
        until = time.monotonic() + self._start_deadline_s
        try:
            while not ray.wait([running], timeout=POLL_S)[0]:
                self._watch()
                is_up = is_up or bool(ray.wait([up], timeout=0)[0])
                if not is_up and time.monotonic() >= until:
                    raise DeadlineExceeded("Ray Train's controller to start", self._start_deadline_s)
            ray.get(running)
            return ray.get(controller.get_result.remote())
        finally:
            within_s(RELEASE_S, lambda: ray.kill(controller))


def gang_trainer(
    train_function: Callable[[], Any],
    *,
    placement_group: PlacementGroup,
    hosts: Sequence[Host],
    run_config: RunConfig,
    watch: Callable[[], None],
    start_deadline_s: float,
    datasets: dict[str, Any] | None = None,
    dataset_config: Any = None,
) -> GangTrainer:
    """Ray Train's trainer that runs ``train_function`` on every host of a held gang."""
    delete_file(
        join_url(str(run_config.storage_path), str(run_config.name), CHECKPOINT_MANAGER_SNAPSHOT_FILENAME)
    )
    chips = hosts[0].assignment.chips
    return GangTrainer(
        watch=watch,
        start_deadline_s=start_deadline_s,
        train_loop_per_worker=train_function,
        backend_config=GangBackendConfig(placement_group=placement_group, hosts=tuple(hosts)),
        scaling_config=GangScalingConfig(
            num_workers=len(hosts), resources_per_worker={"CPU": HOST_CPUS, "TPU": float(chips)}
        ),
        run_config=run_config,
        datasets=datasets,
        dataset_config=dataset_config,
    )


def run_on_this_host(program: Any) -> Any:
    """What Ray Train calls on each worker: the host process runs ``program``."""
    return this_process().run(program, _announce)


def _announce(path: str, step: int, metrics: Any) -> None:
    """Tell Ray Train that a checkpoint is durable, so that its results and dashboard show it. Collective."""
    checkpoint = RayCheckpoint(path) if this_process().assignment.process_index == 0 else None
    ray.train.report(
        {"step": step, **metrics},
        checkpoint=checkpoint,
        checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
    )


def result_of(run_config: RunConfig, metrics: dict[str, Any], checkpoint: str | None) -> Result:
    """Ray Train's result of a run that Ray Train did not control."""
    return Result(
        metrics=metrics or None,
        checkpoint=None if checkpoint is None else RayCheckpoint(checkpoint),
        error=None,
        path=join_url(str(run_config.storage_path), str(run_config.name)),
    )
