"""The rungs of a run's ladder: each checkpoint with what is known of it, and which of them may go."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from raytpu.checkpoint.durable import COMMIT_MARKER, durable_steps
from raytpu.checkpoint.manifest import (
    MANIFEST,
    ManifestDamaged,
    checksum_findings,
    read_manifest,
    size_findings,
    stored_sizes,
)
from raytpu.checkpoint.quarantine import all_put_aside
from raytpu.record.storage import file_sizes, join_url, read_bytes

RungState = Literal["good", "unverified", "damaged", "quarantined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One checkpoint."""

    step: int
    state: RungState
    """``good``: its files have the sizes (when verified: the checksums) that its manifest names ·
    ``unverified``: durable, without a manifest; it may be used · ``damaged``: not what its manifest says ·
    ``quarantined``: was found damaged, and a run went on from an older one."""
    size: int
    """Bytes of all its files."""
    time_s: float | None
    """When it was committed (quarantined: put aside), in Unix time; ``None`` when nothing says so."""
    path: str
    reasons: tuple[str, ...] = ()
    """What is wrong with it."""


def rungs(directory: str, *, verify: bool = False) -> tuple[Rung, ...]:
    """Every checkpoint under ``directory``, the oldest step first.

    Args:
        verify: read every file of those with a manifest and compare the checksums, too.

    Raises:
        StorageError: the storage does not answer.
    """
    found = [_rung(directory, step, verify=verify) for step in durable_steps(directory)]
    found += [
        Rung(
            step=aside.step,
            state="quarantined",
            size=sum(stored_sizes(aside.path).values()),
            time_s=aside.time_s,
            path=aside.path,
            reasons=(aside.reason,) if aside.reason else (),
        )
        for aside in all_put_aside(directory)
    ]
    return tuple(sorted((rung for rung in found if rung is not None), key=lambda rung: rung.step))


def verified_steps(directory: str, steps: Sequence[int]) -> set[int]:
    """Those of ``steps`` that have a manifest."""
    return {step for step in steps if MANIFEST in file_sizes(join_url(directory, str(step)), MANIFEST)}


def removable(steps: Sequence[int], verified: Collection[int], keep: int) -> list[int]:
    """Which of ``steps`` may be deleted so that ``keep`` verified ones are left.

    Only those older than the ``keep`` newest verified ones, so never the newest good one; and none at all
    before there are ``keep`` verified ones.
    """
    kept = sorted(verified)[-keep:]
    return [step for step in steps if step < kept[0]] if len(kept) == keep else []


def _rung(directory: str, step: int, *, verify: bool) -> Rung | None:
    """``None`` when the checkpoint was deleted while it was looked at: a live run keeps only the newest."""
    where = join_url(directory, str(step))
    sizes = stored_sizes(where)
    state: RungState = "good"
    findings: list[str] = []
    try:
        manifest = read_manifest(where, step)
        if manifest is None:
            state = "unverified"
        else:
            findings = size_findings(manifest, sizes)
            if verify and not findings:
                findings = checksum_findings(where, manifest, manifest)
    except ManifestDamaged as error:
        findings = [str(error)]
    if findings or state == "unverified":
        if COMMIT_MARKER not in file_sizes(where, COMMIT_MARKER):
            return None
        state = "damaged" if findings else state
    return Rung(
        step=step,
        state=state,
        size=sum(sizes.values()),
        time_s=_committed_s(where),
        path=where,
        reasons=tuple(findings),
    )


def _committed_s(where: str) -> float | None:
    """Orbax notes the time of the commit (``orbax/checkpoint/_src/metadata/checkpoint.py``)."""
    try:
        document = json.loads(read_bytes(join_url(where, "_CHECKPOINT_METADATA")) or b"{}")
        nanoseconds = document.get("commit_timestamp_nsecs")
        return None if nanoseconds is None else float(nanoseconds) / 1e9
    except (ValueError, TypeError, AttributeError):
        return None  # spoilt; whether that matters, the manifest says
