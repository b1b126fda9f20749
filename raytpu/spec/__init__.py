"""What the user wants: the workload document as frozen, validated objects, and its YAML."""

from __future__ import annotations

from raytpu.spec.checkpoint import Checkpoint as Checkpoint
from raytpu.spec.cluster import Cluster as Cluster
from raytpu.spec.cluster import Gcsfuse as Gcsfuse
from raytpu.spec.cluster import Head as Head
from raytpu.spec.cluster import Queue as Queue
from raytpu.spec.data import TextData as TextData
from raytpu.spec.deadlines import Deadlines as Deadlines
from raytpu.spec.document import parse_override as parse_override
from raytpu.spec.document import parse_workload as parse_workload
from raytpu.spec.document import workload_yaml as workload_yaml
from raytpu.spec.json_schema import workload_schema as workload_schema
from raytpu.spec.mesh import DEFAULT_BATCH_AXES as DEFAULT_BATCH_AXES
from raytpu.spec.mesh import Mesh as Mesh
from raytpu.spec.mesh import default_mesh as default_mesh
from raytpu.spec.recovery import Recovery as Recovery
from raytpu.spec.replicas import Replicas as Replicas
from raytpu.spec.slices import Slices as Slices
from raytpu.spec.spec import Spec as Spec
from raytpu.spec.train import Train as Train
from raytpu.spec.workload import Workload as Workload
from raytpu.spec.workload import outer_steps_fit as outer_steps_fit

__all__ = [
    "DEFAULT_BATCH_AXES",
    "Checkpoint",
    "Cluster",
    "Deadlines",
    "Gcsfuse",
    "Head",
    "Mesh",
    "Queue",
    "Recovery",
    "Replicas",
    "Slices",
    "Spec",
    "TextData",
    "Train",
    "Workload",
    "default_mesh",
    "outer_steps_fit",
    "parse_override",
    "parse_workload",
    "workload_schema",
    "workload_yaml",
]
