"""Plan → Kubernetes documents, and the node pools that they need. Text out; nothing here acts."""

from __future__ import annotations

from raytpu.manifest.kueue import kueue_objects as kueue_objects
from raytpu.manifest.node_pool import node_pool_script as node_pool_script
from raytpu.manifest.ray_cluster import ray_cluster as ray_cluster
from raytpu.manifest.ray_job import ray_job as ray_job
from raytpu.manifest.rendering import KINDS as KINDS
from raytpu.manifest.rendering import Kind as Kind
from raytpu.manifest.rendering import Rendered as Rendered
from raytpu.manifest.rendering import render as render
from raytpu.manifest.rendering import render_all as render_all
from raytpu.manifest.yaml_text import Noted as Noted
from raytpu.manifest.yaml_text import plain as plain
from raytpu.manifest.yaml_text import yaml_text as yaml_text

__all__ = [
    "KINDS",
    "Kind",
    "Noted",
    "Rendered",
    "kueue_objects",
    "node_pool_script",
    "plain",
    "ray_cluster",
    "ray_job",
    "render",
    "render_all",
    "yaml_text",
]
