"""A driver that lives in the cluster instead of in this process.

The driver of a detached run is a Ray actor of its own name, on the head node, that belongs to no job. It
does what ``raytpu run`` does when attached, and ends itself when the run has ended.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raytpu.errors import DeadlineExceeded, RaytpuError, RunIsLive
from raytpu.launch.connect import NAMESPACE
from raytpu.launch.run import RunOptions, train
from raytpu.spec import Workload

START_DEADLINE_S = 60.0
"""For the driver to start on the head node, and again to take the run; 2 to 4 s on a busy machine."""


class DetachedDriver:
    """The actor. Its process is the driver: the run's lease names it."""

    def __init__(self, workload: Workload, options: RunOptions, python_path: tuple[str, ...]) -> None:
        sys.path.extend(path for path in python_path if path not in sys.path)
        self._workload, self._options = workload, options
        self._settled = threading.Event()
        self._failure: BaseException | None = None

    def start(self) -> int:
        """Become the driver of the run, and answer then with this process's id.

        Raises:
            RaytpuError: what kept it from becoming the driver; after that, the record has it.
        """
        threading.Thread(target=self._drive, name="raytpu-driver").start()
        if not self._settled.wait(START_DEADLINE_S):
            raise DeadlineExceeded("the detached driver to take the run", START_DEADLINE_S)
        if self._failure is not None:
            raise self._failure
        return os.getpid()

    def _drive(self) -> None:
        try:
            train(self._workload, self._options, on_start=self._settled.set)
        except BaseException as error:  # the thread's boundary: told by start, or in the record already
            if not self._settled.is_set():
                self._failure = error
                self._settled.set()
                return  # start tells; then whoever asked ends this process
        # The record says how it ended. An actor that leaves by itself frees its name.
        os._exit(0)


def start_detached(
    workload: Workload, options: RunOptions, python_path: tuple[str, ...]
) -> Mapping[str, Any]:
    """Start a driver in the connected cluster, and return where it lives as ``{"actor", "pid"}``.

    Raises:
        RunIsLive: the cluster has a detached driver of this run already.
        DeadlineExceeded: its process did not start.
    """
    name = f"raytpu-run-{workload.name}"
    head = _head_node_id()
    remote_class = ray.remote(DetachedDriver).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(head, soft=False),
    )
    try:
        actor = remote_class.remote(workload, options, python_path)
    except ValueError as error:  # Ray's word for a name that is taken
        raise RunIsLive(
            f"run {workload.name} has a detached driver already; to end it: raytpu stop {workload.name}"
        ) from error
    try:
        pid = ray.get(actor.start.remote(), timeout=2 * START_DEADLINE_S)
    except ray.exceptions.RayTaskError as error:
        ray.kill(actor)
        if isinstance(error.cause, RaytpuError):
            raise error.cause from None
        raise
    except ray.exceptions.GetTimeoutError as error:
        ray.kill(actor)
        raise DeadlineExceeded(
            "the detached driver to start on the head node", 2 * START_DEADLINE_S
        ) from error
    return {"actor": name, "pid": pid}


def _head_node_id() -> str:
    """The node that lasts as long as the cluster does; a host may be lost."""
    for node in ray.nodes():
        if node["Alive"] and "node:__internal_head__" in node["Resources"]:
            return node["NodeID"]
    raise DeadlineExceeded("the head node to be alive", 0)
