"""The two kinds of pods: the head, and a host of a slice."""

from __future__ import annotations

from raytpu.manifest.labels import (
    QUEUED_TAINT,
    ROLE_LABEL,
    TPU,
    WORKLOAD_LABEL,
    network_claim,
    node_selector,
    workload_config_map,
)
from raytpu.manifest.yaml_text import Noted, Value
from raytpu.plan import ClusterPlan
from raytpu.plan.cluster import PodResources
from raytpu.plan.multislice import MEGASCALE_PORT

WORKLOAD_FOLDER, WORKLOAD_FILE = "/etc/raytpu", "workload.yaml"

_SHARED_MEMORY_VOLUME, _BUCKET_VOLUME, _WORKLOAD_VOLUME = "shared-memory", "bucket", "workload"

# The folder of a bucket belongs to root unless the mount says otherwise; Ray's images run as user 1000 of
# group 100. implicit-dirs: what Orbax and raytpu wrote through gs:// has no objects for folders.
_BUCKET_OPTIONS = "implicit-dirs,uid=1000,gid=100"

_DRAIN_MARGIN_S = 5
"""Before the end of the grace period, for Ray to stop what is left."""

# Ray 2.60 writes the id of a node on the command line of its raylet, and `ray drain-node` without an id would
# start a driver to find it. RAY_ADDRESS is set by the operator in every pod. A drain that is refused, or
# whose head is gone, must not keep the pod; one that is taken lets it live until its raylet has ended.
_DRAIN = """\
read_id() {{ cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | sed -n 's/^--node_id=//p' | head -n 1; }}
id=$(read_id)
[ -n "$id" ] || exit 0
timeout {asking_s} ray drain-node --address "$RAY_ADDRESS" --node-id "$id" \\
  --reason DRAIN_NODE_REASON_PREEMPTION --reason-message "the pod is being deleted" \\
  --deadline-remaining-seconds {deadline_s} || exit 0
end=$(($(date +%s) + {deadline_s}))
while [ -n "$(read_id)" ] && [ "$(date +%s)" -lt "$end" ]; do sleep 1; done
"""


def head_template(plan: ClusterPlan) -> dict[str, Value]:
    """The pod of the head."""
    container: dict[str, Value] = {
        "name": "ray-head",
        "image": plan.cluster.image,
        "ports": [
            {"containerPort": 6379, "name": "gcs"},
            {"containerPort": 8265, "name": "dashboard"},
            {"containerPort": 10001, "name": "client"},
        ],
        "resources": _resources(plan.head),
        "volumeMounts": [
            *_mounts(plan),
            {"name": _WORKLOAD_VOLUME, "mountPath": WORKLOAD_FOLDER, "readOnly": True},
        ],
    }
    spec: dict[str, Value] = {
        **_common_spec(plan),
        "containers": [container],
        "volumes": [
            *_volumes(plan, plan.head),
            {"name": _WORKLOAD_VOLUME, "configMap": {"name": workload_config_map(plan)}},
        ],
    }
    return {"metadata": _pod_metadata(plan, "head"), "spec": spec}


def host_template(plan: ClusterPlan) -> dict[str, Value]:
    """The pod of a host.

    GKE's webhook adds TPU_WORKER_ID, TPU_WORKER_HOSTNAMES, TPU_NAME, and the affinity that puts all hosts of
    a slice on one node pool. Values written here would be kept instead, so none are.
    """
    container: dict[str, Value] = {
        "name": "ray-worker",
        "image": plan.cluster.image,
        "ports": [
            Noted(
                {"containerPort": MEGASCALE_PORT, "name": "mxla"},
                "Of slices that work as one. raytpu sets MEGASCALE_* in the processes that it starts.",
            )
        ],
        "resources": _host_resources(plan),
        "lifecycle": Noted(
            {"preStop": {"exec": {"command": ["/bin/sh", "-c", _drain_script(plan.grace_s)]}}},
            "Tells Ray that this host goes; KubeRay itself lets it end without a word (kuberay#5004).",
        ),
        "volumeMounts": list(_mounts(plan)),
    }
    spec: dict[str, Value] = {
        **_common_spec(plan),
        "nodeSelector": Noted(
            {**node_selector(plan)}, f"Nodes that are hosts of such slices: {plan.shape.machine_type}."
        ),
        "tolerations": _tolerations(plan),
        "terminationGracePeriodSeconds": plan.grace_s,
        "containers": [container],
        "volumes": list(_volumes(plan, plan.host)),
    }
    if plan.cluster.multislice_network:
        claim = network_claim(plan)
        spec["resourceClaims"] = [{"name": "network", "resourceClaimTemplateName": claim}]
    return {"metadata": _pod_metadata(plan, "host"), "spec": spec}


def _pod_metadata(plan: ClusterPlan, role: str) -> dict[str, Value]:
    found: dict[str, Value] = {"labels": {WORKLOAD_LABEL: plan.workload.name, ROLE_LABEL: role}}
    if plan.cluster.gcsfuse is not None:
        found["annotations"] = {"gke-gcsfuse/volumes": "true"}
    return found


def _common_spec(plan: ClusterPlan) -> dict[str, Value]:
    spec: dict[str, Value] = {
        "restartPolicy": Noted(
            "Never", "A container that starts again in the same pod is a Ray node that nobody expects."
        )
    }
    if plan.cluster.service_account is not None:
        spec["serviceAccountName"] = plan.cluster.service_account
    if plan.cluster.priority_class is not None:
        spec["priorityClassName"] = plan.cluster.priority_class
    return spec


def _resources(pod: PodResources) -> dict[str, Value]:
    amounts: dict[str, Value] = {"cpu": str(pod.cpu), "memory": f"{pod.memory_gib}Gi"}
    if pod.chips:
        amounts[TPU] = str(pod.chips)
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _host_resources(plan: ClusterPlan) -> Value:
    resources = _resources(plan.host)
    if plan.cluster.multislice_network:
        resources["claims"] = [{"name": "network"}]
    return Noted(
        resources,
        f"All chips of a host, and most of its CPUs and memory; one pod is one host of {plan.shape}.",
    )


def _tolerations(plan: ClusterPlan) -> list[Value]:
    found: list[Value] = [{"key": TPU, "operator": "Exists", "effect": "NoSchedule"}]
    if plan.cluster.queue is not None and plan.cluster.queue.flex_start:
        found.append(
            Noted(
                {"key": QUEUED_TAINT, "operator": "Exists", "effect": "NoSchedule"},
                "Of node pools with queued provisioning; nobody adds this one.",
            )
        )
    return found


def _mounts(plan: ClusterPlan) -> list[Value]:
    found: list[Value] = [{"name": _SHARED_MEMORY_VOLUME, "mountPath": "/dev/shm"}]
    if plan.cluster.gcsfuse is not None:
        found.append({"name": _BUCKET_VOLUME, "mountPath": plan.cluster.gcsfuse.mount_path})
    return found


def _volumes(plan: ClusterPlan, pod: PodResources) -> list[Value]:
    found: list[Value] = [
        {"name": _SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": pod.shared_memory}}
    ]
    if plan.cluster.gcsfuse is not None:
        found.append(
            {
                "name": _BUCKET_VOLUME,
                "csi": {
                    "driver": "gcsfuse.csi.storage.gke.io",
                    "volumeAttributes": {
                        "bucketName": plan.cluster.gcsfuse.bucket,
                        "mountOptions": _BUCKET_OPTIONS,
                    },
                },
            }
        )
    return found


def _drain_script(grace_s: int) -> str:
    deadline_s = max(1, grace_s - _DRAIN_MARGIN_S)
    return _DRAIN.format(deadline_s=deadline_s, asking_s=min(10, deadline_s))
