"""The RayCluster of a workload, and what stands beside it."""

from __future__ import annotations

from raytpu.manifest.labels import (
    RAY_VERSION,
    ROLE_LABEL,
    WORKER_GROUP,
    WORKLOAD_LABEL,
    metadata,
    network_claim,
    workload_config_map,
)
from raytpu.manifest.pod_template import WORKLOAD_FILE, head_template, host_template
from raytpu.manifest.yaml_text import Document, Noted, Value
from raytpu.plan import ClusterPlan
from raytpu.spec import workload_yaml


def ray_cluster(plan: ClusterPlan) -> list[Document]:
    """A cluster that stays: its slices are there for any run, and come on demand where it may grow."""
    return [
        *companions(plan),
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": metadata(plan, plan.workload.name, queued=True),
            "spec": cluster_spec(plan, replicas=plan.least if plan.autoscaled else plan.slices),
        },
    ]


def cluster_spec(plan: ClusterPlan, *, replicas: int) -> dict[str, Value]:
    """The ``spec`` of a RayCluster, or the ``rayClusterSpec`` of a RayJob.

    Args:
        replicas: slices to begin with.
    """
    spec: dict[str, Value] = {
        "rayVersion": Noted(RAY_VERSION, "Of the image."),
        "authOptions": Noted(
            {"mode": plan.cluster.auth},
            "Written out: left open, Ray turns tokens on where it finds one, and the operator is refused.",
        ),
    }
    if plan.autoscaled:
        spec["enableInTreeAutoscaling"] = True
        spec["autoscalerOptions"] = _autoscaler(plan)
    spec["headGroupSpec"] = {
        "rayStartParams": {
            "num-cpus": Noted("0", "No tasks on the head: it has no chips, and its loss ends the cluster."),
            "dashboard-host": "0.0.0.0",
        },
        "template": head_template(plan),
    }
    spec["workerGroupSpecs"] = [_slices(plan, replicas)]
    return spec


def _autoscaler(plan: ClusterPlan) -> Value:
    options: dict[str, Value] = {"version": "v2"}
    if plan.launches_at_once is not None:
        options["env"] = Noted(
            [{"name": "AUTOSCALER_MAX_CONCURRENT_LAUNCHES", "value": str(plan.launches_at_once)}],
            "By default 10 nodes at a time, and a slice of more is never asked for.",
        )
    return Noted(options, "v1 of Ray 2.60 looks for a label that KubeRay 1.7 does not write any more.")


def _slices(plan: ClusterPlan, replicas: int) -> Value:
    shape = plan.shape
    hosts = "1 host" if shape.hosts == 1 else f"{shape.hosts} hosts"
    return {
        "groupName": WORKER_GROUP,
        "replicas": Noted(
            replicas,
            f"Slices, not hosts: each is {shape} with {hosts} of {shape.chips_per_host} "
            f"chip{'s' if shape.chips_per_host > 1 else ''}.",
        ),
        "minReplicas": plan.least,
        "maxReplicas": plan.most,
        "numOfHosts": shape.hosts,
        "rayStartParams": {},
        "template": host_template(plan),
    }


def companions(plan: ClusterPlan) -> list[Document]:
    """The workload file as a ConfigMap, the head's PodDisruptionBudget, the network between slices."""
    found: list[Document] = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(plan, workload_config_map(plan)),
            "data": {WORKLOAD_FILE: workload_yaml(plan.workload)},
        },
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata(plan, f"{plan.workload.name}-head"),
            "spec": {
                "minAvailable": Noted(
                    1, "The head holds the cluster together; upgrades of its node wait until it is gone."
                ),
                "selector": {"matchLabels": {WORKLOAD_LABEL: plan.workload.name, ROLE_LABEL: "head"}},
            },
        },
    ]
    if plan.cluster.multislice_network:
        found.append(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate",
                "metadata": metadata(plan, network_claim(plan)),
                "spec": {
                    "spec": {
                        "devices": {
                            "requests": [
                                {
                                    "name": "interfaces",
                                    "exactly": {
                                        "deviceClassName": "netdev.google.com",
                                        "allocationMode": "All",
                                    },
                                }
                            ]
                        }
                    }
                },
            }
        )
    return found
