"""Workloads with a cluster; a test changes one thing."""

from __future__ import annotations

from typing import Any

import yaml

from raytpu.manifest import KINDS, Kind, render
from raytpu.plan import ClusterPlan, plan_cluster
from raytpu.spec import Workload, parse_workload
from raytpu.topology import SliceShape

IMAGE = "us-docker.pkg.dev/mine/raytpu/raytpu:0.1.0"
TEXT = f"""\
name: llm
slices: {{generation: v6e, topology: 4x4}}
train: {{entrypoint: "raytpu.recipes.pretrain:train"}}
checkpoint: {{path: "gs://mine/runs", every_steps: 50}}
cluster: {{image: "{IMAGE}"}}
"""


def workload(*overrides: str) -> Workload:
    return parse_workload(TEXT, "llm.yaml", overrides)


def plan(*overrides: str) -> ClusterPlan:
    return plan_cluster(workload(*overrides))


def of_shape(shape: SliceShape, count: int = 1, *overrides: str) -> ClusterPlan:
    return plan(
        f"slices.generation={shape.generation}",
        f"slices.topology={shape.topology}",
        f"slices.chips_per_host={shape.chips_per_host}",
        f"slices.count={count}",
        *overrides,
    )


def documents(kind: Kind, *overrides: str) -> dict[str, dict[str, Any]]:
    """The documents of one kind of file, by their own kind, as ``kubectl`` would read them."""
    assert kind in KINDS
    return by_kind(plan(*overrides), kind)


def by_kind(planned: ClusterPlan, kind: Kind) -> dict[str, dict[str, Any]]:
    read = yaml.load_all(render(planned, kind).text, yaml.CSafeLoader)
    return {document["kind"]: document for document in read}


def cluster_of(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The ``spec`` of the RayCluster, wherever it is."""
    if "RayCluster" in found:
        return found["RayCluster"]["spec"]
    return found["RayJob"]["spec"]["rayClusterSpec"]


def slices_of(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The only worker group."""
    [group] = cluster_of(found)["workerGroupSpecs"]
    return group


def host_of(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The pod template's ``spec`` of a TPU host."""
    return slices_of(found)["template"]["spec"]


def head_of(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return cluster_of(found)["headGroupSpec"]["template"]["spec"]
