"""How a list of arrays is cut into chunks, and which member owns which chunk. The same on every member."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Protocol

import numpy as np

CHUNK_BYTES = 4 << 20
"""What is sent, received and summed at once. Each costs some 0.2 ms of Python, a fifth of a core's time at
1 MB: of 128 MB between two members 1.7 GB/s came with 4 MB, 1.4 with 1 MB (2 cores)."""

TURNS = 8
"""Ranges of each owner, where they are chunks of the full size. By feel."""

ALIGNED_BYTES = 64
"""Arrays are cut at multiples of it, so at whole elements; JAX takes over arrays that begin at one."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """What an array is, without its values."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"


class Source(Protocol):
    """An array in host memory, or one on a device, which numpy fetches when it asks for the contents."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes ``begin`` to ``end`` of one array, which lie ``at`` bytes into a chunk."""

    array: int
    begin: int
    end: int
    at: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Neighbouring pieces that travel together."""

    index: int
    owner: str
    size_bytes: int
    pieces: tuple[Piece, ...]


def specs_of(arrays: Sequence[Source]) -> tuple[ArraySpec, ...]:
    return tuple(ArraySpec(array.shape, array.dtype) for array in arrays)


def fingerprint(specs: Sequence[ArraySpec], parts: Sequence[str]) -> int:
    """32 bits that tell apart what members mean to average."""
    return zlib.crc32(repr(([str(spec) for spec in specs], list(parts))).encode())


@lru_cache(maxsize=8)
def cut(specs: tuple[ArraySpec, ...], owners: tuple[str, ...]) -> tuple[Chunk, ...]:
    """The chunks of ``specs``. Owners take turns with ranges of neighbouring ones, which are equal but for
    ``ALIGNED_BYTES``: several, so that whoever sends the first arrays first has something for each."""
    total = sum(spec.size_bytes for spec in specs)
    owners = owners * min(max(total // (len(owners) * CHUNK_BYTES), 1), TURNS)
    share = -(-total // len(owners))
    chunks: list[Chunk] = []
    pieces: list[Piece] = []
    owner = size = position = 0

    def end_chunk() -> None:
        nonlocal pieces, size
        if pieces:
            chunks.append(Chunk(len(chunks), owners[owner], size, tuple(pieces)))
        pieces, size = [], 0

    for index, spec in enumerate(specs):
        begin = 0
        while begin < spec.size_bytes:
            room = CHUNK_BYTES - size
            if owner < len(owners) - 1:
                room = min(room, (owner + 1) * share - position)
            end = min(begin + max(room - room % ALIGNED_BYTES, ALIGNED_BYTES), spec.size_bytes)
            pieces.append(Piece(index, begin, end, size))
            size, position, begin = size + end - begin, position + end - begin, end
            range_ends = owner < len(owners) - 1 and position > (owner + 1) * share - ALIGNED_BYTES
            if range_ends or size > CHUNK_BYTES - ALIGNED_BYTES:
                end_chunk()
            while owner < len(owners) - 1 and position > (owner + 1) * share - ALIGNED_BYTES:
                owner += 1
    end_chunk()
    return tuple(chunks)


def as_bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of a contiguous array, not copied: an array of uint8 with one axis."""
    return array.reshape(-1).view(np.uint8)
