"""Which files a text source consists of, in a fixed order, and whether they can be read. No Ray, no JAX."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raytpu.data.storage_errors import reading
from raytpu.errors import DataError

if TYPE_CHECKING:
    from raytpu.spec import TextData

SUFFIXES = {
    "jsonl": (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"),
    "parquet": (".parquet", ".pq"),
}
"""Which files of a folder belong to a source; ``text`` takes all of them."""

_LEFT_OUT_OF_STDLIB = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file of a source."""

    url: str
    """Absolute path, or URL for anything but a local file."""
    name: str
    """Path below the folder or pattern that was given: the same on every machine that holds the data."""
    size: int | None
    """Bytes; ``None`` where the server does not say."""


def source_files(data: TextData) -> tuple[SourceFile, ...]:
    """All files of a source: paths in the order given, sorted within each.

    ``python-stdlib`` is every module of the running interpreter's standard library except its tests
    (about 700 files, 12 MB), named by its path below the library.

    A path may be a file, a folder (read whole, without names that begin with ``.`` or ``_``) or a glob
    pattern, local or of any protocol that fsspec knows.

    Raises:
        DataError: every path that is missing, unreadable, empty, or named twice.
    """
    if data.source == "python-stdlib":
        return _stdlib_files(sysconfig.get_path("stdlib"))
    given = (data.path,) if isinstance(data.path, str) else tuple(data.path or ())
    if not given:
        raise DataError(f"source {data.source} needs a path: a file, a folder or a pattern")
    problems: list[str] = []
    files: dict[str, SourceFile] = {}
    for path in given:
        try:
            found = _files_at(path, data.source)
        except DataError as error:
            problems.append(str(error))
            continue
        twice = [file.url for file in found if file.url in files]
        problems += [f"{url}: named twice; its text would count double" for url in twice]
        files.update((file.url, file) for file in found)
    if problems:
        raise source_error(data, problems)
    return tuple(files.values())


def source_error(data: TextData, problems: list[str]) -> DataError:
    """One error for all problems of a source; of more than ten, the first ten."""
    if len(problems) == 1:
        return DataError(f"data source {data.source}: {problems[0]}")
    more = [f"and {len(problems) - 10} more"] if len(problems) > 10 else []
    lines = [f"data source {data.source}: {len(problems)} problems", *problems[:10], *more]
    return DataError("\n  ".join(lines))


def _stdlib_files(root: str) -> tuple[SourceFile, ...]:
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT_OF_STDLIB)
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith(".py") and os.path.isfile(path):  # not where a link leads nowhere
                below = os.path.relpath(path, root).replace(os.sep, "/")
                files.append(SourceFile(url=path, name=below, size=os.path.getsize(path)))
    if not files:
        raise DataError(
            f"{root}: this interpreter keeps no sources of its standard library; "
            "use the source text, jsonl or parquet with a path"
        )
    return tuple(sorted(files, key=lambda file: file.name))


def _files_at(path: str, source: str) -> list[SourceFile]:
    """Non-empty files that one given path stands for, sorted by name.

    Raises:
        DataError: there are none, or the storage refuses.
    """
    if not path.strip():
        raise DataError("an empty path; give a file, a folder or a pattern")
    if "::" in path:
        raise DataError(f"{path}: chained URLs are not supported; unpack the archive and give the files")
    with reading(path):
        filesystem, inner, url_of = open_filesystem(path)
        root, infos = _infos_at(filesystem, inner, source)
    files = sorted(
        (
            SourceFile(url=url_of(info["name"]), name=_below(root, info["name"]), size=info.get("size"))
            for info in infos
        ),
        key=lambda file: file.name,
    )
    if not files:
        wanted = " or ".join(SUFFIXES.get(source, ("any file",)))
        raise DataError(
            f"{path}: holds nothing to read (looked for {wanted}); correct the path or the pattern"
        )
    if all(file.size == 0 for file in files):
        raise DataError(f"{path}: is empty; give files with text in them")
    return files


def open_filesystem(url: str) -> tuple[Any, str, Callable[[str], str]]:
    """fsspec's filesystem for ``url``, the path inside it, and how to write such a path as a URL."""
    import fsspec

    filesystem, inner = fsspec.core.url_to_fs(url)
    protocols = (filesystem.protocol,) if isinstance(filesystem.protocol, str) else filesystem.protocol
    return filesystem, inner, (str if "file" in protocols else filesystem.unstrip_protocol)


def _infos_at(filesystem: Any, path: str, source: str) -> tuple[str, list[dict[str, Any]]]:
    """The folder that names are relative to, and fsspec's description of each file.

    HTTP has no folders, and a ``?`` there begins a query, not a pattern.
    """
    parent = path.rpartition("/")[0]
    if path.startswith(("http://", "https://")):
        return parent, [filesystem.info(path)]
    if any(sign in path for sign in "*?[") and not filesystem.exists(path):
        fixed = path[: min(path.index(sign) for sign in "*?[" if sign in path)].rpartition("/")[0]
        found = filesystem.glob(path, detail=True).values()
        return fixed, [info for info in found if info["type"] == "file"]
    info = filesystem.info(path)
    if info["type"] != "directory":
        return parent, [info]
    suffixes = SUFFIXES.get(source, ("",))
    return path, [
        info
        for name, info in filesystem.find(path, detail=True).items()
        if name.endswith(suffixes) and not any(part[:1] in "._" for part in _below(path, name).split("/"))
    ]


def _below(root: str, path: str) -> str:
    return path.removeprefix(root).lstrip("/")
