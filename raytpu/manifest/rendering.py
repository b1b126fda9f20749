"""What ``raytpu render`` writes, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from raytpu.manifest.kueue import kueue_objects
from raytpu.manifest.node_pool import node_pool_script
from raytpu.manifest.ray_cluster import ray_cluster
from raytpu.manifest.ray_job import ray_job
from raytpu.manifest.yaml_text import Document, yaml_text
from raytpu.plan import ClusterPlan

Kind: TypeAlias = Literal["RayJob", "RayCluster", "Kueue", "node-pools"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """One file."""

    name: str
    text: str


def render(plan: ClusterPlan, kind: Kind) -> Rendered:
    """One kind of file for a workload.

    Raises:
        SpecError: the workload needs no such file.
    """
    if kind == "node-pools":
        return Rendered(name=_file_name(plan, kind), text=node_pool_script(plan))
    return Rendered(name=_file_name(plan, kind), text=yaml_text(_documents(plan, kind), _heading(plan, kind)))


def render_all(plan: ClusterPlan) -> tuple[Rendered, ...]:
    """Everything that a run of the workload as a RayJob needs, and no RayCluster: applying the whole folder
    must not bring up every slice twice."""
    kinds: list[Kind] = ["RayJob", "node-pools"]
    if plan.cluster.queue is not None:
        kinds.append("Kueue")
    return tuple(render(plan, kind) for kind in kinds)


def _documents(plan: ClusterPlan, kind: Kind) -> list[Document]:
    match kind:
        case "RayJob":
            return ray_job(plan)
        case "RayCluster":
            return ray_cluster(plan)
        case "Kueue":
            return kueue_objects(plan)
        case "node-pools":
            raise AssertionError("no Kubernetes documents")


def _file_name(plan: ClusterPlan, kind: Kind) -> str:
    return f"{plan.workload.name}.{kind.lower()}.{'sh' if kind == 'node-pools' else 'yaml'}"


def _heading(plan: ClusterPlan, kind: Kind) -> str:
    shape, slices = plan.shape, plan.slices
    match kind:
        case "RayJob":
            what = f"runs {plan.workload.name} on {slices} × {shape}, on a cluster that goes away with it."
        case "RayCluster":
            many = f"{plan.least} to {plan.most}" if plan.autoscaled else f"{slices}"
            what = f"a Ray cluster of {many} × {shape}."
        case _:
            what = "an administrator's, once for a queue; quotas are those of one workload."
    return (
        f"{kind}: {what}\n"
        f"Written by `raytpu render --kind {kind}`: change the workload file and render again.\n"
        "kubectl apply --server-side -f, on a cluster with KubeRay 1.7, GKE's TPU webhook"
        f"{' and Kueue' if plan.cluster.queue is not None else ''}."
    )
