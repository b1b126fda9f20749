"""The Kubernetes cluster of a workload in numbers: pods, replicas, resources, node pools."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from raytpu.errors import SpecError
from raytpu.plan.growth import LAUNCHED_AT_ONCE
from raytpu.spec import Cluster, Workload
from raytpu.topology import MACHINES, SliceShape

SPOT_GRACE_S, GRACE_S = 25, 120
"""Defaults of ``cluster.grace_s``; see there."""

_GIB = 2**30
# By feel, of what a host has: GKE keeps 2 to 6 % of the memory of a large machine for itself
# (https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes), and the agents of the node
# (logging, metadata, device plugin, gcsfuse) take some more. A pod that asks for more than is left is Pending
# for ever, and nothing reports that as a mistake.
_CPU_FOR_PODS, _MEMORY_FOR_PODS = 0.9, 0.8
# Ray's object store takes 30 % of the memory (ray 2.60.0, DEFAULT_OBJECT_STORE_MEMORY_PROPORTION), which must
# fit; libtpu and data loaders use the folder as well.
_SHARED_MEMORY = 0.4

_SIZE = re.compile(r"(\d+)([KMGT])i")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodResources:
    """What one pod asks for, requests and limits alike. Memory is in GiB."""

    cpu: int
    memory_gib: int
    shared_memory: str
    """Size of /dev/shm, as Kubernetes writes it; it counts as memory of the pod once it is used."""
    chips: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """Everything about the cluster of a workload that is computed rather than copied."""

    workload: Workload
    cluster: Cluster
    shape: SliceShape
    slices: int
    """What a RayJob begins with: what its run holds, spares included, or more where ``least`` is more."""
    least: int
    most: int
    head: PodResources
    host: PodResources
    grace_s: int
    launches_at_once: int | None
    """What Ray's autoscaler must be allowed, where its default is fewer nodes than a slice has."""

    @property
    def autoscaled(self) -> bool:
        return self.least != self.most


def plan_cluster(workload: Workload) -> ClusterPlan:
    """The cluster that a workload with a ``cluster`` section describes.

    Raises:
        SpecError: there is no such section, or checkpoints would go to a folder that no two pods share and
            that is gone with the pod.
    """
    cluster = workload.cluster
    if cluster is None:
        raise SpecError(
            f"{workload.name} has no cluster section, so it is not known which image its pods run; add\n"
            "  cluster: {image: REGISTRY/raytpu:TAG}\n"
            "or give --set cluster.image=REGISTRY/raytpu:TAG (deploy/image builds an image)"
        )
    _check_shared(workload.checkpoint.path, cluster)
    shape = workload.slices.shape
    needed = workload.slices.count + workload.recovery.spares
    least = needed if cluster.min_slices is None else cluster.min_slices
    most = max(least, needed) if cluster.max_slices is None else cluster.max_slices
    return ClusterPlan(
        workload=workload,
        cluster=cluster,
        shape=shape,
        slices=max(needed, least),
        least=least,
        most=most,
        head=_head_resources(cluster),
        host=_host_resources(shape, cluster.shared_memory),
        grace_s=cluster.grace_s or (SPOT_GRACE_S if cluster.spot else GRACE_S),
        launches_at_once=shape.hosts if shape.hosts > LAUNCHED_AT_ONCE else None,
    )


def _check_shared(path: str, cluster: Cluster) -> None:
    if re.match(r"[a-z][a-z0-9+.-]*://", path) and not path.startswith("file:"):
        return
    mounted = cluster.gcsfuse.mount_path if cluster.gcsfuse is not None else None
    if mounted is not None and (path == mounted or path.startswith(f"{mounted}/")):
        return
    folder = (
        f"a path below {mounted} (cluster.gcsfuse)" if mounted is not None else "a folder of cluster.gcsfuse"
    )
    raise SpecError(
        f"checkpoint.path {path}: a folder of a pod, which the other hosts cannot see and which is gone with "
        f"the pod; expected a bucket, such as gs://my-bucket/runs, or {folder}\n"
        "  on the command line: --set checkpoint.path=gs://my-bucket/runs"
    )


def _head_resources(cluster: Cluster) -> PodResources:
    memory_gib = math.ceil(size_bytes(cluster.head.memory) / _GIB)
    return PodResources(
        cpu=cluster.head.cpu, memory_gib=memory_gib, shared_memory=_share_of(memory_gib, _SHARED_MEMORY)
    )


def _host_resources(shape: SliceShape, shared_memory: str | None) -> PodResources:
    machine = MACHINES[shape.machine_type]
    memory_gib = int(machine.memory_gb * 10**9 * _MEMORY_FOR_PODS / _GIB)
    if shared_memory is not None and size_bytes(shared_memory) > memory_gib * _GIB:
        raise SpecError(
            f"cluster.shared_memory {shared_memory}: more than the {memory_gib} GiB that a pod on "
            f"{shape.machine_type} gets ({machine.memory_gb} GB in all)"
        )
    return PodResources(
        cpu=int(machine.vcpus * _CPU_FOR_PODS),
        memory_gib=memory_gib,
        shared_memory=shared_memory if shared_memory is not None else _share_of(memory_gib, _SHARED_MEMORY),
        chips=shape.chips_per_host,
    )


def _share_of(memory_gib: int, share: float) -> str:
    return f"{max(1, int(memory_gib * share))}Gi"


def size_bytes(size: str) -> int:
    """Bytes of a size with a binary unit, such as ``16Gi``."""
    match = _SIZE.fullmatch(size)
    if match is None:
        raise SpecError(f"{size!r}: expected a size with a binary unit, such as 16Gi")
    return int(match[1]) * _UNITS[match[2]]
