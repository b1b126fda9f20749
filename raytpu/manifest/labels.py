"""Names, labels and node selectors that the documents have in common."""

from __future__ import annotations

from raytpu.manifest.yaml_text import Noted, Value
from raytpu.plan import ClusterPlan
from raytpu.topology import GENERATIONS

RAY_VERSION = "2.60.0"
"""Of the image that ``deploy/image`` builds. KubeRay asks for it when token authentication is on."""

WORKLOAD_LABEL, ROLE_LABEL = "raytpu/workload", "raytpu/role"
"""On all pods of a workload. KubeRay's own label ``ray.io/cluster`` is no use to a PodDisruptionBudget beside
a RayJob: the name of that cluster ends in letters that the operator draws."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

WORKER_GROUP = "tpu"
"""Short, because pods are called by it: a slice is tpu-0, its host 3 tpu-0-3. Names of 64 letters are refused
when pods are created, not before."""

TPU = "google.com/tpu"
ACCELERATOR_LABEL = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
SPOT_LABEL = "cloud.google.com/gke-spot"
RESERVATION_LABEL = "cloud.google.com/reservation-name"
QUEUED_TAINT = "cloud.google.com/gke-queued"


def metadata(plan: ClusterPlan, name: str, *, queued: bool = False) -> dict[str, Value]:
    """The metadata of an object in the namespace of the workload.

    Args:
        queued: whether Kueue is to admit this object.
    """
    labels: dict[str, Value] = {WORKLOAD_LABEL: plan.workload.name}
    if queued and plan.cluster.queue is not None:
        labels[QUEUE_LABEL] = Noted(
            plan.cluster.queue.name, "Kueue creates nothing before all pods of this object fit its quota."
        )
    return {"name": name, "namespace": plan.cluster.namespace, "labels": labels}


def node_selector(plan: ClusterPlan) -> dict[str, str]:
    """Labels of the GKE nodes that are hosts of the workload's slices. GKE sets all of them itself."""
    labels = {
        ACCELERATOR_LABEL: GENERATIONS[plan.shape.generation].gke_accelerator,
        TOPOLOGY_LABEL: plan.shape.topology,
    }
    if plan.cluster.spot:
        labels[SPOT_LABEL] = "true"
    if plan.cluster.reservation is not None:
        labels[RESERVATION_LABEL] = plan.cluster.reservation
    return labels


def workload_config_map(plan: ClusterPlan) -> str:
    """Name of the ConfigMap that holds the workload file."""
    return f"{plan.workload.name}-workload"


def network_claim(plan: ClusterPlan) -> str:
    """Name of the ResourceClaimTemplate for the network between slices."""
    return f"{plan.workload.name}-network"


def pool_name(plan: ClusterPlan) -> str:
    """What node pools of such hosts are called, such as v6e-4x4-4t-spot; at most 40 letters with a number."""
    flex_start = plan.cluster.queue is not None and plan.cluster.queue.flex_start
    kinds = {"spot": plan.cluster.spot, "reserved": plan.cluster.reservation is not None, "flex": flex_start}
    shape = plan.shape
    return "-".join(
        [
            shape.generation,
            shape.topology,
            f"{shape.chips_per_host}t",
            *(kind for kind in kinds if kinds[kind]),
        ]
    )


def flavor_name(plan: ClusterPlan) -> str:
    """Name of Kueue's ResourceFlavor of the slices: one for each kind of node pool."""
    return f"tpu-{pool_name(plan)}"
