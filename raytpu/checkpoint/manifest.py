"""What a durable checkpoint must hold: every file with its size and checksum, written after the commit.

``<step>/manifest.json`` makes a durable checkpoint a *good* one. Its checksums are of what was read back from
storage after Orbax had committed, so it vouches for the files as readers find them. A checkpoint without it
(of an older raytpu, or of a process that was killed between commit and manifest) is durable and unverified.

The checksum is CRC-32: it is to find accidents, not forgers. On a core with SHA extensions SHA-256 costs as
much (1.1 GiB/s each, measured), on one without it three times that.

Knows neither JAX nor Orbax: the driver and the command line verify too.
"""

from __future__ import annotations

import heapq
import json
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs

from raytpu.checkpoint.durable import COMMIT_MARKER, SET_ASIDE
from raytpu.errors import StorageError
from raytpu.record.storage import join_url, read_bytes, write_bytes

MANIFEST = "manifest.json"
FORMAT = 1

READERS = 4
"""Files that one process reads at once. By feel: checksums of four threads keep up with 4 GiB/s."""
CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What a file must be."""

    size: int
    """Bytes."""
    crc32: str
    """Eight hexadecimal digits."""


class ManifestDamaged(ValueError):
    """A manifest is there and cannot be understood. Stays inside this package."""


def stored_sizes(where: str) -> dict[str, int]:
    """Bytes of every file of the checkpoint in ``where``, by its path inside it, sorted; no manifest.

    Raises:
        StorageError: the storage does not answer.
    """
    try:
        storage, root = url_to_fs(where)
        storage.invalidate_cache()
        found = storage.find(root, detail=True)
    except (OSError, ValueError, ImportError) as error:
        raise StorageError(f"{where}: cannot list its files: {error}") from error
    prefix = root.rstrip("/") + "/"
    sizes = {str(path).removeprefix(prefix): int(entry["size"] or 0) for path, entry in found.items()}
    return {name: sizes[name] for name in sorted(sizes) if name not in (MANIFEST, SET_ASIDE)}


def share_out(sizes: Mapping[str, int], parts: int) -> list[list[str]]:
    """Names of files in ``parts`` shares of about as many bytes; the same for the same arguments."""
    shares: list[list[str]] = [[] for _ in range(parts)]
    loads = [(0, part) for part in range(parts)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        load, part = heapq.heappop(loads)
        shares[part].append(name)
        heapq.heappush(loads, (load + sizes[name], part))
    return shares


def read_facts(where: str, names: Iterable[str]) -> dict[str, FileFacts | str]:
    """Read files of a checkpoint to their end: what each is, or why it cannot be read.

    Raises:
        StorageError: the storage cannot be opened.
    """
    try:
        storage, root = url_to_fs(where)
    except (ValueError, ImportError) as error:
        raise StorageError(f"{where}: {error}") from error
    names = list(names)
    with ThreadPoolExecutor(READERS, thread_name_prefix="checksums") as readers:
        facts = readers.map(lambda name: _facts(storage, f"{root.rstrip('/')}/{name}"), names)
        return dict(zip(names, facts, strict=True))


def _facts(storage: AbstractFileSystem, path: str) -> FileFacts | str:
    size, checksum = 0, 0
    try:
        with storage.open(path, "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                size += len(chunk)
                checksum = zlib.crc32(chunk, checksum)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return FileFacts(size=size, crc32=f"{checksum:08x}")


def write_manifest(where: str, step: int, facts: Mapping[str, FileFacts]) -> None:
    """Vouch for a checkpoint. Replaces an earlier manifest in one step.

    Raises:
        StorageError: it cannot be written.
    """
    document = {
        "format": FORMAT,
        "step": step,
        "raytpu_version": version("raytpu"),
        "files": {name: {"size": each.size, "crc32": each.crc32} for name, each in sorted(facts.items())},
    }
    write_bytes(join_url(where, MANIFEST), json.dumps(document, indent=1).encode())


def read_manifest(where: str, step: int) -> dict[str, FileFacts] | None:
    """What the checkpoint must hold; ``None`` when nothing vouches for it.

    Raises:
        ManifestDamaged: there is a manifest, and it is none.
        StorageError: it is there and cannot be read.
    """
    data = read_bytes(join_url(where, MANIFEST))
    if data is None:
        return None
    try:
        document = json.loads(data)
        if document["format"] != FORMAT or document["step"] != step:
            raise ManifestDamaged(
                f"{MANIFEST} is of format {document['format']} and step {document['step']}, "
                f"expected format {FORMAT} and step {step}"
            )
        manifest = {
            str(name): FileFacts(size=int(facts["size"]), crc32=str(facts["crc32"]))
            for name, facts in document["files"].items()
        }
        if COMMIT_MARKER not in manifest:
            raise ManifestDamaged(f"{MANIFEST} does not name all files: {COMMIT_MARKER} is not among them")
        return manifest
    except ManifestDamaged:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestDamaged(f"{MANIFEST} cannot be understood: {type(error).__name__}: {error}") from error


def size_findings(manifest: Mapping[str, FileFacts], sizes: Mapping[str, int]) -> list[str]:
    """What is missing or of another size than the manifest says. Further files are ignored."""
    return [
        f"{name} is missing" if name not in sizes else f"{name} has {sizes[name]} bytes, not {facts.size}"
        for name, facts in manifest.items()
        if sizes.get(name) != facts.size
    ]


def checksum_findings(where: str, manifest: Mapping[str, FileFacts], names: Iterable[str]) -> list[str]:
    """Read ``names`` and say which are not what the manifest says.

    Raises:
        StorageError: the storage cannot be opened.
    """
    findings = []
    for name, found in read_facts(where, names).items():
        expected = manifest[name]
        if isinstance(found, str):
            findings.append(f"{name} {found}")
        elif found != expected:
            findings.append(
                f"{name} holds other bytes than were saved (CRC-32 {found.crc32}, not {expected.crc32})"
            )
    return findings
