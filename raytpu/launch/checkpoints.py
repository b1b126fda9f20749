"""The checkpoints of a run as they lie on storage, and whether they are good."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from raytpu.checkpoint import Rung, rungs
from raytpu.plan.text_table import text_table
from raytpu.record import RunDirectory


def checkpoints_of(directory: RunDirectory, *, verify: bool) -> tuple[Rung, ...]:
    """Every checkpoint of a run, the oldest step first; with ``verify`` all their bytes are read.

    Raises:
        StorageError: the storage does not answer.
    """
    return rungs(directory.checkpoints, verify=verify)


def checkpoints_document(directory: RunDirectory, found: Sequence[Rung], *, verify: bool) -> dict[str, Any]:
    """``found`` as JSON values, for a machine."""
    return {
        "run": directory.run,
        "lineage": directory.lineage,
        "directory": directory.checkpoints,
        "checksums_read": verify,
        "checkpoints": [{**asdict(rung), "reasons": list(rung.reasons)} for rung in found],
    }


def checkpoints_text(directory: RunDirectory, found: Sequence[Rung], *, verify: bool) -> str:
    """``found`` for a person."""
    if not found:
        return f"run {directory.run} has no checkpoint in {directory.checkpoints}"
    rows = [(str(rung.step), rung.state, _size_text(rung.size), _time_text(rung.time_s)) for rung in found]
    lines = [directory.checkpoints, *text_table(("STEP", "STATE", "SIZE", "TIME"), rows)]
    for rung in found:
        if rung.reasons:
            lines += [
                "",
                f"step {rung.step} ({rung.path}) is {rung.state}",
                *(f"  {r}" for r in rung.reasons),
            ]
    if any(rung.state == "unverified" for rung in found):
        lines += ["", "unverified: durable, but no manifest vouches for it; it may be restored"]
    if not verify and any(rung.state == "good" for rung in found):
        lines += ["", "good: the files have the right sizes; --verify reads them and compares checksums"]
    return "\n".join(lines)


def _size_text(size: int) -> str:
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def _time_text(time_s: float | None) -> str:
    return "-" if time_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))
