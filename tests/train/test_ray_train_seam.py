"""A tripwire: tells, in a second and without a cluster, when Ray changes what the seam leans on."""

from __future__ import annotations

import inspect

from ray.train import ScalingConfig
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.worker_group.placement_group_handle import PlacementGroupHandle
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker, Worker
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from raytpu.train import ray_train_seam as seam


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_the_controller_still_takes_its_worker_group_from_a_class_attribute():
    """Otherwise Ray would start workers of its own beside the gang's."""
    assert TrainController.worker_group_cls is WorkerGroup
    assert "self.worker_group_cls.create(" in inspect.getsource(TrainController._start_worker_group)


def test_the_worker_group_still_asks_for_placement_and_workers_by_the_overridden_methods():
    """Otherwise the gang's placement group and its actors would be ignored."""
    started = inspect.getsource(WorkerGroup._start_impl)
    assert "self._create_placement_group(" in started
    assert "self._create_workers(" in started
    assert parameters(WorkerGroup._create_placement_group) == [
        "self",
        "scaling_config",
        "worker_group_context",
    ]
    assert parameters(WorkerGroup._create_workers)[:4] == [
        "self",
        "num_workers",
        "placement_group",
        "resources_per_worker",
    ]


def test_the_placement_handle_has_every_abstract_method():
    """A handle with a missing method cannot be built, and no run would start."""
    assert PlacementGroupHandle.__abstractmethods__ == {"placement_group", "ready", "wait", "shutdown"}
    assert not seam._HeldPlacement.__abstractmethods__


def test_the_trainer_still_starts_its_controller_in_the_overridden_method():
    """Otherwise Ray would start a controller that places workers by itself."""
    assert "self._initialize_and_run_controller(" in inspect.getsource(DataParallelTrainer.fit)
    assert "self._create_default_callbacks()" in inspect.getsource(DataParallelTrainer.fit)


def test_a_scaling_config_of_a_shape_that_ray_does_not_know_is_accepted():
    """Ray's own check refuses chips without use_tpu; v6e 2x4 on two hosts is not in its table."""
    assert "self._validate_tpu_config()" in inspect.getsource(ScalingConfig.__post_init__)
    config = seam.GangScalingConfig(num_workers=4, resources_per_worker={"CPU": 1, "TPU": 4})
    assert config.num_tpus_per_worker == 4


def test_an_adopted_actor_answers_every_call_that_ray_makes_to_a_worker():
    """An actor without one of these would end the run at its first poll."""
    calls = {"execute", "run_train_fn", "get_metadata", "poll_status", "shutdown", "init_train_context"}
    assert calls <= set(dir(RayTrainWorker))
    assert calls <= set(dir(seam.HostWorker))
    assert {"actor", "metadata", "resources", "distributed_context"} <= set(Worker.__dataclass_fields__)
