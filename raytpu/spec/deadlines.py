"""How long raytpu waits before it says who is late."""

from __future__ import annotations

from pydantic import Field

from raytpu.spec.spec import Spec


class Deadlines(Spec):
    """Seconds. Each wait ends with an error that names the slices or hosts that are late."""

    hold_s: float = Field(default=60.0, gt=0)
    """To get all slices of the workload, the time in the queue included. Taking free slices is well under a
    second; who wants to queue for hours says so here."""
    host_start_s: float = Field(default=120.0, gt=0)
    """To start one process on every host. Large: a cold host imports ray and jax from a slow disk."""
    jax_init_s: float = Field(default=120.0, gt=0)
    """For all hosts to find each other in jax.distributed. Counted from when all processes are up."""
    first_step_s: float = Field(default=1800.0, gt=0)
    """From the call of the train function to its first step: building or taking the state, compiling. Half an
    hour, by feel: a large model compiles for minutes and comes from a busy bucket. Data has data_s beside
    it. A train function that takes no context reports no step, and none is waited for."""
    stuck_s: float = Field(default=60.0, gt=0)
    """Least time that a step may take in lockstep before the run counts as stuck; ten times a usual step,
    where that is more. Then the stacks of all hosts are in their logs, the late one is named, and the attempt
    ends. Replicas have a least time of their own."""
    stuck_most_s: float = Field(default=1800.0, gt=0)
    """Most time that a step may take, or twice its usual time where that is more."""
    silence_s: float = Field(default=6.0, ge=3)
    """Silence of a host's process, while no step is finished in lockstep, after which its slice counts as
    lost. A process that dies is noticed at once; this is for one that is stopped. Of a host that compiles,
    saves or evaluates at least half of heartbeat_s. Replicas have their own."""
    pause_s: float = Field(default=1800.0, gt=0)
    """After the first step, for one compilation, save or evaluation, or for whatever else hosts do instead of
    a step. Half an hour, by feel. A save has at least twice checkpoint_s, a wait for data data_s."""
    heartbeat_s: float = Field(default=30.0, gt=0)
    """Silence after which a host process counts as lost. Shorter takes a long compilation or a busy machine
    for a death."""
    data_s: float = Field(default=300.0, gt=0)
    """To read, tokenise and pack the data before the first step; after that, for each single batch."""
    checkpoint_s: float = Field(default=600.0, gt=0)
    """For a checkpoint to become durable, when the next one is due or the run ends. Ten minutes, by feel: a
    large model to a busy bucket."""
    orphan_grace_s: float = Field(default=30.0, ge=10)
    """Silence of the driver after which its slices are taken back and its hosts end. A driver that dies is
    noticed at once; this is for one that is frozen or cut off."""
    save_s: float = Field(default=60.0, ge=0)
    """Between the notice that somebody of higher priority gets the slices and their loss: for the steps under
    way and one checkpoint. A minute, by feel."""
    stop_s: float = Field(default=15.0, gt=0)
    """For host processes to end by themselves before they are killed."""
