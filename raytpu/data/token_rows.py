"""Fixed-length rows cut from a token stream that lies in blocks in Ray's object store.

Packing is arithmetic, not a copy: row ``i`` is ``stream[i * L : i * L + L + 1]`` for sequence length ``L``,
the last token of a row being the first of the next, so that it is a target once and an input once. Where
blocks end does not matter, and no token can be lost or doubled.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raytpu.data.stream_state import RowsFingerprint
from raytpu.errors import DataError

# 1 GiB of zero-copy views: holds 500 million byte tokens. The store must keep what is viewed, so this also
# bounds what one process pins there.
CACHE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBlock:
    """A part of the stream: an array here, or one row of an Arrow table in Ray's object store."""

    token_count: int
    source: Any
    """``np.ndarray`` ``[token_count]``, or ``ray.ObjectRef`` of a table with a list column ``tokens``."""
    table_row: int | None = None
    """Row of the table; ``None`` for an array."""


class TokenRows:
    """Rows of ``sequence_length + 1`` tokens with random access; small to pickle, whatever its size.

    Sent through Ray, it keeps its blocks alive in every process that holds it, as long as the process that
    prepared them lives. Thread-safe.
    """

    def __init__(
        self,
        blocks: Sequence[TokenBlock],
        *,
        sequence_length: int,
        content: str,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        if sequence_length < 1:
            raise DataError(f"sequence_length must be at least 1, got {sequence_length}")
        self.blocks = tuple(block for block in blocks if block.token_count)
        self.sequence_length = sequence_length
        self.content = content
        self._cache_bytes = cache_bytes
        self._ends = np.cumsum([block.token_count for block in self.blocks], dtype=np.int64)
        self.token_count = int(self._ends[-1]) if self.blocks else 0
        self.row_count = max(0, (self.token_count - 1) // sequence_length)
        self._views: OrderedDict[int, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def from_tokens(cls, tokens: np.ndarray, *, sequence_length: int) -> TokenRows:
        """Rows over one array in memory, ``[tokens]`` of any integer type; needs no Ray."""
        from raytpu.data.content import Content

        if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
            raise DataError(
                f"tokens must be a 1-D array of integers, got {tokens.dtype} of shape {tokens.shape}"
            )
        block = TokenBlock(token_count=tokens.size, source=tokens)
        return cls((block,), sequence_length=sequence_length, content=str(Content.of([tokens])))

    @property
    def fingerprint(self) -> RowsFingerprint:
        return RowsFingerprint(
            row_count=self.row_count, sequence_length=self.sequence_length, content=self.content
        )

    @property
    def cached_bytes(self) -> int:
        """Bytes of the blocks that this process holds views of."""
        return sum(view.nbytes for view in self._views.values())

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """The rows at ``indices``: int32 ``[len(indices), sequence_length + 1]``, a fresh array.

        Fetches the blocks that are not held yet, all at once.

        Raises:
            IndexError: an index outside ``[0, row_count)``.
        """
        indices = np.asarray(indices, dtype=np.int64)
        if indices.size and (indices.min() < 0 or indices.max() >= self.row_count):
            raise IndexError(f"rows {indices.min()} to {indices.max()} asked of {self.row_count}")
        width = self.sequence_length + 1
        out = np.empty((indices.size, width), dtype=np.int32)
        starts = indices * self.sequence_length
        first = np.searchsorted(self._ends, starts, side="right")
        last = np.searchsorted(self._ends, starts + self.sequence_length, side="right")
        views = self._fetch(_spanned(first, last))
        for number, view in views.items():
            offset = self._ends[number] - self.blocks[number].token_count
            inside = np.flatnonzero((first == number) & (last == number))
            if inside.size:
                windows = np.lib.stride_tricks.sliding_window_view(view, width)
                out[inside] = windows[starts[inside] - offset]
            for row in np.flatnonzero((first != last) & (first <= number) & (number <= last)):
                begin = max(starts[row], offset)
                end = min(starts[row] + width, self._ends[number])
                out[row, begin - starts[row] : end - starts[row]] = view[begin - offset : end - offset]
        return out

    def _fetch(self, numbers: list[int]) -> dict[int, np.ndarray]:
        """Views of these blocks; the least recently used ones are let go above ``cache_bytes``."""
        with self._lock:
            missing = [number for number in numbers if number not in self._views]
            self._views.update(
                zip(missing, _views_of([self.blocks[number] for number in missing]), strict=True)
            )
            for number in numbers:
                self._views.move_to_end(number)
            wanted = {number: self._views[number] for number in numbers}
            held = self.cached_bytes
            while held > self._cache_bytes and len(self._views) > 1:
                held -= self._views.popitem(last=False)[1].nbytes
            return wanted

    def __getstate__(self) -> dict[str, Any]:
        return {
            "blocks": self.blocks,
            "sequence_length": self.sequence_length,
            "content": self.content,
            "cache_bytes": self._cache_bytes,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __repr__(self) -> str:
        return (
            f"TokenRows(row_count={self.row_count}, sequence_length={self.sequence_length}, "
            f"blocks={len(self.blocks)}, content={self.content!r})"
        )


def _spanned(first: np.ndarray, last: np.ndarray) -> list[int]:
    """Sorted numbers of all blocks from ``first`` to ``last`` of any row."""
    numbers = set(np.unique(first).tolist()) | set(np.unique(last).tolist())
    for begin, end in zip(first[last - first > 1], last[last - first > 1], strict=True):
        numbers.update(range(begin + 1, end))
    return sorted(numbers)


def _views_of(blocks: Sequence[TokenBlock]) -> list[np.ndarray]:
    """One read-only array per block, without a copy; blocks in the object store are fetched together."""
    refs = [block.source for block in blocks if block.table_row is not None]
    if not refs:
        return [block.source for block in blocks]
    import ray

    tables = iter(ray.get(refs))
    return [
        block.source if block.table_row is None else tokens_in(next(tables), block.table_row)
        for block in blocks
    ]


def tokens_in(table: Any, row: int) -> np.ndarray:
    """Tokens of one row of a block's Arrow table, as a view."""
    tokens: np.ndarray = table["tokens"][row].values.to_numpy(zero_copy_only=True)
    return tokens
