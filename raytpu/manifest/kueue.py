"""Kueue's objects (v1beta2) for the queue of a workload: a start for an administrator, with room for one.

Two groups of resources: were CPUs and memory covered by the flavor of the slices, Kueue would put the head
on a TPU node as well.
"""

from __future__ import annotations

from raytpu.errors import SpecError
from raytpu.manifest.labels import QUEUED_TAINT, TPU, flavor_name, node_selector
from raytpu.manifest.yaml_text import Document, Noted, Value
from raytpu.plan import ClusterPlan

_API = "kueue.x-k8s.io/v1beta2"
_CPU_FLAVOR = "any-node"
# The pod that submits a RayJob (KubeRay 1.7, common.GetDefaultSubmitterTemplate: limits 1 CPU, 1 GiB).
_SUBMITTER_CPU, _SUBMITTER_GIB = 1, 1


def kueue_objects(plan: ClusterPlan) -> list[Document]:
    """Flavors, queues and, for flex-start, the admission check; apply them once.

    Raises:
        SpecError: the workload names no queue.
    """
    queue = plan.cluster.queue
    if queue is None:
        raise SpecError(f"{plan.workload.name} waits in no queue: cluster.queue is not set")
    check = f"{queue.name}-flex-start"
    documents: list[Document] = [
        _document("ResourceFlavor", _CPU_FLAVOR, {}),
        _document("ResourceFlavor", flavor_name(plan), _flavor(plan)),
        _document("ClusterQueue", queue.name, _cluster_queue(plan, check if queue.flex_start else None)),
        {
            "apiVersion": _API,
            "kind": "LocalQueue",
            "metadata": {"name": queue.name, "namespace": plan.cluster.namespace},
            "spec": {"clusterQueue": queue.name},
        },
    ]
    if queue.flex_start:
        documents += _flex_start(check)
    return documents


def _document(kind: str, name: str, spec: dict[str, Value]) -> Document:
    return {"apiVersion": _API, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _flavor(plan: ClusterPlan) -> dict[str, Value]:
    spec: dict[str, Value] = {"nodeLabels": {**node_selector(plan)}}
    if plan.cluster.queue is not None and plan.cluster.queue.flex_start:
        spec["tolerations"] = [{"key": QUEUED_TAINT, "operator": "Exists", "effect": "NoSchedule"}]
    return spec


def _cluster_queue(plan: ClusterPlan, check: str | None) -> dict[str, Value]:
    hosts = plan.slices * plan.shape.hosts
    cpus = plan.head.cpu + hosts * plan.host.cpu + _SUBMITTER_CPU
    memory_gib = plan.head.memory_gib + hosts * plan.host.memory_gib + _SUBMITTER_GIB
    spec: dict[str, Value] = {
        "namespaceSelector": Noted({}, "Any namespace."),
        "resourceGroups": [
            {
                "coveredResources": ["cpu", "memory"],
                "flavors": [
                    {
                        "name": _CPU_FLAVOR,
                        "resources": [
                            {"name": "cpu", "nominalQuota": Noted(str(cpus), "One such workload.")},
                            {"name": "memory", "nominalQuota": f"{memory_gib}Gi"},
                        ],
                    }
                ],
            },
            {
                "coveredResources": [TPU],
                "flavors": [
                    {
                        "name": flavor_name(plan),
                        "resources": [
                            {
                                "name": TPU,
                                "nominalQuota": Noted(
                                    str(plan.slices * plan.shape.chips),
                                    f"Chips: {plan.slices} × {plan.shape}. Write what the queue may have.",
                                ),
                            }
                        ],
                    }
                ],
            },
        ],
    }
    if check is not None:
        spec["admissionChecksStrategy"] = {
            "admissionChecks": [{"name": check, "onFlavors": [flavor_name(plan)]}]
        }
    return spec


def _flex_start(check: str) -> list[Document]:
    """GKE brings up all hosts of a request, or none (Dynamic Workload Scheduler)."""
    return [
        _document(
            "AdmissionCheck",
            check,
            {
                "controllerName": "kueue.x-k8s.io/provisioning-request",
                "parameters": {
                    "apiGroup": "kueue.x-k8s.io",
                    "kind": "ProvisioningRequestConfig",
                    "name": check,
                },
            },
        ),
        _document(
            "ProvisioningRequestConfig",
            check,
            {
                "provisioningClassName": "queued-provisioning.gke.io",
                "managedResources": Noted([TPU], "The head is on a node that is there already."),
            },
        ),
    ]
