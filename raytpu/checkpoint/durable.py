"""Which checkpoints on a storage path are durable, without JAX or Orbax: the driver asks this.

Orbax 0.12 writes a step into a directory that is not yet the step (local and other POSIX file systems:
``<step>.orbax-checkpoint-tmp``, renamed at the end) or into the step's own directory (Google Cloud
Storage, which cannot rename), and last of all puts ``commit_success.txt`` in it, on every kind of storage
(``orbax/checkpoint/_src/path/atomicity.py``, ``AtomicRenameTemporaryPath.finalize`` and
``CommitFileTemporaryPath.finalize``). So a step is durable when its directory has the plain number as its
name and holds that file; this is true on both.

Durable is not yet good: ``manifest.py`` tells what a checkpoint must hold, ``quarantine.py`` puts a damaged
one aside.
"""

from __future__ import annotations

import fsspec
from fsspec.core import url_to_fs

from raytpu.errors import StorageError

COMMIT_MARKER = "commit_success.txt"
SET_ASIDE = "quarantined.json"
"""In the directory of a damaged step that could not be moved away: it is no checkpoint any more."""
TEMPORARY_SUFFIX = ".orbax-checkpoint-tmp"
"""Part of the name of a directory that is being written or deleted."""


def durable_steps(directory: str) -> tuple[int, ...]:
    """Steps with a durable checkpoint under ``directory`` (a path or URL), oldest first.

    A directory that does not exist has none. Those under quarantine do not count.

    Raises:
        StorageError: the path cannot be listed.
    """
    try:
        storage, root = url_to_fs(directory)
        storage.invalidate_cache()
        names = [entry.rstrip("/").rsplit("/", 1)[-1] for entry in _children(storage, root)]
        steps = sorted(int(name) for name in names if is_step_name(name))
        root = root.rstrip("/")
        return tuple(
            step
            for step in steps
            if storage.exists(f"{root}/{step}/{COMMIT_MARKER}")
            and not storage.exists(f"{root}/{step}/{SET_ASIDE}")
        )
    except (OSError, ValueError, ImportError) as error:
        raise StorageError(f"{directory}: cannot list checkpoints: {error}") from error


def newest_durable_step(directory: str) -> int | None:
    """The newest of ``durable_steps``, or ``None``.

    Raises:
        StorageError: the path cannot be listed.
    """
    steps = durable_steps(directory)
    return steps[-1] if steps else None


def is_step_name(name: str) -> bool:
    """Whether a directory of this name can be a step: plain decimal digits, as Orbax and we write them."""
    return name.isascii() and name.isdigit() and str(int(name)) == name


def _children(storage: fsspec.AbstractFileSystem, root: str) -> list[str]:
    try:
        entries = [str(entry) for entry in storage.ls(root, detail=False)]
    except FileNotFoundError:
        return []
    if [entry.rstrip("/") for entry in entries] == [root.rstrip("/")]:
        raise NotADirectoryError(f"{root} is a file")  # which fsspec lists as its own only child
    return entries
