"""The mean over parts, summed in the order of parts whoever delivers them and whenever they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from raytpu.errors import SpecError
from raytpu.train.replicas.array_layout import ALIGNED_BYTES, ArraySpec, Chunk, Source, as_bytes
from raytpu.train.replicas.result_memory import ResultMemory

SUM_DTYPES: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.float64): np.dtype(np.float64),
    np.dtype(np.float32): np.dtype(np.float32),
    np.dtype(np.float16): np.dtype(np.float32),
    np.dtype(ml_dtypes.bfloat16): np.dtype(np.float32),
}

BLOCK_BYTES = 256 << 10
"""What all operations pass over before the next bytes are looked at, so that it stays in a core's cache
(2 MB) with what is added to it. Half of it costs a fifth more time of the core, in calls."""


class OrderedMean:
    """Result arrays of one round, and the sums that lead to them.

    ``((p0 + p1) + p2 ...) / P`` for each element, in float32, or float64 for float64; rounded to the array's
    dtype once, at the end.
    """

    def __init__(
        self,
        specs: Sequence[ArraySpec],
        parts: int,
        own: Mapping[int, Sequence[Source]],
        memory: ResultMemory,
    ) -> None:
        """``own`` has the arrays of each part that is computed here. Each is fetched when it is first needed.

        Raises:
            SpecError: a dtype that cannot be averaged.
        """
        if unknown := sorted({spec.dtype.name for spec in specs if spec.dtype not in SUM_DTYPES}):
            known = ", ".join(dtype.name for dtype in SUM_DTYPES)
            raise SpecError(f"gradients of dtype {', '.join(unknown)} cannot be averaged; use one of {known}")
        self._parts, self._specs = parts, specs
        self._own = own
        self._fetched: dict[tuple[int, int], np.ndarray] = {}
        self.foreign = tuple(part for part in range(parts) if part not in own)
        """Parts that come from elsewhere, in order."""
        self._sums: dict[tuple[int, int], np.ndarray] = {}
        sizes = [-(-spec.size_bytes // ALIGNED_BYTES) * ALIGNED_BYTES for spec in specs]
        block = memory.take(sum(sizes))
        begins = np.cumsum([0, *sizes])
        self._results = [
            block[begin : begin + spec.size_bytes] for begin, spec in zip(begins, specs, strict=False)
        ]

    def results(self) -> list[np.ndarray]:
        return [
            flat.view(spec.dtype).reshape(spec.shape)
            for flat, spec in zip(self._results, self._specs, strict=True)
        ]

    def result_bytes(self, chunk: Chunk) -> list[np.ndarray]:
        """Where the bytes of a chunk lie, or shall be put."""
        return [self._results[piece.array][piece.begin : piece.end] for piece in chunk.pieces]

    def own_bytes(self, part: int, chunk: Chunk) -> list[np.ndarray]:
        return [self._bytes_of(part, piece.array)[piece.begin : piece.end] for piece in chunk.pieces]

    def fits_result(self, part: int) -> bool:
        """Whether a foreign part may be put where the results of its chunk will be, and be added there: it is
        one of the first two of a sum. What is received is then written once, not copied from elsewhere."""
        return part == self.foreign[0] and part < 2

    def add(self, chunk: Chunk, part: int, received: np.ndarray | None) -> None:
        """Add a foreign part of a chunk, which must be the next in the order of ``foreign``, and the parts of
        our own that come next to it. After the last one the result of the chunk is complete.

        ``received`` is ``None`` for a part that lies where the results will be; see ``fits_result``."""
        first = part == self.foreign[0]
        last = part == self.foreign[-1]
        end = self._parts if last else self.foreign[self.foreign.index(part) + 1]
        self._add_run(chunk, range(0 if first else part, end), received)

    def add_own(self, chunk: Chunk) -> None:
        """Make the result of a chunk when there is no foreign part."""
        self._add_run(chunk, range(self._parts), None)

    def _bytes_of(self, part: int, array: int) -> np.ndarray:
        """Waits until the array is in host memory. Two threads may fetch the same; they get the same."""
        found = self._fetched.get((part, array))
        if found is None:
            found = as_bytes(np.asarray(self._own[part][array], order="C"))
            self._fetched[part, array] = found
        return found

    def _add_run(self, chunk: Chunk, run: range, received: np.ndarray | None) -> None:
        for number, piece in enumerate(chunk.pieces):
            dtype = self._specs[piece.array].dtype
            result = self._results[piece.array][piece.begin : piece.end].view(dtype)
            sources = [
                self._bytes_of(part, piece.array)[piece.begin : piece.end].view(dtype)
                if part in self._own
                else result
                if received is None
                else received[piece.at : piece.at + piece.end - piece.begin].view(dtype)
                for part in run
            ]
            sum_dtype = SUM_DTYPES[dtype]
            key = (chunk.index, number)
            total = result if dtype == sum_dtype else self._sums.pop(key, None)
            if total is None:
                total = np.empty(result.shape, sum_dtype)
            ends = run.stop == self._parts
            step = BLOCK_BYTES // sum_dtype.itemsize
            for begin in range(0, len(result), step):
                block = slice(begin, begin + step)
                _sum([source[block] for source in sources], total[block], fresh=run.start == 0)
                if ends:
                    _divide(total[block], self._parts)
                    if total is not result:
                        result[block] = total[block]
            if not ends and total is not result:
                self._sums[key] = total


def _sum(sources: list[np.ndarray], total: np.ndarray, *, fresh: bool) -> None:
    """Add ``sources`` to ``total`` one after another; ``fresh``: ``total`` has no value yet."""
    if total.dtype != sources[0].dtype:
        sources = [source.astype(total.dtype) for source in sources]
    if not fresh:
        np.add(total, sources[0], out=total)
    elif len(sources) == 1:
        np.copyto(total, sources[0])  # nothing to do when they are the same memory, and numpy sees that
    else:
        np.add(sources[0], sources[1], out=total)
    for source in sources[2 if fresh else 1 :]:
        np.add(total, source, out=total)


def _divide(total: np.ndarray, parts: int) -> None:
    if parts & (parts - 1) == 0:
        # The same bits for a power of two, and half the time of a division.
        np.multiply(total, total.dtype.type(1 / parts), out=total)
    else:
        np.divide(total, total.dtype.type(parts), out=total)
