"""Slices that each train a full copy of the state, averaged host to host."""

from __future__ import annotations

from pydantic import Field

from raytpu.spec.spec import Spec


class Replicas(Spec):
    """How slices work together when each is a JAX world of its own (``train.across_slices: replicas``)."""

    least: int = Field(default=1, ge=1)
    """Slices that must live for training to go on. With fewer the run waits for replacements; with fewer
    than slices.count those that live compute the rows of the others too, so that a step is the same step."""
    silence_s: float = Field(default=6.0, ge=3)
    """Silence after which a host counts as lost. A host that dies is noticed at once; this is for one that is
    frozen or cut off. Hosts say a word a second."""
    stuck_s: float = Field(default=60.0, gt=0)
    """Least time that a host may take for a step while all others wait for it; a slow step that is usual for
    the run is borne for ten times its usual length. Then its slice is replaced."""
    port: int = Field(default=0, ge=0, le=65535)
    """TCP port on which hosts exchange gradients; 0 takes any free one."""
    every_steps: int = Field(default=1, ge=1)
    """Steps from one average to the next. 1: gradients are averaged at every step. More: each slice takes so
    many steps by itself, then the ways that their parameters went are averaged and an outer optimizer with
    Nesterov momentum takes them for a gradient (DiLoCo): 1/every_steps of the bytes, and another result than
    with 1. train.config.steps and checkpoint.every_steps must be multiples of it."""
    outer_learning_rate: float = Field(default=0.7, gt=0)
    """With every_steps above 1, of the outer optimizer. 0.7 with a momentum of 0.9 is the paper's
    (arXiv:2311.08105), for hundreds of averages; runs of some tens do better with a momentum of 0.6."""
    outer_momentum: float = Field(default=0.9, ge=0, lt=1)
    """With every_steps above 1, of the outer optimizer."""
