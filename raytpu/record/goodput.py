"""Where the wall time of a run went: every second of it in exactly one bucket.

Events tell when something ended and how long it took. Each becomes an interval on one time line, from the
start of the run to its end (or to now), and where intervals overlap the more specific one counts: a
compilation inside the first step is compilation, not step. What no event explains falls to what surrounds
it. So the buckets sum to the wall time, whatever the events say.

Steps are collective, so of each step one host's stands for all: process 0's. Waiting for data stalls all
hosts as long as the last of them waits, so of each step the longest wait counts.
"""

from __future__ import annotations

import heapq
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from raytpu.record.event_reading import Recorded
from raytpu.record.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointRestored,
    CheckpointSaved,
    Evaluated,
    HostReady,
    PhaseTimed,
    ProgramCompiled,
    RunEnded,
    RunStarted,
    StepFinished,
)
from raytpu.record.writer_name import name_order


class Bucket(StrEnum):
    """What a second of a run was spent on."""

    STEP = "step"
    """Productive: steps whose result the run kept, without their wait for data."""
    DATA_WAIT = "data wait"
    CHECKPOINT = "checkpoint"
    """The loop stood still for a save."""
    EVALUATION = "evaluation"
    COMPILE = "compile"
    HOLD = "hold"
    """Waiting for slices."""
    STARTUP = "start-up"
    """Hosts, imports, JAX, data preparation: up to the first step of each attempt."""
    RESTORE = "restore"
    LOST = "lost work"
    """Steps made again later, because no durable checkpoint was newer."""
    STOPPING = "stopping"
    """From the last step of an attempt to its end: noticing a loss, the last save, taking down."""
    OTHER = "other"
    """Between steps, explained by no event."""
    IDLE = "idle"
    """Between attempts of one driver."""
    AWAY = "no driver"
    """Between two drivers: the run waited to be started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """The split of a run's wall time."""

    wall_s: float
    seconds: dict[Bucket, float]
    """Every bucket, in the order of ``Bucket``; they sum to ``wall_s``."""

    @property
    def fraction(self) -> float:
        """Productive step time over wall time; 0 for a run without wall time."""
        return self.seconds[Bucket.STEP] / self.wall_s if self.wall_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One execution of one step, by the host that stands for all."""

    end_s: float
    attempt: int | None
    event: StepFinished
    data_wait_s: float
    """The longest of all hosts."""
    kept: bool
    """False: a later attempt began at this step or before it, so its result was thrown away."""


def split_wall_time(records: Sequence[Recorded], end_s: float | None = None) -> Goodput:
    """Split the time from the first event to ``end_s``.

    Args:
        records: events of all writers and attempts, as ``read_events`` gives them.
        end_s: now, for a run that is alive; ``None`` for the last event.
    """
    seconds = dict.fromkeys(Bucket, 0.0)
    if not records:
        return Goodput(wall_s=0.0, seconds=seconds)
    begin = min(recorded.time_s for recorded in records)
    end = max(recorded.time_s for recorded in records) if end_s is None else max(begin, end_s)
    intervals = [_Interval(begin, end, 0, Bucket.AWAY), *_intervals(records, end)]
    for interval, shown_s in _paint(intervals, begin, end):
        waited_s = min(shown_s, interval.data_wait_s)
        seconds[Bucket.DATA_WAIT] += waited_s
        seconds[interval.bucket] += shown_s - waited_s
    return Goodput(wall_s=end - begin, seconds=seconds)


def steps_of(records: Iterable[Recorded]) -> list[Step]:
    """All executions of steps in the order in which they ended, each by one host of its attempt."""
    records = list(records)
    rank = _ranks(records)
    waits: dict[tuple[int | None, int], float] = defaultdict(float)
    speaking: dict[tuple[int | None, int], Recorded] = {}
    for recorded in records:
        event = recorded.event
        if isinstance(event, StepFinished):
            key = (recorded.attempt, event.step)
            waits[key] = max(waits[key], event.data_wait_s)
            best = speaking.get(key)
            if best is None or rank[recorded.attempt, recorded.writer] <= rank[best.attempt, best.writer]:
                speaking[key] = recorded
    own = sorted(speaking.values(), key=lambda recorded: recorded.time_s)
    kept_below: float = float("inf")
    steps: list[Step] = []
    for recorded in reversed(own):
        event = recorded.event
        assert isinstance(event, StepFinished)
        wait_s = min(event.seconds, waits[recorded.attempt, event.step])
        step = Step(
            end_s=recorded.time_s,
            attempt=recorded.attempt,
            event=event,
            data_wait_s=wait_s,
            kept=event.step < kept_below,
        )
        steps.append(step)
        kept_below = min(kept_below, event.step)
    return steps[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPace:
    """How fast one host was, to find the one that all others wait for."""

    host: str
    step_s: float
    """Median."""
    data_wait_s: float
    """Median."""


def host_paces(records: Iterable[Recorded], attempt: int | None) -> list[HostPace]:
    """Median step time of each host in an attempt, the slowest first."""
    steps: dict[str, list[StepFinished]] = defaultdict(list)
    for recorded in records:
        if isinstance(recorded.event, StepFinished) and recorded.attempt == attempt:
            steps[recorded.writer].append(recorded.event)
    paces = [
        HostPace(
            host=host,
            step_s=statistics.median(event.seconds for event in events),
            data_wait_s=statistics.median(event.data_wait_s for event in events),
        )
        for host, events in steps.items()
    ]
    return sorted(paces, key=lambda pace: (-pace.step_s, name_order(pace.host)))


@dataclass(frozen=True, slots=True)
class _Interval:
    begin_s: float
    end_s: float
    rank: int
    """The higher one counts where two overlap."""
    bucket: Bucket
    data_wait_s: float = 0.0


# Ranks: surroundings below, then what fills them, the most specific on top.
_DRIVER, _BEFORE_ATTEMPTS, _ATTEMPT, _STOPPING, _PHASE, _STEP, _PAUSE, _COMPILE = range(1, 9)


def _intervals(records: Sequence[Recorded], end_s: float) -> Iterator[_Interval]:
    steps = steps_of(records)
    yield from _surroundings(records, steps, end_s)
    for step in steps:
        bucket, wait_s = (Bucket.STEP, step.data_wait_s) if step.kept else (Bucket.LOST, 0.0)
        yield _Interval(step.end_s - step.event.seconds, step.end_s, _STEP, bucket, wait_s)
    for recorded in records:
        end, event = recorded.time_s, recorded.event
        match event:
            case PhaseTimed():
                yield _Interval(end - event.seconds, end, _PHASE, _bucket_of_phase(event.name))
            case CheckpointRestored():
                yield _Interval(end - event.seconds, end, _PHASE, Bucket.RESTORE)
            case CheckpointSaved():
                yield _Interval(end - event.blocked_s, end, _PAUSE, Bucket.CHECKPOINT)
            case Evaluated():
                yield _Interval(end - event.seconds, end, _PAUSE, Bucket.EVALUATION)
            case ProgramCompiled():
                yield _Interval(end - event.seconds, end, _COMPILE, Bucket.COMPILE)


def _bucket_of_phase(name: str) -> Bucket:
    if name.startswith("hold"):
        return Bucket.HOLD
    return Bucket.RESTORE if name.startswith("restore") else Bucket.STARTUP


def _surroundings(records: Sequence[Recorded], steps: Sequence[Step], end_s: float) -> Iterator[_Interval]:
    """Where a driver was there, and within that attempts: before, during and after their steps."""
    for begin, end, events in _driver_times(records, end_s):
        yield _Interval(begin, end, _DRIVER, Bucket.IDLE)
        starts = [r.time_s for r in events if isinstance(r.event, AttemptStarted)]
        yield _Interval(begin, min(starts, default=end), _BEFORE_ATTEMPTS, Bucket.STARTUP)
        for attempt, attempt_begin, attempt_end in _attempt_times(events, end):
            own = [step for step in steps if step.attempt == attempt and attempt_begin <= step.end_s <= end]
            first = min((step.end_s - step.event.seconds for step in own), default=attempt_end)
            last = max((step.end_s for step in own), default=attempt_end)
            yield _Interval(attempt_begin, attempt_end, _ATTEMPT, Bucket.OTHER)
            yield _Interval(attempt_begin, min(first, attempt_end), _STOPPING, Bucket.STARTUP)
            # Without its end, an attempt is still at a step, or died in it.
            ended = any(isinstance(r.event, AttemptEnded) and r.time_s == attempt_end for r in events)
            if own and ended:
                yield _Interval(last, attempt_end, _STOPPING, Bucket.STOPPING)


def _driver_times(
    records: Sequence[Recorded], end_s: float
) -> Iterator[tuple[float, float, Sequence[Recorded]]]:
    """Begin, end and events of each driver. One that died ends with the last event of its time."""
    begins = [at for at, r in enumerate(records) if isinstance(r.event, RunStarted)] or [0]
    begins[0] = 0
    for begin, after in zip(begins, [*begins[1:], len(records)], strict=True):
        events = records[begin:after]
        ends = [r.time_s for r in events if isinstance(r.event, RunEnded)]
        if ends:
            end = ends[-1]
        elif after == len(records):
            end = end_s
        else:
            end = max(r.time_s for r in events)
        yield events[0].time_s, end, events


def _attempt_times(events: Sequence[Recorded], end_s: float) -> Iterator[tuple[int, float, float]]:
    """Number, begin and end of each attempt of one driver."""
    attempt: int | None = None
    begin = end_s
    for recorded in events:
        if isinstance(recorded.event, AttemptStarted):
            if attempt is not None:
                yield attempt, begin, recorded.time_s
            attempt, begin = recorded.event.attempt, recorded.time_s
        elif isinstance(recorded.event, AttemptEnded) and attempt is not None:
            yield attempt, begin, recorded.time_s
            attempt = None
    if attempt is not None:
        yield attempt, begin, end_s


def _ranks(records: Iterable[Recorded]) -> dict[tuple[int | None, str], tuple[float, Any]]:
    """Who speaks for all of an attempt, by attempt and host: the lower rank does, of those that made a step.

    Process 0 in lockstep; of replicas, each of which has a process 0, the first by name.
    """
    ranks: dict[tuple[int | None, str], tuple[float, Any]] = {}
    for recorded in records:
        if isinstance(recorded.event, HostReady):
            host, index = recorded.event.host, float(recorded.event.process_index)
            ranks[recorded.attempt, host] = (index, name_order(host))
        elif isinstance(recorded.event, StepFinished):
            ranks.setdefault((recorded.attempt, recorded.writer), (float("inf"), name_order(recorded.writer)))
    return ranks


def _paint(intervals: Iterable[_Interval], begin_s: float, end_s: float) -> Iterator[tuple[_Interval, float]]:
    """How long each interval is seen between ``begin_s`` and ``end_s``, in pieces.

    Of those that overlap the one with the highest rank is seen; of equals the one that began first.
    """
    clipped = (
        (max(begin_s, interval.begin_s), min(end_s, interval.end_s), interval) for interval in intervals
    )
    waiting = sorted((entry for entry in clipped if entry[0] < entry[1]), key=lambda entry: entry[0])
    active: list[tuple[int, float, int, float, _Interval]] = []
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
