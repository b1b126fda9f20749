"""Small files and appended lines on any storage: local paths directly, everything else through fsspec.

The one module that meets fsspec and its drivers. A location is a string: a plain path (``~`` is
expanded), ``file://``, ``gs://``, ``memory://`` or any other protocol that fsspec knows. Whatever goes
wrong raises ``StorageError`` with the location and the reason; "is not there" is an answer, not an error.

Local files bypass fsspec on purpose: importing it costs 60 ms that ``raytpu status`` need not pay, and
its local driver cannot append and flush a line in one system call.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import uuid
from collections.abc import Iterator
from typing import Any

from raytpu.errors import StorageError

# pip's name for what makes a protocol work, where raytpu has an extra for it.
_EXTRAS = {"gs": "raytpu[gcs]", "gcs": "raytpu[gcs]"}
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR)


def absolute_url(where: str | os.PathLike[str]) -> str:
    """``where`` in the one spelling that raytpu stores and compares.

    A local location becomes an absolute path without ``~`` and ``file://``; others keep their protocol and
    lose a trailing slash. Nothing is read.

    Raises:
        StorageError: ``where`` is empty.
    """
    text = os.fspath(where)
    if not text.strip():
        raise StorageError("a storage path is empty; give a folder, or a URL such as gs://bucket/folder")
    protocol, separator, rest = text.partition("://")
    if separator and protocol not in ("file", "local"):
        return f"{protocol}://{rest.strip('/') if protocol == 'memory' else rest.rstrip('/')}"
    return os.path.abspath(os.path.expanduser(rest if separator else text))


def join_url(url: str, *parts: str) -> str:
    """``url`` with path segments added below it."""
    base = url if url.endswith("://") else url.rstrip("/") + "/"
    return base + "/".join(parts)


def parent_url(url: str) -> str:
    """The folder that ``url`` lies in."""
    return url.rstrip("/").rpartition("/")[0] or "/"


def is_local(url: str) -> bool:
    """Whether ``url`` (as ``absolute_url`` spells it) is a path on this machine's file systems."""
    return "://" not in url


def read_bytes(url: str, start: int = 0, end: int | None = None) -> bytes | None:
    """The bytes ``[start, end)`` of a file, or ``None`` when there is no such file.

    Raises:
        StorageError: it is there and cannot be read.
    """
    with _translated("read", url):
        try:
            if is_local(url):
                with open(url, "rb") as file:
                    file.seek(start)
                    return file.read() if end is None else file.read(max(0, end - start))
            filesystem, path = _remote(url)
            whole = start == 0 and end is None
            return bytes(filesystem.cat_file(path, **({} if whole else {"start": start, "end": end})))
        except (FileNotFoundError, NotADirectoryError):
            return None


def write_bytes(url: str, data: bytes) -> None:
    """Replace a file in one step: a reader sees the old content or the new, never half.

    Raises:
        StorageError: it cannot be written.
    """
    with _translated("write", url):
        if not is_local(url):
            filesystem, path = _remote(url)
            filesystem.pipe_file(path, data)
            return
        os.makedirs(os.path.dirname(url), exist_ok=True)
        temporary = f"{url}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            with open(temporary, "wb") as file:
                file.write(data)
            os.replace(temporary, url)
        except OSError:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(temporary)
            raise


def delete_file(url: str) -> None:
    """Take a file away; one that is not there is not an error.

    Raises:
        StorageError: it is there and cannot be deleted.
    """
    with _translated("delete", url), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if is_local(url):
            os.unlink(url)
        else:
            filesystem, path = _remote(url)
            filesystem.rm_file(path)


def file_sizes(folder: str, suffix: str = "") -> dict[str, int]:
    """Bytes of each file directly in ``folder`` whose name ends in ``suffix``, sorted by name.

    Empty when there is no such folder.

    Raises:
        StorageError: the folder is there and cannot be listed.
    """
    with _translated("list", folder):
        if is_local(folder):
            with _scan(folder) as entries:
                found = {e.name: e.stat().st_size for e in entries if e.name.endswith(suffix) and e.is_file()}
        else:
            listed = _list_remote(folder)
            found = {
                name: size
                for name, (kind, size) in listed.items()
                if kind == "file" and name.endswith(suffix)
            }
    return dict(sorted(found.items()))


def folder_names(folder: str) -> list[str]:
    """Names of the folders directly in ``folder``, sorted; empty when there is no such folder.

    Raises:
        StorageError: the folder is there and cannot be listed.
    """
    with _translated("list", folder):
        if is_local(folder):
            with _scan(folder) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        return sorted(name for name, (kind, _) in _list_remote(folder).items() if kind == "directory")


def make_folder(folder: str) -> None:
    """Make a local folder and those above it; object stores have no folders and need none.

    Raises:
        StorageError: it cannot be made.
    """
    if is_local(folder):
        with _translated("make", folder):
            os.makedirs(folder, exist_ok=True)


def check_writable(folder: str) -> None:
    """Write and delete a probe where ``folder`` is or would be made. Nothing is left, not even the folder.

    Raises:
        StorageError: naming the folder and the reason.
    """
    where = folder
    if is_local(folder):
        while not os.path.lexists(where) and where != "/":
            where = os.path.dirname(where)
    inside = "" if where == folder else f" (nothing can be made in {where})"
    probe = join_url(where, f".raytpu-probe-{uuid.uuid4().hex[:12]}")
    with _translated("write to", f"{folder}{inside}"):
        if is_local(probe):
            with open(probe, "xb") as file:
                file.write(b"probe")
            os.unlink(probe)
        else:
            filesystem, path = _remote(probe)
            filesystem.pipe_file(path, b"probe")
            filesystem.rm_file(path)


@contextlib.contextmanager
def _scan(folder: str) -> Iterator[Iterator[os.DirEntry[str]]]:
    try:
        entries = os.scandir(folder)
    except OSError as error:
        if error.errno in _NOTHING_THERE and not os.path.isfile(folder):
            yield iter(())
            return
        raise
    with entries:
        yield entries


def _list_remote(folder: str) -> dict[str, tuple[str, int]]:
    """Name → (kind, bytes) of what lies directly in ``folder``."""
    filesystem, path = _remote(folder)
    filesystem.invalidate_cache()  # gcsfs keeps listings, and other processes write to the same folder
    try:
        entries = filesystem.ls(path, detail=True)
    except FileNotFoundError:
        return {}
    inside = [entry for entry in entries if entry["name"].rstrip("/") != path.rstrip("/")]
    return {e["name"].rstrip("/").rpartition("/")[2]: (e["type"], int(e["size"] or 0)) for e in inside}


def _remote(url: str) -> tuple[Any, str]:
    protocol = url.partition("://")[0]
    import fsspec

    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        install = f"pip install '{extra}'" if extra else str(error)
        raise StorageError(f"cannot open {url}: {protocol}:// needs another package: {install}") from error
    except ValueError as error:
        known = "a local path, file://, gs://, memory:// or another protocol of fsspec"
        raise StorageError(f"cannot open {url}: {error}; expected {known}") from error
    return filesystem, path


@contextlib.contextmanager
def _translated(action: str, url: str) -> Iterator[None]:
    try:
        yield
    except _storage_errors() as error:  # evaluated only when something was raised
        raise StorageError(f"cannot {action} {url}: {_reason(error)}") from error


def _storage_errors() -> tuple[type[Exception], ...]:
    """``OSError``, and what fsspec's drivers raise that is none, of the drivers that are loaded.

    Sources: gcsfs/retry.py, google/auth/exceptions.py, aiohttp/client_exceptions.py.
    """
    names = (
        ("gcsfs.retry", "HttpError"),
        ("gcsfs.retry", "ChecksumError"),
        ("google.auth.exceptions", "GoogleAuthError"),
        ("aiohttp.client_exceptions", "ClientError"),
    )
    loaded = (getattr(sys.modules[module], name) for module, name in names if module in sys.modules)
    return (OSError, *loaded)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"
