"""The RayJob of a workload: its cluster, and the run on it."""

from __future__ import annotations

from raytpu.manifest.labels import metadata
from raytpu.manifest.pod_template import WORKLOAD_FILE, WORKLOAD_FOLDER
from raytpu.manifest.ray_cluster import cluster_spec, companions
from raytpu.manifest.yaml_text import Document, Noted, Value
from raytpu.plan import ClusterPlan

ENTRYPOINT = f"python -m raytpu run {WORKLOAD_FOLDER}/{WORKLOAD_FILE} --on auto"
"""Runs as a job of Ray on the head, where the file is mounted and Ray sets RAY_ADDRESS, which ``--on auto``
reads (ray 2.60.0, ``job_supervisor._get_driver_env_vars``). Ending the job sends it SIGTERM, on which the run
stops as ``raytpu stop`` stops it."""


def ray_job(plan: ClusterPlan) -> list[Document]:
    """A cluster that is there for one run, and gone after it."""
    spec: dict[str, Value] = {
        "entrypoint": Noted(
            ENTRYPOINT, "A driver on the head; it goes on from the newest durable checkpoint."
        ),
        "submissionMode": "K8sJobMode",
        "shutdownAfterJobFinishes": Noted(
            True, "Frees the slices at once. The run's record and logs are in checkpoint.path."
        ),
        "preRunningDeadlineSeconds": Noted(
            plan.cluster.pre_running_deadline_s, "A job that never gets its nodes would wait for ever."
        ),
        "backoffLimit": Noted(
            plan.cluster.backoff_limit,
            "New clusters after a driver that failed, as with a lost head. Lost slices do not count: they "
            "are replaced within the cluster.",
        ),
        "rayClusterSpec": cluster_spec(plan, replicas=plan.slices),
    }
    return [
        *companions(plan),
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": metadata(plan, plan.workload.name, queued=True),
            "spec": spec,
        },
    ]
