"""Restores the newest good rung, and says of each newer one why it is none.

A rung is good when it has its commit marker, holds what its manifest says (sizes, and checksums of every
file), and Orbax can read it. All processes look together: each reads its share of the files for their
checksums, and what one finds counts for all, so all restore the same step.

Damaged rungs are put aside only once an older one is restored. When none is left, all stay where they are and
the error names each with its reason: what spoils every rung alike is more often the storage, or this program,
than the files.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from etils import epath

from raytpu.checkpoint.agreement import Agreement
from raytpu.checkpoint.durable import durable_steps
from raytpu.checkpoint.manifest import (
    FileFacts,
    ManifestDamaged,
    checksum_findings,
    read_manifest,
    share_out,
    size_findings,
    stored_sizes,
)
from raytpu.checkpoint.quarantine import Quarantined, all_put_aside, put_aside
from raytpu.checkpoint.state_leaves import (
    check_fingerprint,
    fingerprint,
    restore_targets,
    shown,
    unflatten_state,
)
from raytpu.errors import StorageError
from raytpu.record.storage import join_url


class Restored(NamedTuple):
    """What a checkpoint gave."""

    state: Any
    position: dict[str, Any]
    """Of the data."""
    step: int
    verified: bool
    """Its manifest vouched for it."""
    quarantined: tuple[Quarantined, ...] = ()
    """Newer checkpoints, found damaged, that are put aside."""


class _Damage(Exception):
    """A rung is not good; the same on every process."""

    def __init__(self, findings: list[str]) -> None:
        super().__init__(findings)
        self.findings = findings

    def __str__(self) -> str:
        return "; ".join(line.strip() for line in shown(self.findings).splitlines())


class Restoring:
    """Restores checkpoints of one directory. Collective: all processes make the same calls in order."""

    def __init__(self, directory: str, root: epath.Path, agreement: Agreement) -> None:
        self._directory, self._root, self._agreement = directory, root, agreement

    def newest(self, like: Any) -> Restored | None:
        """See ``CheckpointStore.restore_newest``."""
        steps = self._agreement.of_first("the list of checkpoints", self._candidates)
        damaged: dict[int, str] = {}
        for step in reversed(steps):
            try:
                restored = self._restored(step, like)
            except _Damage as damage:
                damaged[step] = str(damage)
            else:
                return restored._replace(quarantined=self._put_aside(damaged))
        if damaged:
            raise StorageError(
                f"{self._directory}: no checkpoint is good\n"
                + "\n".join(f"  {step}: {reason}" for step, reason in damaged.items())
                + "\n  they were left as they are; repair the storage, or start anew with --fresh"
            )
        return None

    def of_step(self, step: int, like: Any) -> Restored:
        """See ``CheckpointStore.restore``."""
        steps = self._agreement.of_first("the list of checkpoints", lambda: durable_steps(self._directory))
        if step not in steps:
            raise StorageError(
                f"{self._directory}: no durable checkpoint of step {step}; there are {list(steps)}"
                if steps
                else f"{self._directory}: no durable checkpoint"
            )
        try:
            return self._restored(step, like)
        except _Damage as damage:
            raise StorageError(f"{self._directory}/{step}: cannot be restored: {damage}") from damage

    def _candidates(self) -> list[int]:
        steps = list(durable_steps(self._directory))
        if not steps and (aside := all_put_aside(self._directory)):
            raise StorageError(
                f"{self._directory}: no checkpoint is left beside those under quarantine\n"
                + "\n".join(f"  {each.path}: {each.reason}" for each in aside)
                + "\n  a run that had saved steps does not silently begin anew; start anew with --fresh"
            )
        return steps

    def _restored(self, step: int, like: Any) -> Restored:
        targets, treedef = restore_targets(like)
        manifest = self._check_sizes(step)
        if manifest is not None:
            self._check_checksums(step, manifest)
        about = self._about(step)
        check_fingerprint(f"{self._directory}/{step}", about["fingerprint"], fingerprint(like))
        arrays, failure = None, ""
        try:
            arrays = self._read(step, state=ocp.args.StandardRestore(targets))["state"]
        except Exception as error:  # whatever Orbax makes of damaged files is a finding, told to all
            failure = f"process {jax.process_index()} cannot read its arrays: {_first_line(error)}"
        self._refuse([each for each in self._agreement.all_of(f"arrays of step {step}", failure) if each])
        return Restored(
            state=unflatten_state(arrays or {}, like, treedef),
            position=about["position"],
            step=step,
            verified=manifest is not None,
        )

    def _check_sizes(self, step: int) -> dict[str, FileFacts] | None:
        """The manifest, if there is one and the files have its sizes. Process 0 looks for all."""
        where = join_url(self._directory, str(step))

        def look() -> Any:
            try:
                manifest = read_manifest(where, step)
            except ManifestDamaged as error:
                return {"findings": [str(error)]}
            if manifest is None:
                return {"manifest": None}
            return {
                "findings": size_findings(manifest, stored_sizes(where)),
                "manifest": {name: [facts.size, facts.crc32] for name, facts in manifest.items()},
            }

        seen = self._agreement.of_first(f"the manifest of step {step}", look)
        self._refuse(seen.get("findings", []))
        if seen["manifest"] is None:
            return None
        return {name: FileFacts(size=size, crc32=crc32) for name, (size, crc32) in seen["manifest"].items()}

    def _check_checksums(self, step: int, manifest: dict[str, FileFacts]) -> None:
        """Every process reads its share of the files: as many bytes in all as the checkpoint has."""
        sizes = {name: facts.size for name, facts in manifest.items()}
        share = share_out(sizes, jax.process_count())[jax.process_index()]
        try:
            mine = checksum_findings(join_url(self._directory, str(step)), manifest, share)
        except StorageError as error:
            mine = [str(error)]
        found = self._agreement.all_of(f"checksums of step {step}", mine)
        self._refuse([finding for findings in found for finding in findings])

    def _about(self, step: int) -> dict[str, Any]:
        """Fingerprint and position, which process 0 reads for all."""

        def read() -> Any:
            try:
                about = self._read(step, about=ocp.args.JsonRestore())["about"]
                return {"about": {name: about[name] for name in ("fingerprint", "position")}}
            except Exception as error:  # whatever Orbax makes of damaged files is a finding, told to all
                return {"finding": f"its description cannot be read: {_first_line(error)}"}

        seen = self._agreement.of_first(f"the description of step {step}", read)
        self._refuse([seen["finding"]] if "finding" in seen else [])
        about: dict[str, Any] = seen["about"]
        return about

    def _read(self, step: int, **items: Any) -> Any:
        """The handler alone: ``ocp.Checkpointer.restore`` ends with a collective without a deadline, in which
        the others wait for a process that could not read its part."""
        handler = ocp.CompositeCheckpointHandler()
        try:
            return handler.restore(self._root / str(step), args=ocp.args.Composite(**items))
        finally:
            handler.close()

    def _put_aside(self, damaged: dict[int, str]) -> tuple[Quarantined, ...]:
        if not damaged:
            return ()

        def work() -> list[Any]:
            moved = (put_aside(self._directory, step, reason) for step, reason in damaged.items())
            return [[each.step, each.reason, each.path, each.time_s] for each in moved]

        return tuple(
            Quarantined(step=step, reason=reason, path=path, time_s=time_s)
            for step, reason, path, time_s in self._agreement.of_first(
                "damaged checkpoints to be moved", work
            )
        )

    @staticmethod
    def _refuse(findings: list[str]) -> None:
        if findings:
            raise _Damage(findings)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"
