"""Checkpoints of a run on its storage path, written by Orbax in the background.

Built on ``ocp.AsyncCheckpointer`` and not on ``ocp.CheckpointManager``: in 0.12.8 the manager's own thread
takes the error of a failed save, so its ``check_for_errors`` finds nothing and training goes on until the
next save (google/orbax#605). Here one thread per save waits for the commit, and what it sees is kept until
``raise_failed_save``.

A checkpoint is ``<directory>/<step>/`` with ``state`` (arrays by path) and ``about`` (JSON: step, position,
fingerprint, version). It is durable once its commit marker is written (``durable.py``); only then do
``durable_step`` move and older ones go.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from raytpu.checkpoint.durable import COMMIT_MARKER, TEMPORARY_SUFFIX, durable_steps, is_step_name
from raytpu.checkpoint.state_leaves import (
    check_fingerprint,
    fingerprint,
    flatten_state,
    restore_targets,
    unflatten_state,
)
from raytpu.errors import DeadlineExceeded, SaveFailed, StorageError

SAVE_DEADLINE_S = 600
"""How long processes wait for each other's part of one save before it counts as failed. By feel: a slow save
holds the training loop only when the next one is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableSave:
    """A save that has reached its commit marker."""

    step: int
    seconds: float
    """From the call of ``save`` to the commit marker."""


class CheckpointStore:
    """The checkpoints of one run.

    Collective: every process of the gang makes the same calls in the same order, except
    ``raise_failed_save``, ``durable_step`` and ``durable_saves``, which are local.
    """

    def __init__(self, directory: str, keep: int, *, clean: bool = True) -> None:
        """Open ``directory`` (a path or URL), creating it; what an earlier, killed save left is removed.

        Args:
            keep: durable checkpoints to keep; at least 1.
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
        self._waiter: threading.Thread | None = None
        self._failure: SaveFailed | None = None
        self._own_steps: set[int] = set()
        self._durable_saves: list[DurableSave] = []
        if (
            self._first and clean
        ):  # the others need not wait: a save begins with a barrier, and listing skips the rest
            self._prepare_directory()
        self._durable_step = self.newest_step()
        self._writer = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(),
            async_options=ocp.AsyncOptions(
                timeout_secs=SAVE_DEADLINE_S,
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

    def newest_step(self) -> int | None:
        """Step of the newest durable checkpoint on storage, which ``restore(None, …)`` takes.

        Raises:
            StorageError: the directory cannot be listed.
        """
        steps = durable_steps(self.directory)
        return steps[-1] if steps else None

    def durable_saves(self) -> list[DurableSave]:
        """Saves that became durable since the last call, for the record."""
        with self._lock:
            saves, self._durable_saves = self._durable_saves, []
        return saves

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
        if self._first and step in durable_steps(self.directory):
            self._remove(step)  # of a branch that was left when an older step was restored
        try:
            self._writer.save(
                self._root / str(step),
                args=ocp.args.Composite(state=ocp.args.StandardSave(arrays), about=ocp.args.JsonSave(about)),
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise self._failed(f"checkpoint of step {step} to {self.directory}", error) from error
        self._own_steps.add(step)
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

    def restore(self, step: int | None, like: Any) -> tuple[Any, dict[str, Any]]:
        """The state and data position saved at ``step`` (``None``: the newest durable one).

        ``like`` is a state of the current program, of arrays or of ``ShapeDtypeStruct`` with shardings.
        Arrays are read straight onto its shardings, whatever mesh, slice count or device count they were
        saved from. The checkpoint's fingerprint is compared before any array is read.

        Raises:
            CheckpointMismatch: the checkpoint is of another model.
            StorageError: there is no such checkpoint, or it cannot be read.
            SpecError: a leaf of ``like`` has no sharding.
        """
        self.wait()
        step = self._existing(step)
        where = f"{self.directory}/{step}"
        targets, treedef = restore_targets(like)
        about = self._read(step, about=ocp.args.JsonRestore())["about"]
        check_fingerprint(where, about["fingerprint"], fingerprint(like))
        arrays = self._read(step, state=ocp.args.StandardRestore(targets))["state"]
        self._own_steps.add(step)
        return unflatten_state(arrays, like, treedef), about["position"]

    def _existing(self, step: int | None) -> int:
        steps = durable_steps(self.directory)
        if not steps:
            raise StorageError(f"{self.directory}: no durable checkpoint")
        if step is None:
            return steps[-1]
        if step not in steps:
            raise StorageError(
                f"{self.directory}: no durable checkpoint of step {step}; there are {list(steps)}"
            )
        return step

    def _read(self, step: int, **items: Any) -> Any:
        try:
            with contextlib.closing(ocp.Checkpointer(ocp.CompositeCheckpointHandler())) as reader:
                return reader.restore(self._root / str(step), args=ocp.args.Composite(**items))
        except (OSError, ValueError, KeyError) as error:
            older = [each for each in durable_steps(self.directory) if each < step]
            instead = f"to go on from step {older[-1]}" if older else "to begin anew"
            raise StorageError(
                f"{self.directory}/{step}: cannot be read: {str(error).splitlines()[0][:300]}\n"
                f"  if it is damaged, remove {self.directory}/{step} {instead}"
            ) from error

    def _await_commit(self, step: int, started: float) -> None:
        """The whole life of the background thread of one save."""
        try:
            self._writer.wait_until_finished()
        except Exception as error:  # the thread's boundary: kept for raise_failed_save
            self._failed(f"checkpoint of step {step} to {self.directory}", error)
            return
        with self._lock:
            self._durable_step = step
            self._durable_saves.append(DurableSave(step=step, seconds=time.monotonic() - started))
        if self._first:
            try:
                self._remove_older()
            except (OSError, StorageError) as error:
                self._failed(f"removing checkpoints older than the newest {self._keep}", error)

    def _failed(self, what: str, error: Exception) -> SaveFailed:
        durable = "none" if self._durable_step is None else f"step {self._durable_step}"
        failure = SaveFailed(
            f"{what} failed on process {jax.process_index()}: {type(error).__name__}: {error}\n"
            f"  newest durable checkpoint: {durable}"
        )
        failure.__cause__ = error
        with self._lock:
            self._failure = failure
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
                if unfinished or TEMPORARY_SUFFIX in child.name:
                    child.rmtree()
        except (OSError, ImportError) as error:
            raise StorageError(f"{self.directory}: cannot be prepared for checkpoints: {error}") from error

    def _remove_older(self) -> None:
        for step in durable_steps(self.directory)[: -self._keep]:
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
