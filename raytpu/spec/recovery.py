"""What a run does after an attempt that failed."""

from __future__ import annotations

from pydantic import Field

from raytpu.spec.spec import Spec


class Recovery(Spec):
    """How often a run is tried again, with a budget for each kind of failure, and what it keeps ready for it.

    Budgets count from the start of the driver: who runs the file again gives new ones.
    """

    max_lost_slices: int = Field(default=100, ge=0)
    """Lost slices before giving up. Large: losing a spot slice says nothing about the program."""
    max_program_failures: int = Field(default=3, ge=0)
    """Errors of the program, and host processes that end by themselves, before giving up. Few: an error that
    comes and goes is worth a restart, a bug is not. The same error after the same step, or an error before
    any step was done, ends the run whatever is left."""
    max_start_failures: int = Field(default=5, ge=0)
    """Attempts whose hosts did not come up, before giving up. Five: a host that fails three times in a row
    puts its slice under quarantine, and another slice is tried then."""
    standby: bool = True
    """Keep an idle process on each host, with JAX imported, that the next attempt begins with. It costs about
    0.4 GB of memory a host and saves the start of Python and its imports. Whole slices with more than two
    chips a host only."""
    spares: int = Field(default=0, ge=0)
    """Slices to hold beside slices.count as soon as they are idle, so that a lost one is replaced without
    waiting in the queue."""
    notice_s: float = Field(default=30.0, gt=0)
    """Between the notice that a host goes away and its end, where whoever gives it does not say: the metadata
    server's ``preempted``, a drain without a deadline. A spot VM of Google Cloud has 30 s
    (https://cloud.google.com/compute/docs/instances/spot)."""
    grace_s: float = Field(default=25.0, gt=0)
    """Between SIGTERM to a host's process and its end. GKE gives spot pods up to 25 s of
    ``terminationGracePeriodSeconds`` (https://cloud.google.com/kubernetes-engine/docs/how-to/autopilot-spot-pods);
    on Standard node pools the kubelet's default is 15."""
