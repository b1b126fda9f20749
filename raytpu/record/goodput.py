"""Where the wall time of a run went: every second of it in exactly one bucket.

Events tell when something ended and how long it took. Each becomes an interval on one time line, from the
start of the run to its end (or to now), and where intervals overlap the more specific one counts: a
compilation inside the first step is compilation, not step. What no event explains falls to what surrounds
it. So the buckets sum to the wall time, whatever the events say.

Steps are collective, so of each step one host's stands for all: process 0's. Waiting for data stalls all
hosts as long as the last of them waits, so of each step the longest wait counts.
"""

from __future__ import annotations

import bisect
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from raytpu.record.event_reading import Recorded
from raytpu.record.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointDurable,
    CheckpointRestored,
    CheckpointSaved,
    CheckpointVerified,
    Evaluated,
    HostReady,
    HostsStuck,
    PhaseTimed,
    ProgramCompiled,
    ReplicaLost,
    RunEnded,
    RunStarted,
    StepFinished,
)
from raytpu.record.time_line import Interval, paint
from raytpu.record.writer_name import name_order


class Bucket(StrEnum):
    """What a second of a run was spent on."""

    STEP = "step"
    """Productive: steps whose result the run kept, without their wait for data."""
    DATA_WAIT = "data wait"
    CHECKPOINT = "checkpoint stall"
    """The loop stood still for a save, or the run for the last one."""
    EVALUATION = "evaluation"
    COMPILE = "compile"
    STARTUP = "start-up"
    """Hosts, imports, JAX, data preparation: up to the first step of a driver, while nothing was lost."""
    RESTORE = "restore"
    LOST = "lost work"
    """Steps made again later, because no durable checkpoint was newer."""
    DETECTION = "detection"
    """From the last step before a loss or a failure until it was known. The step under way is in it."""
    REPLACEMENT = "re-placement"
    """From then to the next step: taking down, waiting for slices, hosts, imports, JAX."""
    IDLE = "idle"
    """No driver, or in the queue for the first slices, or taking down; and what no event explains."""


BADPUT_TYPES: Mapping[Bucket, str | None] = {
    Bucket.STEP: None,
    Bucket.DATA_WAIT: "DATA_LOADING_SYNC",
    Bucket.CHECKPOINT: "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    Bucket.EVALUATION: "CUSTOM_BADPUT_EVENTS",
    Bucket.COMPILE: "PROGRAM_STARTUP",
    Bucket.STARTUP: "TPU_INITIALIZATION",  # and TRAINING_PREP: hosts prepare both at once
    Bucket.RESTORE: "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
    Bucket.LOST: "WASTED_PROGRESS_FROM_DISRUPTION",
    Bucket.DETECTION: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    Bucket.REPLACEMENT: "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    Bucket.IDLE: "OTHER",
}
"""What ml-goodput-measurement calls each bucket: ``BadputType`` in its ``src/goodput_utils.py``
(https://github.com/AI-Hypercomputer/ml-goodput-measurement); ``None`` is goodput there as well. Its
``DATA_LOADING_ASYNC`` costs no wall time."""

PEACEFUL_ENDINGS = ("completed", "stopped")
"""Of an attempt that nothing broke; see ``plan.EndingKind``."""


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

    @property
    def badput_s(self) -> dict[str, float]:
        """Seconds by the name that ml-goodput-measurement gives them, without the productive ones."""
        seconds: dict[str, float] = defaultdict(float)
        for bucket, spent_s in self.seconds.items():
            if (name := BADPUT_TYPES[bucket]) is not None:
                seconds[name] += spent_s
        return dict(seconds)


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
    intervals = [Interval(begin, end, 0, Bucket.IDLE), *_intervals(records, end)]
    waits: dict[int, float] = {}
    for interval, shown_s in paint(intervals, begin, end):
        left_s = waits.get(id(interval), interval.data_wait_s)
        waited_s = min(shown_s, left_s)
        waits[id(interval)] = left_s - waited_s
        seconds[Bucket.DATA_WAIT] += waited_s
        assert isinstance(interval.bucket, Bucket)
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


# Ranks: surroundings below, then what fills them, the most specific on top.
_DRIVER, _BEFORE_ATTEMPTS, _ATTEMPT, _STOPPING, _PHASE, _STEP, _PAUSE, _COMPILE = range(1, 9)


def _intervals(records: Sequence[Recorded], end_s: float) -> Iterator[Interval]:
    steps = steps_of(records)
    yield from _surroundings(records, steps, end_s)
    yield from _step_intervals(steps)
    yield from _detections_in_steps(records, steps)
    first_steps = _first_steps(records)
    broken = False
    for recorded in records:
        end, event = recorded.time_s, recorded.event
        early = not _takes_part(recorded, first_steps)
        match event:
            case RunStarted():
                broken = False
            case AttemptEnded():
                broken = broken or event.ending not in PEACEFUL_ENDINGS
            case ReplicaLost():
                broken = True
            case PhaseTimed():
                yield Interval(end - event.seconds, end, _PHASE, _bucket_of_phase(event.name, broken))
            case CheckpointRestored():
                yield Interval(end - event.seconds, end, _PHASE, Bucket.RESTORE)
            case CheckpointSaved():
                yield Interval(end - event.blocked_s, end, _PAUSE, Bucket.CHECKPOINT)
            case Evaluated():
                yield Interval(end - event.seconds, end, _PAUSE, Bucket.EVALUATION)
            case ProgramCompiled():
                yield Interval(end - event.seconds, end, _PHASE if early else _COMPILE, Bucket.COMPILE)


def _bucket_of_phase(name: str, broken: bool) -> Bucket:
    if name.startswith("restore"):
        return Bucket.RESTORE
    if broken:
        return Bucket.REPLACEMENT
    return Bucket.IDLE if name.startswith("hold") else Bucket.STARTUP


def _step_intervals(steps: Sequence[Step]) -> Iterator[Interval]:
    """Each from the end of the step before, where that is known: what happened in between was a pause, has
    events of its own, and is not in the seconds of the step."""
    before: Step | None = None
    for step in steps:
        begin = step.end_s - step.event.seconds
        if before is not None and (before.attempt, before.event.step + 1) == (step.attempt, step.event.step):
            begin = min(begin, before.end_s)
        bucket, wait_s = (Bucket.STEP, step.data_wait_s) if step.kept else (Bucket.LOST, 0.0)
        yield Interval(begin, step.end_s, _STEP, bucket, wait_s)
        before = step


def _detections_in_steps(records: Sequence[Recorded], steps: Sequence[Step]) -> Iterator[Interval]:
    """Replicas outlive a loss within a step: what it had taken beyond a usual one when the loss was known."""
    if not steps:
        return
    usual_s = statistics.median(step.event.seconds for step in steps)
    ends = sorted(step.end_s for step in steps)
    for recorded in records:
        if isinstance(recorded.event, ReplicaLost):
            at = bisect.bisect_left(ends, recorded.time_s)
            if 0 < at < len(ends):
                yield Interval(ends[at - 1] + usual_s, recorded.time_s, _PAUSE, Bucket.DETECTION)


def _first_steps(records: Iterable[Recorded]) -> dict[tuple[int | None, str], float]:
    """When each host, and under the name "" any host, finished its first step of each attempt."""
    first: dict[tuple[int | None, str], float] = {}
    for recorded in records:
        if isinstance(recorded.event, StepFinished):
            for name in (recorded.writer, ""):
                key = (recorded.attempt, name)
                first[key] = min(first.get(key, recorded.time_s), recorded.time_s)
    return first


def _takes_part(recorded: Recorded, first: Mapping[tuple[int | None, str], float]) -> bool:
    """Whether others wait for this host: a replica that joins compiles while they make their steps."""
    others_s = first.get((recorded.attempt, ""), float("inf"))
    own_s = first.get((recorded.attempt, recorded.writer), float("inf"))
    return recorded.time_s <= others_s or own_s <= recorded.time_s


def _surroundings(records: Sequence[Recorded], steps: Sequence[Step], end_s: float) -> Iterator[Interval]:
    """Where a driver was there, and within that attempts: before, during and after their steps."""
    for begin, end, events in _driver_times(records, end_s):
        yield Interval(begin, end, _DRIVER, Bucket.IDLE)
        starts = [r.time_s for r in events if isinstance(r.event, AttemptStarted)]
        yield Interval(begin, min(starts, default=end), _BEFORE_ATTEMPTS, Bucket.STARTUP)
        broken_s: float | None = None
        for attempt, attempt_begin, attempt_end in _attempt_times(events, end):
            own = [step for step in steps if step.attempt == attempt and attempt_begin <= step.end_s <= end]
            first = min((step.end_s - step.event.seconds for step in own), default=attempt_end)
            last = max((step.end_s for step in own), default=attempt_end)
            if broken_s is not None:
                yield Interval(broken_s, attempt_begin, _BEFORE_ATTEMPTS, Bucket.REPLACEMENT)
            bucket = Bucket.STARTUP if broken_s is None else Bucket.REPLACEMENT
            yield Interval(attempt_begin, attempt_end, _ATTEMPT, Bucket.IDLE)
            yield Interval(attempt_begin, min(first, attempt_end), _STOPPING, bucket)
            # Without its end, an attempt is still at a step, or died in it.
            ending = _ending_at(events, attempt_end)
            if ending is not None and ending.ending not in PEACEFUL_ENDINGS:
                broken_s = attempt_end
            if own and ending is not None:
                yield from _after_last_step(events, last, attempt_end, ending)


def _ending_at(events: Iterable[Recorded], at_s: float) -> AttemptEnded | None:
    for recorded in events:
        if isinstance(recorded.event, AttemptEnded) and recorded.time_s == at_s:
            return recorded.event
    return None


def _after_last_step(
    events: Sequence[Recorded], last_s: float, end_s: float, ending: AttemptEnded
) -> Iterator[Interval]:
    """How a failure came to be known, or how the last save became durable; then taking down."""
    within = [recorded for recorded in events if last_s <= recorded.time_s <= end_s]
    if ending.ending in PEACEFUL_ENDINGS:
        saved = [r.time_s for r in within if isinstance(r.event, CheckpointDurable | CheckpointVerified)]
        yield Interval(last_s, max(saved, default=last_s), _STOPPING, Bucket.CHECKPOINT)
        return
    known_s = min((r.time_s for r in within if isinstance(r.event, HostsStuck)), default=end_s)
    yield Interval(last_s, known_s, _STOPPING, Bucket.DETECTION)
    yield Interval(known_s, end_s, _STOPPING, Bucket.REPLACEMENT)


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
