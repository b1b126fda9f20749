"""Intervals on one time line, of which the one with the highest rank is seen."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Interval:
    """What a stretch of time was spent on, unless something more specific was."""

    begin_s: float
    end_s: float
    rank: int
    """The higher one counts where two overlap."""
    bucket: StrEnum
    data_wait_s: float = 0.0
    """The part of it that was spent waiting for data."""


def paint(intervals: Iterable[Interval], begin_s: float, end_s: float) -> Iterator[tuple[Interval, float]]:
    """How long each interval is seen between ``begin_s`` and ``end_s``, in pieces.

    Of those that overlap the one with the highest rank is seen; of equals the one that began first.
    """
    clipped = (
        (max(begin_s, interval.begin_s), min(end_s, interval.end_s), interval) for interval in intervals
    )
    waiting = sorted((entry for entry in clipped if entry[0] < entry[1]), key=lambda entry: entry[0])
    active: list[tuple[int, float, int, float, Interval]] = []
    at, now = 0, begin_s
    while at < len(waiting) or active:
        if not active:
            now = waiting[at][0]
        while at < len(waiting) and waiting[at][0] <= now:
            begin, end, interval = waiting[at]
            heapq.heappush(active, (-interval.rank, begin, at, end, interval))
            at += 1
        _, _, _, end, interval = active[0]
        until = min(end, waiting[at][0]) if at < len(waiting) else end
        if until > now:
            yield interval, until - now
            now = until
        if end <= now:
            heapq.heappop(active)
