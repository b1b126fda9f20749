"""Memory for results that is not returned to the system between steps."""

from __future__ import annotations

import mmap
import weakref
from collections import deque

import numpy as np

SPARE_BLOCKS = 2
"""One result is usually alive while the next is made."""


class ResultMemory:
    """Gives blocks of bytes, each of which is used by one result at a time.

    A block is given again only when no array refers to it any more: at the moment when numpy would have freed
    it, and no sooner, also when JAX has taken an array over without a copy. What is saved is the system's
    clearing of fresh pages, which took as long as a quarter of the whole average (128 MB: a copy into fresh
    memory ran at 2.5 GB/s, into used memory at 8.9).
    """

    def __init__(self) -> None:
        self._spare: deque[mmap.mmap] = deque(maxlen=SPARE_BLOCKS)

    def take(self, size_bytes: int) -> np.ndarray:
        """An array of at least ``size_bytes`` bytes of arbitrary value, which begins at a page."""
        size_bytes = max(-(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE, mmap.PAGESIZE)
        block = self._block(size_bytes)
        array = np.frombuffer(block, np.uint8)
        # A deque is appended to in one step: this is called in whichever thread lets the last array go.
        weakref.finalize(array, self._spare.append, block).atexit = False
        return array

    def _block(self, size_bytes: int) -> mmap.mmap:
        while self._spare:
            block = self._spare.popleft()
            if len(block) == size_bytes:
                return block
        block = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        block.madvise(mmap.MADV_HUGEPAGE)
        return block
