"""What every host process of an attempt is told: plain data, so that it travels through Ray unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raytpu.gang import stream
from raytpu.plan import GangPlan, MeshPlan
from raytpu.spec import Checkpoint, Deadlines, Replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlace:
    """What a host must know when its slice is a world of its own, one of several replicas."""

    member: str
    """Id of the replica: its slice, and which start of it in this run."""
    joining: bool
    """It takes the state from a living replica, not from a checkpoint."""
    first: bool
    """It is the one that makes the storage ready before the run begins."""
    parts: int
    """Parts that the rows of a step are divided into, whatever number of replicas lives."""
    coordinator: stream.Address
    """Where the driver listens."""
    settings: Replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainJob:
    """One attempt of a training run."""

    run: str
    attempt: int
    """Counted from 1 over the life of the run's directory."""
    directory: str
    """URL of the run's directory: record, logs and checkpoints lie under it."""
    driver_token: str
    """Of the driver's lease on the run: a host that sees another one there has lost its driver."""
    gang: GangPlan
    mesh: MeshPlan
    config: Mapping[str, Any]
    streams: tuple[str, ...]
    """Names of the data streams that the driver will provide, such as ``train`` and ``eval``."""
    checkpoint: Checkpoint | None
    deadlines: Deadlines = field(default_factory=Deadlines)
    replica: ReplicaPlace | None = None
    """``None`` in lockstep, when all slices are one world."""
    compile_cache: str | None = None
    """Directory of compiled programs, shared by all hosts or private to each; ``None`` turns it off."""
    python_path: tuple[str, ...] = ()
    """Directories where the driver finds modules, tried on the hosts too (the user's train module)."""

    @property
    def seed(self) -> int:
        """Seed of the data order: ``train.config.seed``, 0 when the workload names none."""
        return int(self.config.get("seed", 0))

    @property
    def steps(self) -> int | None:
        """Number of steps after which the run is complete, if ``train.config.steps`` says so."""
        steps = self.config.get("steps")
        return None if steps is None else int(steps)

    @property
    def global_batch(self) -> int:
        """Rows of a global batch. The spec demands ``train.config.global_batch`` where there is data."""
        return int(self.config["global_batch"])
