"""raytpu: JAX workloads on Google TPU slices, on Ray. Slices are held whole, watched whole, replaced whole.

Importing this loads neither Ray nor JAX; each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raytpu.cluster import SimulatedCluster as SimulatedCluster
    from raytpu.cluster import simulate as simulate
    from raytpu.gang import Lease as Lease
    from raytpu.gang import hold as hold
    from raytpu.launch.run import RunOptions as RunOptions
    from raytpu.launch.run import run as run
    from raytpu.plan import plan_workload as plan_workload
    from raytpu.record import RunDirectory as RunDirectory
    from raytpu.record import read_events as read_events
    from raytpu.spec import Checkpoint as Checkpoint
    from raytpu.spec import Deadlines as Deadlines
    from raytpu.spec import Mesh as Mesh
    from raytpu.spec import Recovery as Recovery
    from raytpu.spec import Replicas as Replicas
    from raytpu.spec import Slices as Slices
    from raytpu.spec import TextData as TextData
    from raytpu.spec import Train as Train
    from raytpu.spec import Workload as Workload
    from raytpu.spec import parse_workload as parse_workload
    from raytpu.train import JaxTrainer as JaxTrainer
    from raytpu.train import TrainContext as TrainContext

_HOME = {
    "Checkpoint": "raytpu.spec",
    "Deadlines": "raytpu.spec",
    "JaxTrainer": "raytpu.train",
    "Lease": "raytpu.gang",
    "Mesh": "raytpu.spec",
    "Recovery": "raytpu.spec",
    "Replicas": "raytpu.spec",
    "RunDirectory": "raytpu.record",
    "RunOptions": "raytpu.launch.run",
    "SimulatedCluster": "raytpu.cluster",
    "Slices": "raytpu.spec",
    "TextData": "raytpu.spec",
    "Train": "raytpu.spec",
    "TrainContext": "raytpu.train",
    "Workload": "raytpu.spec",
    "hold": "raytpu.gang",
    "parse_workload": "raytpu.spec",
    "plan_workload": "raytpu.plan",
    "read_events": "raytpu.record",
    "run": "raytpu.launch.run",
    "simulate": "raytpu.cluster",
}

__all__ = [
    "Checkpoint",
    "Deadlines",
    "JaxTrainer",
    "Lease",
    "Mesh",
    "Recovery",
    "Replicas",
    "RunDirectory",
    "RunOptions",
    "SimulatedCluster",
    "Slices",
    "TextData",
    "Train",
    "TrainContext",
    "Workload",
    "hold",
    "parse_workload",
    "plan_workload",
    "read_events",
    "run",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
