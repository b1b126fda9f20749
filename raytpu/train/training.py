"""What a run is, before anything of it is held: the same for slices in lockstep and for replicas."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ray.train import RunConfig

from raytpu.gang import Lease, hold
from raytpu.plan import Diagnosis, GangPlan
from raytpu.record import EventLog, StateChanged
from raytpu.spec import Deadlines, Recovery, Slices, TextData
from raytpu.train.entrypoint import TrainFunction
from raytpu.train.job import TrainJob

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Training:
    """What a run needs beside a connected Ray.

    ``job_for`` makes the job of an attempt, by its number, once its slices are known.
    """

    name: str
    slices: Slices
    program: str | TrainFunction
    first_attempt: int
    job_for: Callable[[int, GangPlan], TrainJob]
    deadlines: Deadlines
    recovery: Recovery
    priority: int
    run_config: RunConfig
    log: EventLog
    with_checkpoints: bool
    python_path: tuple[str, ...]
    data: Mapping[str, TextData] = field(default_factory=dict)
    datasets: dict[str, Any] | None = None
    dataset_config: Any = None
    stop_requested: Callable[[], None] = field(default=lambda: None)
    """Called about twice a second; raises to end the run."""
    followed: bool = False
    """Somebody shows the record while it is written."""

    def waiting(self, diagnosis: Diagnosis) -> None:
        """The record has what the run waits for; the log has it too where nobody shows the record."""
        reason = str(diagnosis.refusal())
        self.log.write(StateChanged(state="waiting", reason=reason))
        if not self.followed:
            _log.warning("%s waits for its slices: %s", self.name, reason)


def hold_for(
    training: Training,
    slices: Slices | None = None,
    timeout_s: float | None = None,
    alive: Callable[[], None] | None = None,
) -> Lease:
    """Hold ``slices`` (by default all of the run's, for ``deadlines.hold_s``) in the run's name.

    Raises:
        as ``gang.hold``.
    """
    return hold(
        training.slices if slices is None else slices,
        owner=training.name,
        timeout_s=training.deadlines.hold_s if timeout_s is None else timeout_s,
        priority=training.priority,
        save_s=training.deadlines.save_s,
        silence_s=training.deadlines.orphan_grace_s,
        waiting=training.waiting,
        alive=training.stop_requested if alive is None else alive,
    )
