"""What a workload needs of Kubernetes: read by ``raytpu render`` alone, ignored by every other command.

Where a rule has a number, it is what a real API server, the KubeRay operator 1.7 or GKE refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from pydantic import Field, field_validator

from raytpu.spec.spec import Broken, Spec, broken

LONGEST_SPOT_GRACE_S = 25
"""A spot host is gone about 25 s after its notice, whatever the pod asks for
(https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms#termination)."""

_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"


class Head(Spec):
    """The pod of the Ray head, on a node without TPUs: Ray's services, the book of slices, the driver."""

    cpu: int = Field(default=4, ge=1)
    """CPUs. Four, by feel: the GCS, the dashboard and one driver."""
    memory: str = "16Gi"
    """Memory, with a binary unit: 16Gi. A head that runs out of it takes the whole cluster along."""

    @field_validator("memory")
    @classmethod
    def _is_a_size(cls, memory: str) -> str:
        return _size(memory)


class Gcsfuse(Spec):
    """A Cloud Storage bucket as a folder in every pod (driver gcsfuse.csi.storage.gke.io of GKE)."""

    bucket: str
    """Name of the bucket, without gs://. cluster.service_account must be allowed to write it."""
    mount_path: str = "/gcs"
    """The folder. checkpoint.path may lie below it."""

    @field_validator("bucket")
    @classmethod
    def _is_a_bucket(cls, bucket: str) -> str:
        if not re.fullmatch(r"[a-z0-9][-a-z0-9_.]{1,220}[a-z0-9]", bucket):
            raise broken(f"expected the name of a bucket, such as my-runs, without gs://, got {bucket!r}")
        return bucket

    @field_validator("mount_path")
    @classmethod
    def _is_a_folder(cls, mount_path: str) -> str:
        if not re.fullmatch(r"(/[\w.-]+)+", mount_path):
            raise broken(f"expected an absolute path such as /gcs, got {mount_path!r}")
        return mount_path


class Queue(Spec):
    """A queue of Kueue (kueue.x-k8s.io/v1beta2) that admits the workload as a whole."""

    name: str
    """Name of the LocalQueue in cluster.namespace."""
    flex_start: bool = False
    """The hosts come from the Dynamic Workload Scheduler (flex-start with queued provisioning), all at once,
    for seven days at most."""

    @field_validator("name")
    @classmethod
    def _is_a_label(cls, name: str) -> str:
        return _matching(name, _LABEL, "the name of a LocalQueue, such as research")


class Cluster(Spec):
    """The Ray cluster that `raytpu render` writes manifests for, on GKE with KubeRay."""

    image: str
    """Container image of all pods, with Ray, raytpu and the train function (deploy/image builds one)."""
    namespace: str = "default"
    """Kubernetes namespace of everything that is rendered."""
    service_account: str | None = None
    """Kubernetes service account of the pods, bound to an identity that may use the buckets (Workload
    Identity). By default that of the namespace."""
    spot: bool = False
    """Spot hosts: cheap, and taken away with 25 s of notice."""
    reservation: str | None = None
    """Compute Engine reservation that the hosts come from."""
    queue: Queue | None = None
    """Kueue queue to wait in. By default pods are created at once, and wait for nodes one by one."""
    priority_class: str | None = None
    """PriorityClass of the pods; it must exist, or no pod is created."""
    gcsfuse: Gcsfuse | None = None
    """A bucket to mount in every pod."""
    shared_memory: str | None = None
    """Size of /dev/shm on the TPU hosts, where Ray keeps objects; with a binary unit: 64Gi. By default 40 %
    of the pod's memory: Ray's store takes 30 % and spills to disk when /dev/shm is smaller."""
    auth: Literal["disabled", "token"] = "disabled"
    """Token authentication of Ray (authOptions.mode). Always written out: Ray turns it on by itself where it
    finds a token, and the KubeRay operator is then refused."""
    min_slices: int | None = Field(default=None, ge=0)
    """Fewest slices; with max_slices above it, Ray's autoscaler (v2) brings slices up and down, whole. By
    default slices.count + recovery.spares."""
    max_slices: int | None = Field(default=None, ge=1)
    """Most slices. By default as many as min_slices, at least slices.count + recovery.spares."""
    multislice_network: bool = False
    """Give the pods every network interface of their host for traffic between slices (GKE managed DRANET,
    device class netdev.google.com). The node pools must be made for it, as `--kind node-pools` shows."""
    grace_s: int | None = Field(default=None, ge=5)
    """Seconds between the notice that a pod must go and its end (terminationGracePeriodSeconds), in which
    its host is drained. By default 25 on spot, else 120: by feel, a step and a checkpoint."""
    pre_running_deadline_s: int = Field(default=3600, ge=60)
    """Seconds after which a RayJob that has not begun to run fails (preRunningDeadlineSeconds); without it,
    one that never gets its nodes waits for ever. An hour, by feel; who queues for days says so here."""
    backoff_limit: int = Field(default=1, ge=0)
    """New clusters that a RayJob whose driver failed is tried on; the run goes on from its newest durable
    checkpoint. One, for a lost head: lost slices are replaced within the cluster (recovery), and an error of
    the program comes again."""
    head: Head = Head()
    """Resources of the head."""

    @field_validator("image")
    @classmethod
    def _is_an_image(cls, image: str) -> str:
        known = (
            r"[a-z0-9][-a-z0-9_.]*(:\d+)?(/[a-z0-9][-a-z0-9_.]*)*(:[\w][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?"
        )
        return _matching(
            image, known, "a container image, such as us-docker.pkg.dev/mine/raytpu/raytpu:0.1.0"
        )

    @field_validator("namespace", "reservation")
    @classmethod
    def _is_a_label(cls, name: str | None) -> str | None:
        return name if name is None else _matching(name, _LABEL, "lower-case letters, digits and -")

    @field_validator("service_account", "priority_class")
    @classmethod
    def _is_a_subdomain(cls, name: str | None) -> str | None:
        return name if name is None else _matching(name, _SUBDOMAIN, "lower-case letters, digits, - and .")

    @field_validator("shared_memory")
    @classmethod
    def _is_a_size(cls, size: str | None) -> str | None:
        return size if size is None else _size(size)

    def broken_rules(self) -> Iterator[Broken]:
        flex_start = self.queue is not None and self.queue.flex_start
        sources = [
            name
            for name, given in (
                ("spot", self.spot),
                ("reservation", self.reservation is not None),
                ("queue.flex_start", flex_start),
            )
            if given
        ]
        if len(sources) > 1:
            yield Broken(
                (sources[-1].split(".")[0],), f"{' and '.join(sources)} exclude each other; keep one"
            )
        if self.spot and self.grace_s is not None and self.grace_s > LONGEST_SPOT_GRACE_S:
            yield Broken(
                ("grace_s",),
                f"a spot host is gone after {LONGEST_SPOT_GRACE_S} s, whatever is asked; "
                f"write {LONGEST_SPOT_GRACE_S} or less, or leave it out",
            )
        if self.gcsfuse is not None and self.service_account is None:
            yield Broken(
                ("service_account",),
                "gcsfuse needs one: a Kubernetes service account whose identity may use the bucket",
            )


def cluster_against_slices(cluster: Cluster, needed: int) -> Iterator[Broken]:
    """The limits of autoscaling hold what the workload needs; paths are below the cluster.

    Args:
        needed: slices that a run holds, its spares included.
    """
    least = needed if cluster.min_slices is None else cluster.min_slices
    most = max(least, needed) if cluster.max_slices is None else cluster.max_slices
    if most < needed:
        yield Broken(
            ("max_slices",),
            f"{most} is fewer than a run holds: slices.count and recovery.spares are {needed} together",
        )
    elif least > most:
        yield Broken(("min_slices",), f"{least} is more than max_slices, which is {most}")
    if cluster.queue is not None and least != most:
        yield Broken(
            ("queue",),
            f"Kueue admits a cluster of a fixed size, and this one may have {least} to {most} slices; leave "
            "min_slices and max_slices out (https://kueue.sigs.k8s.io/docs/tasks/run/rayjobs/)",
        )


def _matching(text: str, pattern: str, expected: str) -> str:
    if not re.fullmatch(pattern, text):
        raise broken(f"expected {expected}, got {text!r}")
    return text


def _size(size: str) -> str:
    return _matching(size, r"[1-9]\d*[KMGT]i", "a size with a binary unit, such as 16Gi")
