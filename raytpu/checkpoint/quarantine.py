"""Damaged checkpoints are put aside, with the reason beside them, so that a run can go on from an older one.

Where directories can be renamed, a damaged step becomes ``<directory>/quarantined/<step>-<n>``. On object
stores, where a rename copies every byte, it stays where it is and gets a marker (``durable.SET_ASIDE``),
until the run saves that step again. Either way ``<directory>/quarantined/<step>-<n>.json`` says why.
Nothing here is ever deleted by raytpu.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

from raytpu.checkpoint.durable import SET_ASIDE
from raytpu.errors import StorageError
from raytpu.record.storage import (
    file_sizes,
    folder_names,
    is_local,
    join_url,
    make_folder,
    read_bytes,
    write_bytes,
)

QUARANTINE = "quarantined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A checkpoint that was found damaged."""

    step: int
    reason: str
    """Empty when the process died before it wrote it."""
    path: str
    """Where its files are."""
    time_s: float | None
    """When it was put aside, in Unix time."""


def put_aside(directory: str, step: int, reason: str) -> Quarantined:
    """Take the checkpoint of ``step`` out of those that count.

    Raises:
        StorageError: it cannot be moved or marked.
    """
    folder = join_url(directory, QUARANTINE)
    taken = {*folder_names(folder), *(name.removesuffix(".json") for name in file_sizes(folder, ".json"))}
    name = next(each for n in range(1, len(taken) + 2) if (each := f"{step}-{n}") not in taken)
    here = join_url(directory, str(step))
    path = join_url(folder, name) if is_local(directory) else here
    aside = Quarantined(step=step, reason=reason, path=path, time_s=time.time())
    document = {"step": step, "reason": reason, "path": path, "time_s": aside.time_s}
    data = json.dumps(document, indent=1).encode()
    if is_local(directory):
        make_folder(folder)
        try:
            os.rename(here, path)
        except FileNotFoundError as error:
            # Another gang that goes on from the same folder was faster.
            others = [each for each in all_put_aside(directory) if each.step == step]
            if not others:
                raise StorageError(f"cannot move {here} to {path}: it is gone") from error
            return others[-1]
        except OSError as error:
            raise StorageError(f"cannot move {here} to {path}: {error.strerror}") from error
    else:
        write_bytes(join_url(here, SET_ASIDE), data)
    write_bytes(join_url(folder, f"{name}.json"), data)
    return aside


def all_put_aside(directory: str) -> tuple[Quarantined, ...]:
    """Every checkpoint of ``directory`` that was found damaged, the oldest step first.

    Raises:
        StorageError: the storage does not answer.
    """
    folder = join_url(directory, QUARANTINE)
    names = {*folder_names(folder), *(name.removesuffix(".json") for name in file_sizes(folder, ".json"))}
    numbers = sorted(tuple(map(int, parts)) for name in names if _is_pair(parts := name.split("-")))
    return tuple(_read(folder, step, n) for step, n in numbers)


def _read(folder: str, step: int, number: int) -> Quarantined:
    name = f"{step}-{number}"
    data = read_bytes(join_url(folder, f"{name}.json"))
    try:
        document = json.loads(data or b"{}")
        return Quarantined(
            step=step,
            reason=str(document.get("reason", "")),
            path=join_url(folder, name) if is_local(folder) else str(document.get("path", "")),
            time_s=None if "time_s" not in document else float(document["time_s"]),
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{join_url(folder, name)}.json cannot be understood: {error}; delete it"
        ) from error


def _is_pair(parts: list[str]) -> bool:
    return len(parts) == 2 and all(part.isascii() and part.isdigit() for part in parts)
