"""Kubernetes, the KubeRay operator and Ray's own autoscaler in one process, for one RayCluster.

``python -m tests.kuberay.autoscaler PLAN_JSON``. Real are the autoscaler (v2: its monitor, scheduler and
instance manager), its KubeRay provider and how it reads a RayCluster, the Ray nodes, and GKE's node labels
and resources as Ray derives them. A stand-in are the API server (a dictionary) and the operator, which does
what is described here and nothing else: a replica of a group is ``numOfHosts`` pods that come together, and
go together when one of them is to be deleted.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from ray.autoscaler._private.kuberay import autoscaling_config, node_provider
from ray.autoscaler.v2.instance_manager.cloud_providers.kuberay import cloud_provider
from ray.autoscaler.v2.instance_manager.config import KubeRayConfigReader
from ray.autoscaler.v2.monitor import AutoscalerMonitor

from raytpu.cluster.simulation_plan import SimulationPlan, SlicePlan, host_plan
from tests.kuberay.cluster import HEAD_GROUP, HEAD_POD, Group, pod_environment

NAME = "ray"
POD_START_S = 1.5
"""More than a pass of the autoscaler takes, which therefore sees the pods before their hosts. So it is on
GKE, where a pass takes 5 s and a TPU pod much longer. Were the hosts there before the next pass, a demand
that asks for the head on each would look one host short, and one be requested that never comes."""
_LOOK_S = 0.1


class Kubernetes(node_provider.IKubernetesHttpApiClient):
    """The API server, as far as Ray's autoscaler uses it."""

    def __init__(self, groups: list[Group], idle_timeout_s: int) -> None:
        self.lock = threading.RLock()
        self.cluster = ray_cluster(groups, idle_timeout_s)
        self.pods: dict[str, dict[str, Any]] = {HEAD_POD: _pod(HEAD_POD, "head", HEAD_GROUP)}
        self.replicas_over_time: dict[str, list[int]] = {group.name: [0] for group in groups}

    def get(self, path: str) -> dict[str, Any]:
        with self.lock:
            match urlsplit(path).path.split("/"):
                case ["rayclusters", _]:
                    return copy.deepcopy(self.cluster)
                case ["pods"]:
                    items = copy.deepcopy(list(self.pods.values()))
                    return {"metadata": {"resourceVersion": "1"}, "items": items}
        raise NotImplementedError(path)

    def patch(self, path: str, payload: Any, content_type: str = "") -> dict[str, Any]:  # noqa: ARG002
        assert path == f"rayclusters/{NAME}"
        with self.lock:
            for change in payload:
                assert change["op"] == "replace", change
                *way, last = change["path"].strip("/").split("/")
                place: Any = self.cluster
                for step in way:
                    place = place[int(step)] if isinstance(place, list) else place[step]
                place[last] = change["value"]
            for group in self.worker_groups():
                seen = self.replicas_over_time[group["groupName"]]
                if seen[-1] != group["replicas"]:
                    seen.append(group["replicas"])
            return copy.deepcopy(self.cluster)

    def delete(self, path: str) -> dict[str, Any]:
        raise NotImplementedError(path)

    def worker_groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self.cluster["spec"]["workerGroupSpecs"]
        return groups


def ray_cluster(groups: list[Group], idle_timeout_s: int) -> dict[str, Any]:
    """The RayCluster, with what Ray's autoscaler reads of it."""
    return {
        "metadata": {"name": NAME, "namespace": "default"},
        "spec": {
            "enableInTreeAutoscaling": True,
            "autoscalerOptions": {"version": "v2", "idleTimeoutSeconds": idle_timeout_s},
            "headGroupSpec": {"rayStartParams": {}, "template": _template({"cpu": "2"}, {})},
            "workerGroupSpecs": [
                {
                    "groupName": group.name,
                    "replicas": 0,
                    "minReplicas": 0,
                    "maxReplicas": group.max_replicas,
                    "numOfHosts": group.slice_plan.hosts,
                    "rayStartParams": {},
                    "template": _template(
                        {"cpu": "2", "google.com/tpu": str(group.slice_plan.chips_per_host)},
                        {
                            autoscaling_config.GKE_TPU_TOPOLOGY_LABEL: group.slice_plan.topology,
                            autoscaling_config.GKE_TPU_ACCELERATOR_LABEL: group.gke_accelerator,
                        },
                    ),
                }
                for group in groups
            ],
        },
    }


def _template(limits: dict[str, str], node_selector: dict[str, str]) -> dict[str, Any]:
    return {"spec": {"nodeSelector": node_selector, "containers": [{"resources": {"limits": limits}}]}}


def _pod(name: str, kind: str, group: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"ray.io/node-type": kind, "ray.io/group": group}},
        "status": {"containerStatuses": [{"state": {"running": {}}}]},
    }


class Operator:
    """Makes pods of replicas and Ray nodes of pods."""

    def __init__(self, api: Kubernetes, plan: dict[str, Any], groups: list[Group]) -> None:
        self._api, self._plan = api, plan
        self._groups = {group.name: group for group in groups}
        self._replicas: dict[str, list[str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._serial = itertools.count(1)
        self._addresses = iter(plan["addresses"])

    def run(self) -> None:
        while True:
            with self._api.lock:
                for group in self._api.worker_groups():
                    self._delete(group.get("scaleStrategy", {}).get("workersToDelete", []))
                    mine = [name for name in self._replicas if name.rsplit("-", 1)[0] == group["groupName"]]
                    for _ in range(group["replicas"] - len(mine)):
                        self._create(self._groups[group["groupName"]])
            self._write_down()
            time.sleep(_LOOK_S)

    def _create(self, group: Group) -> None:
        first = not any(name.rsplit("-", 1)[0] == group.name for name in self._replicas)
        slice_name = f"{group.name}-{next(self._serial)}"
        self._replicas[slice_name] = [
            f"{slice_name}-{worker_id}" for worker_id in range(group.slice_plan.hosts)
        ]
        for worker_id, pod in enumerate(self._replicas[slice_name]):
            self._api.pods[pod] = _pod(pod, "worker", group.name)
            if group.pods_start:
                start = partial(self._start, group, slice_name, worker_id, pod)
                threading.Timer(max(POD_START_S, 0 if first else group.later_replicas_s), start).start()
            else:
                self._api.pods[pod]["status"] = {}

    def _start(self, group: Group, slice_name: str, worker_id: int, pod: str) -> None:
        with self._api.lock:
            if pod in self._api.pods:  # else it was deleted before it started
                self._run_node(group, slice_name, worker_id, pod)

    def _run_node(self, group: Group, slice_name: str, worker_id: int, pod: str) -> None:
        simulation = SimulationPlan(**{**self._plan["simulation"], "slices": ()})
        plan = host_plan(
            simulation,
            SlicePlan(**{**asdict(group.slice_plan), "name": slice_name}),
            worker_id,
            address=next(self._addresses),
            serial=next(self._serial),
            head_address=self._plan["gcs_address"],
        )
        plan = replace(plan, environment={**plan.environment, **pod_environment(pod, group.name)})
        self._processes[pod] = subprocess.Popen(
            [sys.executable, "-m", "tests.kuberay.pod", json.dumps(asdict(plan))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    def _delete(self, pods: list[str]) -> None:
        for slice_name, members in list(self._replicas.items()):
            if any(pod in pods for pod in members):
                del self._replicas[slice_name]
                for pod in members:
                    del self._api.pods[pod]
                    if pod in self._processes:
                        self._processes.pop(pod).kill()

    def _write_down(self) -> None:
        path = self._plan["state_path"]
        with self._api.lock:
            state = {"replicas": self._api.replicas_over_time, "slices": self._replicas}
        with open(f"{path}.new", "w") as file:
            json.dump(state, file)
        os.replace(f"{path}.new", path)


def main() -> None:
    plan = json.loads(sys.argv[1])
    groups = [Group(**{**each, "slice_plan": SlicePlan(**each["slice_plan"])}) for each in plan["groups"]]
    api = Kubernetes(groups, plan["idle_timeout_s"])
    for module in (node_provider, cloud_provider):
        module.KubernetesHttpApiClient = lambda namespace: api  # noqa: ARG005 (how Ray calls it)
    threading.Thread(target=Operator(api, plan, groups).run, daemon=True).start()
    reader = KubeRayConfigReader(autoscaling_config.AutoscalingConfigProducer(NAME, "default"))
    AutoscalerMonitor(plan["gcs_address"], reader, log_dir=plan["log_directory"]).run()


if __name__ == "__main__":
    main()
