"""The whole document and the rules that tie its sections together."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, JsonValue, field_validator

from raytpu.spec.checkpoint import Checkpoint
from raytpu.spec.cluster import Cluster, cluster_against_slices
from raytpu.spec.config_keys import NEEDED_WITH_DATA
from raytpu.spec.data import TextData
from raytpu.spec.deadlines import Deadlines
from raytpu.spec.mesh import Mesh, default_mesh, mesh_against_slices
from raytpu.spec.recovery import Recovery
from raytpu.spec.replicas import Replicas
from raytpu.spec.slices import Slices
from raytpu.spec.spec import Broken, Spec, broken
from raytpu.spec.train import Train, config_rules


class Workload(Spec):
    """A training job on TPU slices: one file, one run."""

    version: Literal[1] = 1
    """Version of this document's format."""
    name: str
    """Name of the run: lower-case letters, digits and -, at most 40, such as stdlib-gpt. Running a file
    again under the same name resumes it from the newest durable checkpoint."""
    slices: Slices
    """The TPU slices to hold."""
    priority: int = 0
    """Band in the queue for slices. A higher one goes first, and preempts lower ones, whole gangs only, when
    nothing else helps; they get deadlines.save_s to save."""
    train: Train
    """The train function and its settings."""
    data: dict[str, TextData] = Field(default={})
    """Streams of data by name; context.batches("train") reads the one called train."""
    checkpoint: Checkpoint
    """Where state is saved."""
    deadlines: Deadlines = Deadlines()
    """How long to wait before giving up, with the reason."""
    recovery: Recovery = Recovery()
    """What follows a lost slice or an error: how often the run is tried again, and what is kept ready."""
    cluster: Cluster | None = None
    """The cluster on GKE that `raytpu render` writes manifests for; no other command reads it."""

    @field_validator("name")
    @classmethod
    def _is_a_label(cls, name: str) -> str:
        # 40: with the suffixes of the objects made from it, it stays below the 63 of a DNS label.
        if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", name):
            raise broken(
                "expected lower-case letters, digits and -, starting with a letter and at most 40 long, "
                f"got {name!r}"
            )
        return name

    def broken_rules(self) -> Iterator[Broken]:
        yield from sections_together(
            slices=self.slices,
            mesh=self.train.mesh,
            mesh_is_default=self.train.mesh is None,
            config=self.train.config,
            data=self.data,
            train=self.train,
            recovery=self.recovery,
            cluster=self.cluster,
        )
        train = self.train
        yield from outer_steps_fit(train.replicas, train.across_slices, train.config, self.checkpoint)


def sections_together(
    *,
    slices: Slices | None,
    mesh: Mesh | None,
    mesh_is_default: bool,
    config: Mapping[str, JsonValue] | None,
    data: Mapping[str, TextData | None] | None,
    train: Train | None = None,
    recovery: Recovery | None = None,
    cluster: Cluster | None = None,
) -> Iterator[Broken]:
    """Rules that need several sections. ``None`` is a section that is itself wrong: its rules are skipped.

    A function of parts, not a method, so that the parser can apply it to what is left of a document that
    has other problems, and report all at once.
    """
    if slices is not None:
        yield from _devices_are_fixed(slices)
    if mesh_is_default and slices is not None:
        mesh = default_mesh(slices)
    if slices is not None and mesh is not None:
        for rule in mesh_against_slices(mesh, slices):
            yield Broken(("train", "mesh", *rule.at), rule.message)
    if mesh is not None and config is not None:
        yield from _batch_divides(mesh, config)
    if config is not None and data:
        missing = [key for key in NEEDED_WITH_DATA if key not in config]
        if missing:
            yield Broken(
                ("train", "config"),
                f"{', '.join(missing)} must be set: with a data section, raytpu lays out the batches",
            )
    if train is not None and train.across_slices == "replicas" and slices is not None and mesh is not None:
        yield from _replicas_fit(train.replicas, slices, mesh)
    if cluster is not None and slices is not None and recovery is not None:
        for rule in cluster_against_slices(cluster, slices.count + recovery.spares):
            yield Broken(("cluster", *rule.at), rule.message)
    text = data["train"] if data and "train" in data else None
    if text is not None and text.holdout > 0 and data and "eval" in data:
        yield Broken(
            ("data", "eval"),
            "there would be two streams called eval: data.train.holdout makes one; "
            "set it to 0, or leave data.eval out",
        )


def _replicas_fit(replicas: Replicas, slices: Slices, mesh: Mesh) -> Iterator[Broken]:
    if replicas.least > slices.count:
        yield Broken(
            ("train", "replicas", "least"),
            f"{replicas.least} is more than slices.count, which is {slices.count}",
        )
    split = [axis for axis in mesh.dcn if mesh.dcn[axis] > 1 and axis not in mesh.dividing_axes]
    if split:
        yield Broken(
            ("train", "mesh", "dcn"),
            f"{', '.join(split)}: with across_slices: replicas every slice holds the whole model, so axes "
            f"between slices can only divide the batch; for example dcn: {{replica: {slices.count}}}",
        )


def outer_steps_fit(
    replicas: Replicas, across_slices: str, config: Mapping[str, Any], checkpoint: Checkpoint | None
) -> Iterator[Broken]:
    """Only states after an average are the same on all replicas: a run is saved, and ends, after one."""
    every = replicas.every_steps
    if every == 1:
        return
    if across_slices != "replicas":
        yield Broken(
            ("train", "replicas", "every_steps"),
            "slices in lockstep are averaged at every step; set train.across_slices to replicas",
        )
        return
    steps = config.get("steps")
    counted = {
        ("train", "config", "steps"): steps if isinstance(steps, int) else None,
        ("checkpoint", "every_steps"): None if checkpoint is None else checkpoint.every_steps,
    }
    for at, number in counted.items():
        if number is not None and number % every:
            below, above = number // every * every, (number // every + 1) * every
            yield Broken(
                at,
                f"{number} is not a multiple of train.replicas.every_steps, which is {every}; "
                f"{f'{below} or {above}' if below else above} would do",
            )


def _devices_are_fixed(slices: Slices) -> Iterator[Broken]:
    """What a program of its own may ask of ``raytpu.hold``, but not a training run."""
    why = "the mesh of a training run is laid out for"
    if slices.alternatives:
        yield Broken(
            ("slices", "alternatives"),
            f"{why} one topology; leave it out (a workload file for each topology does the same)",
        )
    if slices.least != slices.count:
        yield Broken(
            ("slices", "min_count"),
            f"{why} a fixed number of slices; leave it out, or set it to {slices.count} like count",
        )


def _batch_divides(mesh: Mesh, config: Mapping[str, JsonValue]) -> Iterator[Broken]:
    rows = config.get("global_batch")
    if not isinstance(rows, int) or any(rule.at == ("global_batch",) for rule in config_rules(config)):
        return
    axes = [axis for axis in mesh.dividing_axes if axis in mesh.axes]
    shards = math.prod(mesh.axes[axis] for axis in axes)
    if rows % shards:
        below, above = rows // shards * shards, (rows // shards + 1) * shards
        yield Broken(
            ("train", "config", "global_batch"),
            f"{rows} rows do not divide over {shards} shards "
            f"({' × '.join(f'{axis} {mesh.axes[axis]}' for axis in axes)}); "
            f"{f'{below} or {above}' if below else above} would",
        )
