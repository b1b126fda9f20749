"""Files that grow: appended where the storage can append, in numbered segments where it cannot.

Both the event log and the host logs are such files. A growing file has a *stem*. On a local path it is
``<stem><suffix>``, appended and flushed with every call. An object store cannot append, so there it is
``<stem>.000001<suffix>``, ``<stem>.000002<suffix>``, …: lines gather in memory, the newest segment is
written again whole at each flush, and once it is large the next one is begun. A reader needs no more than
the sizes to find what is new, in both cases.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from raytpu.errors import StorageError
from raytpu.record.storage import file_sizes, is_local, join_url, make_folder, read_bytes, write_bytes

# Large enough that a week of flushes makes few objects, small enough to be written again every few seconds.
SEGMENT_BYTES = 1 << 20

# Seconds between flushes to an object store. By feel: what a lost machine may cost in record, against
# one request per host per flush (GCS takes one write per second to the same object).
FLUSH_INTERVAL_S = 3.0

_SEGMENT = re.compile(r"^(?P<stem>.+)\.(?P<number>\d{6})$")


class Appender(Protocol):
    """Takes whole lines. Not thread-safe: the owner has a lock."""

    needs_flush: bool
    """Whether lines stay in memory until ``flush``."""

    def append(self, lines: bytes) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


def open_appender(folder: str, stem: str, suffix: str) -> Appender:
    """The right way to append to ``stem`` in ``folder``.

    Raises:
        StorageError: the folder cannot be made or written.
    """
    if is_local(folder):
        return LocalAppender(folder, stem, suffix)
    return SegmentAppender(folder, stem, suffix)


class LocalAppender:
    """Appends with one system call per ``append``: a killed process loses nothing it appended."""

    needs_flush = False

    def __init__(self, folder: str, stem: str, suffix: str) -> None:
        make_folder(folder)
        self._path = join_url(folder, stem + suffix)
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            size = os.fstat(self._file).st_size
            # A predecessor that was killed in the middle of a line must not spoil our first one.
            self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}") from error

    def append(self, lines: bytes) -> None:
        data = b"\n" + lines if self._torn else lines
        try:
            written = os.write(self._file, data)
        except OSError as error:
            raise StorageError(f"cannot append to {self._path}: {error.strerror}") from error
        self._torn = written < len(data) and data[written - 1 : written] != b"\n"
        if written < len(data):
            raise StorageError(
                f"cannot append to {self._path}: only {written} of {len(data)} bytes were taken"
            )

    def flush(self) -> None:
        """Make what was appended outlive the machine, not only the process."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise StorageError(f"cannot flush {self._path}: {error.strerror}") from error

    def close(self) -> None:
        os.close(self._file)


class SegmentAppender:
    """Gathers lines in memory and writes the newest segment again at each flush."""

    needs_flush = True

    def __init__(self, folder: str, stem: str, suffix: str) -> None:
        self._folder, self._stem, self._suffix = folder, stem, suffix
        numbers = [number for name, number in _segments(folder, suffix) if name == stem]
        self._number = max(numbers, default=0) + 1
        self._lines = bytearray()
        self._written = 0

    def append(self, lines: bytes) -> None:
        self._lines += lines

    def flush(self) -> None:
        if len(self._lines) == self._written:
            return
        name = f"{self._stem}.{self._number:06d}{self._suffix}"
        write_bytes(join_url(self._folder, name), bytes(self._lines))
        self._written = len(self._lines)
        if self._written >= SEGMENT_BYTES:
            self._number += 1
            self._lines, self._written = bytearray(), 0

    def close(self) -> None:
        self.flush()


def _segments(folder: str, suffix: str) -> Iterator[tuple[str, int]]:
    for name in file_sizes(folder, suffix):
        match = _SEGMENT.match(name.removesuffix(suffix))
        if match is not None:
            yield match["stem"], int(match["number"])


@dataclass
class GrowingFiles:
    """Incremental reader of all growing files of one folder.

    ``poll`` costs one listing plus a read of what is new; a folder that is not there yet is empty.
    """

    folder: str
    suffix: str
    only: str | None = None
    """One stem; ``None`` for all."""
    _offsets: dict[str, int] = field(default_factory=dict)

    def poll(self) -> list[tuple[str, list[bytes]]]:
        """New whole lines per stem, without line ends, in the order in which they were written.

        A last line without its end stays for the next poll.

        Raises:
            StorageError: the folder or a file cannot be read.
        """
        found: dict[str, list[bytes]] = {}
        for name, size in self._sizes().items():
            start = self._offsets.get(name, 0)
            if size <= start:
                continue
            data = read_bytes(join_url(self.folder, name), start, size) or b""
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[name] = start + len(whole)
            if whole:
                found.setdefault(stem_of(name, self.suffix), []).extend(whole[:-1].split(b"\n"))
        return list(found.items())

    def skip_to_last(self, lines: int) -> None:
        """Let the next poll begin with the last ``lines`` lines of each file, without reading the rest."""
        for name, size in self._sizes().items():
            self._offsets[name] = _start_of_last(join_url(self.folder, name), size, lines)

    def _sizes(self) -> dict[str, int]:
        sizes = file_sizes(self.folder, self.suffix)
        return {name: size for name, size in sizes.items() if self.only in (None, stem_of(name, self.suffix))}


def stem_of(name: str, suffix: str) -> str:
    """``driver`` for both ``driver.jsonl`` and ``driver.000002.jsonl``."""
    bare = name.removesuffix(suffix)
    match = _SEGMENT.match(bare)
    return bare if match is None else match["stem"]


def _start_of_last(url: str, size: int, lines: int, block_bytes: int = 1 << 16) -> int:
    """Offset of the first of the last ``lines`` whole lines of a file of ``size`` bytes."""
    start, newlines = size, 0
    while start > 0:
        begin = max(0, start - block_bytes)
        block = read_bytes(url, begin, start) or b""
        # The newline that ends the last line is one more than the lines it separates.
        if newlines + block.count(b"\n") > lines:
            surplus = newlines + block.count(b"\n") - lines
            position = -1
            for _ in range(surplus):
                position = block.index(b"\n", position + 1)
            return begin + position + 1
        newlines += block.count(b"\n")
        start = begin
    return 0
