"""A Ray cluster that grows as one of KubeRay's on GKE does: real autoscaler, stand-in Kubernetes."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from raytpu import Slices
from raytpu.cluster import process_sweep
from raytpu.cluster.loopback import LoopbackNetwork
from raytpu.cluster.simulated_cluster import slice_plan
from raytpu.cluster.simulation_plan import SimulationPlan, SlicePlan, head_plan
from raytpu.topology import GENERATIONS

HEAD_GROUP, HEAD_POD = "headgroup", "head"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A worker group of the RayCluster: TPU slices of one shape."""

    name: str
    slice_plan: SlicePlan
    gke_accelerator: str
    max_replicas: int
    pods_start: bool = True
    """Else its pods stay Pending, as when Google has none to give."""
    later_replicas_s: float = 0.0
    """How long the pods of all replicas but the first take to start."""


def group(
    slices: Slices, max_replicas: int, *, pods_start: bool = True, later_replicas_s: float = 0.0
) -> Group:
    """The group that offers slices of this shape."""
    shape = slices.shape
    return Group(
        name=f"{shape.generation}-{shape.topology}-{shape.chips_per_host}",
        slice_plan=slice_plan(slices),
        gke_accelerator=GENERATIONS[shape.generation].gke_accelerator,
        max_replicas=max_replicas,
        pods_start=pods_start,
        later_replicas_s=later_replicas_s,
    )


def pod_environment(pod: str, group_name: str) -> dict[str, str]:
    """What the KubeRay operator sets in a pod of a cluster with autoscaler v2."""
    return {
        "RAY_CLOUD_INSTANCE_ID": pod,
        "RAY_NODE_TYPE_NAME": group_name,
        "RAY_enable_autoscaler_v2": "1",
    }


@dataclass(slots=True, kw_only=True)
class KubeRayCluster:
    """Up within the ``with`` block; nothing of it is left after the block."""

    groups: Sequence[Group]
    idle_timeout_s: int = 60
    interval_s: int = 1
    """Between two passes of the autoscaler; KubeRay's default is 5."""
    address: str = field(init=False, default="")
    _processes: list[subprocess.Popen[str]] = field(init=False, default_factory=list)
    _id: str = field(init=False, default_factory=lambda: secrets.token_hex(4))
    _network: LoopbackNetwork = field(init=False, default_factory=LoopbackNetwork)

    @property
    def directory(self) -> str:
        return os.path.join(tempfile.gettempdir(), f"raytpu-{self._id}")

    @property
    def state(self) -> dict[str, Any]:
        """``replicas`` of each group over time, and the pods of each of ``slices``, by name."""
        with open(f"{self.directory}/state.json") as file:
            found: dict[str, Any] = json.load(file)
        return found

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        assert process_sweep.kill_marked(f"{self._id}/") == []
        process_sweep.remove_directory(self.directory)
        self._network.close()

    def _start(self) -> None:
        os.makedirs(f"{self.directory}/logs")
        simulation = SimulationPlan(
            sim_id=self._id, name=None, directory=self.directory, record_path=None, detached=False, slices=()
        )
        head = head_plan(simulation, self._network.head)
        head = replace(head, environment={**head.environment, **pod_environment(HEAD_POD, HEAD_GROUP)})
        started = self._run("tests.kuberay.pod", asdict(head), stdout=subprocess.PIPE)
        assert started.stdout is not None
        self.address = json.loads(started.stdout.readline())["gcs_address"]
        started.stdout.close()
        self._run(
            "tests.kuberay.autoscaler",
            {
                "simulation": {
                    "sim_id": self._id,
                    "name": None,
                    "directory": self.directory,
                    "record_path": None,
                    "detached": False,
                },
                "groups": [asdict(each) for each in self.groups],
                "gcs_address": self.address,
                "addresses": [self._network.next_address(()) for _ in range(100)],
                "idle_timeout_s": self.idle_timeout_s,
                "state_path": f"{self.directory}/state.json",
                "log_directory": f"{self.directory}/logs",
            },
            stdout=subprocess.DEVNULL,
        )

    def _run(self, module: str, plan: dict[str, Any], stdout: int) -> subprocess.Popen[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        environment |= {"AUTOSCALER_UPDATE_INTERVAL_S": str(self.interval_s)}
        process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(plan)],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=None if "KUBERAY_DEBUG" in os.environ else subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=Path(__file__).parents[2],
        )
        self._processes.append(process)
        return process
