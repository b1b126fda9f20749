"""Checkpoints of a run on its storage path, written by Orbax in the background.

Built on ``ocp.AsyncCheckpointer`` and not on ``ocp.CheckpointManager``: in 0.12.8 the manager's own thread
takes the error of a failed save, so its ``check_for_errors`` finds nothing and training goes on until the
next save (google/orbax#605). Here one thread per save waits for the commit, and what it sees is kept until
``raise_failed_save``.

A checkpoint is ``<directory>/<step>/`` with ``state`` (arrays by path) and ``about`` (JSON: step, position,
fingerprint, version). It is durable once its commit marker is written (``durable.py``); then ``durable_step``
moves. The same thread then has all processes read it back and writes its manifest (``verification.py``);
only then does it count as verified, and older ones go.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from raytpu.checkpoint.agreement import Agreement
from raytpu.checkpoint.durable import COMMIT_MARKER, SET_ASIDE, TEMPORARY_SUFFIX, durable_steps, is_step_name
from raytpu.checkpoint.ladder import removable, verified_steps
from raytpu.checkpoint.restoring import Restored, Restoring
from raytpu.checkpoint.state_leaves import fingerprint, flatten_state
from raytpu.checkpoint.verification import vouch_for
from raytpu.errors import DeadlineExceeded, SaveFailed, StorageError
from raytpu.record.storage import join_url

SAVE_DEADLINE_S = 600
"""How long processes wait for each other's part of one save before it counts as failed. By feel: a slow save
holds the training loop only when the next one is due."""

SLOW_FACTOR = 4
SLOW_FLOOR_S = 10.0
"""A save is slow when it takes ``SLOW_FACTOR`` times the median of those before, and at least this. By feel:
the first save of a process takes several times the later ones, and nobody acts on seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableSave:
    """A save that has reached its commit marker."""

    step: int
    seconds: float
    """From the call of ``save`` to the commit marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedSave:
    """A durable save that was read back, and whose manifest is written."""

    step: int
    seconds: float
    """From the commit marker to the manifest."""
    size: int
    """Bytes of the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSave:
    """A save that still runs, for longer than it should."""

    step: int
    seconds: float
    """Since the call of ``save``."""
    limit_s: float
    """Beyond which it counts as slow."""


SaveReport = DurableSave | VerifiedSave | SlowSave


def slow_limit_s(earlier: Sequence[float], deadline_s: float) -> float:
    """Seconds after which a save is slow, from those that earlier ones took; half the deadline at most."""
    if not earlier:
        return deadline_s / 2
    return min(deadline_s / 2, max(SLOW_FLOOR_S, SLOW_FACTOR * statistics.median(earlier)))


class CheckpointStore:
    """The checkpoints of one run.

    Collective: every process of the gang makes the same calls in the same order, except
    ``raise_failed_save``, ``durable_step``, ``verified_step`` and ``save_reports``, which are local.
    """

    def __init__(
        self, directory: str, keep: int, deadline_s: float = SAVE_DEADLINE_S, *, clean: bool = True
    ) -> None:
        """Open ``directory`` (a path or URL), creating it; what an earlier, killed save left is removed.

        Args:
            keep: verified checkpoints to keep; at least 1.
            deadline_s: how long processes wait for each other's part of a save or restore.
            clean: whether to create and clean it; not, where another gang may be saving there.

        Raises:
            StorageError: the directory cannot be created or listed.
        """
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self.directory, self._keep = directory, keep
        self._root = _epath(directory)
        self._first = jax.process_index() == 0
        self._lock = threading.Lock()
        self._deadline_s = deadline_s
        self._agreement = Agreement(deadline_s)
        self._restoring = Restoring(directory, self._root, self._agreement)
        self._waiter: threading.Thread | None = None
        self._failure: SaveFailed | None = None
        self._own_steps: set[int] = set()
        self._reports: list[SaveReport] = []
        self._running: tuple[int, float] | None = None
        """Step and start of the save that is under way and was not yet told to be slow."""
        self._earlier_s: list[float] = []
        self._verified_step: int | None = None
        # The others need not wait: a save begins with a barrier, and listing skips the rest.
        if self._first and clean:
            self._prepare_directory()
        self._durable_step = self._newest_step()
        self._writer = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(),
            async_options=ocp.AsyncOptions(
                timeout_secs=max(1, round(deadline_s)),
                # In the background, a directory that cannot be made leaves threads which wait for it and
                # keep the process from ending for another 300 s (orbax 0.12.8, measured).
                create_directories_asynchronously=False,
            ),
        )

    @property
    def durable_step(self) -> int | None:
        """Step of the newest checkpoint known to be durable; never one that is still being written."""
        with self._lock:
            return self._durable_step

    @property
    def verified_step(self) -> int | None:
        """Step of the newest checkpoint that this store has saved and verified."""
        with self._lock:
            return self._verified_step

    def save_reports(self) -> list[SaveReport]:
        """What became of saves since the last call: durable, verified, or slow (told once)."""
        with self._lock:
            reports, self._reports = self._reports, []
            if self._running is not None:
                step, started = self._running
                seconds, limit_s = time.monotonic() - started, slow_limit_s(self._earlier_s, self._deadline_s)
                if seconds > limit_s:
                    reports.append(SlowSave(step=step, seconds=seconds, limit_s=limit_s))
                    self._running = None
        return reports

    def save(self, step: int, state: Any, position: Mapping[str, Any]) -> float:
        """Start to save ``state`` and the data ``position`` (JSON); return the seconds it blocked.

        It blocks until the arrays are copied off the devices (they may be donated afterwards) and, when
        an earlier save is still running, until that one is done. Saving a step that this store has saved or
        restored already does nothing.

        Raises:
            SaveFailed: an earlier save failed, or this one could not be started.
            SpecError: leaves that are not global ``jax.Array``, all named.
        """
        started = time.monotonic()
        arrays, _ = flatten_state(state)
        about = {
            "step": step,
            "position": dict(position),
            "fingerprint": fingerprint(state),
            "raytpu_version": version("raytpu"),
        }
        self._join(None)
        self.raise_failed_save()
        if step in self._own_steps:
            return time.monotonic() - started
        if self._first and (self._root / str(step)).exists():
            self._remove(step)  # of a branch that was left when an older step was restored
        try:
            self._writer.save(
                self._root / str(step),
                args=ocp.args.Composite(state=ocp.args.StandardSave(arrays), about=ocp.args.JsonSave(about)),
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise self._failed(f"checkpoint of step {step} to {self.directory}", error) from error
        self._own_steps.add(step)
        with self._lock:
            self._running = (step, started)
        self._waiter = threading.Thread(
            target=self._await_commit,
            args=(step, started),
            name=f"checkpoint {self.directory}/{step}",
            daemon=True,
        )
        self._waiter.start()
        return time.monotonic() - started

    def raise_failed_save(self) -> None:
        """Raise what went wrong in the background, if anything did. Local and cheap: call it every step.

        Raises:
            SaveFailed: every time, once a save has failed.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure

    def wait(self, deadline_s: float | None = None) -> None:
        """Return when no save is under way.

        Raises:
            DeadlineExceeded: one still is.
            SaveFailed: it failed.
        """
        self._join(deadline_s)
        self.raise_failed_save()

    def close(self, deadline_s: float | None = None) -> None:
        """Wait for the last save and let go of Orbax. Part of success: a failed last save raises here.

        Raises:
            DeadlineExceeded: the last save still runs.
            SaveFailed: it failed.
        """
        self._join(deadline_s)
        self._writer.close()
        self.raise_failed_save()

    def restore_newest(self, like: Any) -> Restored | None:
        """The newest good checkpoint; ``None`` when there never was any.

        ``like`` is a state of the current program, of arrays or of ``ShapeDtypeStruct`` with shardings.
        Arrays are read straight onto its shardings, whatever mesh, slice count or device count they were
        saved from. Every file is read for its checksum before, and the fingerprint is compared, so that no
        array is read in vain. Newer checkpoints that are damaged are put aside (``restoring.py``).

        Raises:
            CheckpointMismatch: the newest that is not damaged is of another model.
            StorageError: there are checkpoints, and none is good.
            SpecError: a leaf of ``like`` has no sharding.
            DeadlineExceeded: a process did not do its part.
        """
        self.wait()
        restored = self._restoring.newest(like)
        if restored is not None:
            self._own_steps.add(restored.step)
            with self._lock:
                self._durable_step = restored.step
        return restored

    def restore(self, step: int, like: Any) -> Restored:
        """The checkpoint of ``step`` and no other, as ``restore_newest`` gives the newest.

        Raises:
            CheckpointMismatch: it is of another model.
            StorageError: there is no such checkpoint, or it is damaged; it stays where it is.
            SpecError: a leaf of ``like`` has no sharding.
            DeadlineExceeded: a process did not do its part.
        """
        self.wait()
        restored = self._restoring.of_step(step, like)
        self._own_steps.add(step)
        return restored

    def _newest_step(self) -> int | None:
        steps = durable_steps(self.directory)
        return steps[-1] if steps else None

    def _await_commit(self, step: int, started: float) -> None:
        """The whole life of the background thread of one save."""
        what = f"checkpoint of step {step} to {self.directory}"
        try:
            self._writer.wait_until_finished()
            committed = time.monotonic()
            with self._lock:
                self._durable_step, self._running = step, None
                self._earlier_s.append(committed - started)
                self._reports.append(DurableSave(step=step, seconds=committed - started))
            what = f"reading back the checkpoint of step {step} from {self.directory}"
            size = vouch_for(join_url(self.directory, str(step)), step, self._agreement)
            with self._lock:
                self._verified_step = step
                seconds = time.monotonic() - committed
                self._reports.append(VerifiedSave(step=step, seconds=seconds, size=size))
            what = f"removing checkpoints older than the newest {self._keep}"
            if self._first:
                self._remove_older()
        except Exception as error:  # the thread's boundary: kept for raise_failed_save
            self._failed(what, error)

    def _failed(self, what: str, error: Exception) -> SaveFailed:
        durable = "none" if self._durable_step is None else f"step {self._durable_step}"
        failure = SaveFailed(
            f"{what} failed on process {jax.process_index()}: {type(error).__name__}: {error}\n"
            f"  newest durable checkpoint: {durable}"
        )
        failure.__cause__ = error
        with self._lock:
            self._failure, self._running = failure, None
        return failure

    def _join(self, deadline_s: float | None) -> None:
        if self._waiter is None:
            return
        self._waiter.join(deadline_s)
        if self._waiter.is_alive():
            raise DeadlineExceeded(f"{self._waiter.name} to become durable", deadline_s or 0.0)
        self._waiter = None

    def _prepare_directory(self) -> None:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            durable = set(durable_steps(self.directory))
            for child in self._root.iterdir():
                unfinished = is_step_name(child.name) and int(child.name) not in durable
                if (unfinished and not (child / SET_ASIDE).exists()) or TEMPORARY_SUFFIX in child.name:
                    child.rmtree()
        except (OSError, ImportError) as error:
            raise StorageError(f"{self.directory}: cannot be prepared for checkpoints: {error}") from error

    def _remove_older(self) -> None:
        steps = durable_steps(self.directory)
        for step in removable(steps, verified_steps(self.directory, steps), self._keep):
            self._remove(step)

    def _remove(self, step: int) -> None:
        """First take the marker away, then the rest: a half-deleted checkpoint is never taken for a whole."""
        path = self._root / str(step)
        (path / COMMIT_MARKER).unlink(missing_ok=True)
        path.rmtree()


def _epath(directory: str) -> epath.Path:
    """``directory`` as Orbax's path type, which expands nothing and takes unknown schemes for local names.

    Raises:
        StorageError: neither a local path nor Google Cloud Storage: elsewhere Orbax commits by a rename that
            is not atomic.
    """
    try:
        storage, path = url_to_fs(directory)
    except (ValueError, ImportError) as error:
        raise StorageError(f"{directory}: {error}") from error
    if isinstance(storage, LocalFileSystem):
        return epath.Path(path)
    if directory.startswith("gs://"):
        return epath.Path(directory)
    raise StorageError(f"{directory}: expected a local path or gs://bucket/path for checkpoints")
