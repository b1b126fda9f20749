"""One replica as the driver sees it: its slice, its hosts, and what their train functions said last."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from raytpu.errors import LeaseEnded, ProgramFailed, RaytpuError, RunFailed, RunStopped, SliceLost
from raytpu.gang import HeldSlice, Host, Lease
from raytpu.train.endings import is_peer_failure
from raytpu.train.host_process import HostProcess
from raytpu.train.job import TrainJob

CALLS_AT_ONCE = 8
"""Of a host's actor: the train function is one, and beside it the driver asks how things are."""


class ReplicaHost(HostProcess):
    """A host process whose train function is called by this driver instead of Ray Train."""

    def train(self, program: Any) -> dict[str, Any]:
        """Run to the end; the last durable checkpoint that this replica has saved, if it has saved any."""
        last: dict[str, Any] = {}

        def announce(path: str, step: int, metrics: Any) -> None:
            last.update(path=path, metrics={"step": step, **metrics})

        self.run(program, announce)
        return last


@dataclass(slots=True)
class Replica:
    """A slice of the run, from the start of its hosts to its loss."""

    member: str
    held: HeldSlice
    lease: Lease
    hosts: tuple[Host, ...]
    job: TrainJob
    began_s: float = field(default_factory=time.monotonic)
    running: list[ray.ObjectRef] = field(default_factory=list)
    lost: str | None = None
    reserve: bool = False
    """It is kept back until another one is lost."""
    leaving: bool = False
    """It goes away soon, and another one is to take its place."""
    admitted: bool = False
    """It has the state, and takes part."""
    called_s: float | None = None
    """When its train functions were called, or, if it was in reserve, when it was called up."""

    def late_s(self, now_s: float) -> float:
        """How long it has been expected to take part; 0 for one that does, or that nobody expects."""
        if self.admitted or self.reserve or self.lost is not None or self.called_s is None:
            return 0.0
        return now_s - self.called_s


def lease_end(lease: Lease) -> LeaseEnded | None:
    """How a lease has ended; one whose slices are all lost has not: losses are told otherwise."""
    known = lease.lost
    if len(known) >= len(lease.slices):
        return None
    try:
        lease.check(known)
    except LeaseEnded as ended:
        return ended
    except SliceLost:  # since the line above
        return None
    return None


def own_failure(reference: ray.ObjectRef) -> RaytpuError | None:
    """What a train function raised that is not the echo of a loss."""
    try:
        ray.get(reference)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, ProgramFailed) and not is_peer_failure(cause) and "SliceLost" not in str(cause):
            return cause
        if isinstance(cause, RunStopped) or (
            isinstance(cause, RaytpuError) and not isinstance(cause, RunFailed)
        ):
            return cause
    except RayActorError:
        return None
    return None
