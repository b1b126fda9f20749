"""What the events of a run add up to: state, progress, speed, goodput, and what to do next."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from raytpu.record.event_reading import Recorded
from raytpu.record.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointDurable,
    CheckpointQuarantined,
    CheckpointRestored,
    CheckpointVerified,
    Damaged,
    Evaluated,
    Event,
    HostsStuck,
    PhaseTimed,
    PreemptionNoticed,
    ProgramCompiled,
    ReplicaLost,
    RunEnded,
    RunStarted,
    SampleWritten,
    StateChanged,
    Unknown,
)
from raytpu.record.goodput import Goodput, Step, split_wall_time, steps_of
from raytpu.record.stragglers import HostPace, Straggler, find_stragglers, host_paces

# Steps over which the present speed is the median. By feel: many enough for a calm number, few enough to
# show a change within a minute.
RECENT_STEPS = 50

_E = TypeVar("_E")

DRIVER_LOST = "driver lost"
DRIVER_SILENT = "driver silent"
NOT_STARTED = "not started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of the start-up of one attempt, on the host where it took longest."""

    name: str
    seconds: float
    writer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """All that a person or a program is told about a run."""

    run: str
    lineage: int
    state: str
    """``finished``, ``failed``, ``stopped``, ``driver lost``, ``driver silent``, ``not started``, or what
    a live driver does."""
    reason: str
    cluster: str
    endings: tuple[str, ...]
    """How each attempt that has ended did; ``driver lost`` where nobody wrote it down."""
    attempts: int
    lost_slices: tuple[str, ...]
    """In the order in which they were lost, over all attempts."""
    stuck: tuple[HostsStuck, ...]
    """How often the run made no step for longer than it may, over all attempts."""
    notices: tuple[PreemptionNoticed, ...]
    """Of hosts that were to go away, over all attempts."""
    last_step: int | None
    total_steps: int | None
    loss_first: float | None
    loss_last: float | None
    metrics: dict[str, float]
    """Of the last step."""
    tokens_per_s: float | None
    """Median over the last steps that were kept."""
    tokens_per_s_overall: float | None
    """Tokens of all steps that were kept, over the whole wall time."""
    step_s: float | None
    """Median over the last steps that were kept."""
    goodput: Goodput
    last_durable_step: int | None
    last_verified_step: int | None
    """Of those that are left: a damaged one that was put under quarantine is in neither."""
    quarantined: tuple[CheckpointQuarantined, ...]
    """Checkpoints that were found damaged, in the order in which they were found."""
    checkpoint_path: str
    """Of the last durable checkpoint, or the folder it is in."""
    phases: tuple[Phase, ...]
    """Of the last attempt, in the order in which they ended."""
    programs: tuple[ProgramCompiled, ...]
    """Compiled in the last attempt, by the slowest host each."""
    paces: tuple[HostPace, ...]
    """Hosts of the last attempt, the slowest first."""
    stragglers: tuple[Straggler, ...]
    """Those of them that keep the others waiting, the worst first."""
    evaluation: Evaluated | None
    sample: str
    damaged_lines: int
    unknown_events: int
    warnings: tuple[str, ...]
    """What has not failed, and should be looked at."""
    next_step: str
    """What the user can do now."""


def summarise(
    records: Sequence[Recorded],
    *,
    run: str = "",
    driver_alive: bool = False,
    silence: str = "",
    now_s: float | None = None,
) -> RunSummary:
    """Add the events of one lineage up.

    Args:
        records: as ``read_events`` gives them.
        run: its name, for as long as no event tells it.
        driver_alive: whether a driver has the run now; only it tells a run from one whose driver was killed.
        silence: that a living driver has been silent for too long, in words; empty when it has not.
        now_s: the present, for the wall time of a run that is alive; ``None``: the last event.
    """
    events = [recorded.event for recorded in records]
    started = _last(events, RunStarted) or RunStarted(run=run)
    state, reason = _state(events, driver_alive, silence)
    attempt = max((event.attempt for event in events if isinstance(event, AttemptStarted)), default=None)
    kept = [step for step in steps_of(records) if step.kept]
    split = split_wall_time(records, now_s if driver_alive else None)
    durable, verified_step = _checkpoints(events)
    paces = tuple(host_paces(records, attempt))
    last_step = kept[-1].event.step if kept else None
    short = state == "finished" and last_step is not None and last_step < (started.steps or 0)
    return RunSummary(
        run=started.run,
        lineage=started.lineage,
        state=state,
        reason=reason,
        cluster=started.cluster,
        endings=_endings(events, driver_alive),
        attempts=sum(isinstance(event, AttemptStarted) for event in events),
        lost_slices=tuple(_lost_slices(events)),
        stuck=tuple(event for event in events if isinstance(event, HostsStuck)),
        notices=tuple(event for event in events if isinstance(event, PreemptionNoticed)),
        last_step=last_step,
        total_steps=started.steps,
        **_progress(kept, split.wall_s),
        goodput=split,
        last_durable_step=None if durable is None else durable.step,
        last_verified_step=verified_step,
        quarantined=tuple(event for event in events if isinstance(event, CheckpointQuarantined)),
        checkpoint_path="" if durable is None else durable.path or started.checkpoints,
        phases=_phases(records, attempt),
        programs=_programs(records, attempt),
        paces=paces,
        stragglers=tuple(find_stragglers(paces)),
        evaluation=_last(events, Evaluated),
        sample=(_last(events, SampleWritten) or SampleWritten(text="")).text,
        damaged_lines=sum(isinstance(event, Damaged) for event in events),
        unknown_events=sum(isinstance(event, Unknown) for event in events),
        warnings=(*_not_finite(kept), *_ended_early(short, last_step, started.steps)),
        next_step=_next_step("ended early" if short else state, started.run, durable),
    )


def _progress(kept: Sequence[Step], wall_s: float) -> dict[str, Any]:
    """Losses, metrics and speed of the steps that were kept, under their names in ``RunSummary``."""
    losses = [step.event.metrics["loss"] for step in kept if "loss" in step.event.metrics]
    return {
        "loss_first": losses[0] if losses else None,
        "loss_last": losses[-1] if losses else None,
        "metrics": dict(kept[-1].event.metrics) if kept else {},
        "tokens_per_s": _recent_tokens_per_s(kept),
        "tokens_per_s_overall": _overall_tokens_per_s(kept, wall_s),
        "step_s": statistics.median(s.event.seconds for s in kept[-RECENT_STEPS:]) if kept else None,
    }


def _ended_early(short: bool, last: int | None, steps: int | None) -> Iterator[str]:
    if short:
        yield f"the train function ended after step {last} of {steps}"


def _lost_slices(events: Iterable[Event]) -> Iterator[str]:
    for event in events:
        match event:
            case AttemptEnded():
                yield from event.slices
            case ReplicaLost():
                yield event.slice


def summary_document(summary: RunSummary) -> dict[str, Any]:
    """``summary`` as JSON values, for a machine. Numbers that JSON lacks become the texts nan, inf, -inf."""
    document = dataclasses.asdict(summary)
    document["goodput"] = {
        "fraction": summary.goodput.fraction,
        "wall_s": summary.goodput.wall_s,
        "seconds": {bucket.value: seconds for bucket, seconds in summary.goodput.seconds.items()},
        "badput_s": summary.goodput.badput_s,
    }
    finite = _finite(document)
    assert isinstance(finite, dict)
    return finite


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _last(events: Sequence[object], kind: type[_E]) -> _E | None:
    return next((event for event in reversed(events) if isinstance(event, kind)), None)


def _checkpoints(events: Sequence[object]) -> tuple[CheckpointDurable | None, int | None]:
    """The newest durable checkpoint and the newest verified step that are still there.

    A restore of an older step means that no newer one was good.
    """
    durable: dict[int, CheckpointDurable] = {}
    verified: set[int] = set()
    for event in events:
        match event:
            case CheckpointDurable(step=step):
                durable[step] = event
            case CheckpointVerified(step=step):
                verified.add(step)
            case CheckpointRestored(step=step, verified=vouched, path=path):
                durable.setdefault(step, CheckpointDurable(step=step, path=path))
                durable = {each: event for each, event in durable.items() if each <= step}
                verified = {each for each in verified if each < step} | ({step} if vouched else set())
            case CheckpointQuarantined(step=step):
                durable.pop(step, None)
                verified.discard(step)
    return durable[max(durable)] if durable else None, max(verified, default=None)


def _state(events: Sequence[object], driver_alive: bool, silence: str) -> tuple[str, str]:
    """State and reason, from the last event that tells one."""
    for event in reversed(events):
        if isinstance(event, RunEnded):
            return event.outcome, event.reason
        if not driver_alive and isinstance(event, RunStarted | StateChanged | AttemptStarted):
            return DRIVER_LOST, "its driver is gone and did not say why"
        if silence and isinstance(event, RunStarted | StateChanged | AttemptStarted):
            return DRIVER_SILENT, silence
        if isinstance(event, StateChanged):
            return event.state, event.reason
        if isinstance(event, RunStarted):
            return "starting", ""
    return ("starting", "") if driver_alive else (NOT_STARTED, "")


def _endings(events: Sequence[object], driver_alive: bool) -> tuple[str, ...]:
    endings: list[str] = []
    is_open = False
    for event in events:
        if isinstance(event, AttemptStarted | RunStarted):
            if is_open:
                endings.append(DRIVER_LOST)
            is_open = isinstance(event, AttemptStarted)
        elif isinstance(event, AttemptEnded) and is_open:
            endings.append(event.ending)
            is_open = False
    if is_open and not driver_alive:
        endings.append(DRIVER_LOST)
    return tuple(endings)


def _not_finite(kept: Sequence[Step]) -> Iterator[str]:
    """A sentence for each metric that is nan or infinite, or was for a while."""
    for name in dict.fromkeys(name for step in kept for name in step.event.metrics):
        values = [(s.event.step, s.event.metrics[name]) for s in kept if name in s.event.metrics]
        finite = [step for step, value in values if math.isfinite(value)]
        if len(finite) == len(values):
            continue
        since = [(step, value) for step, value in values if not finite or step > finite[-1]]
        if since:
            yield f"{name} is {values[-1][1]} since step {since[0][0]}"
        else:
            first, value = next(each for each in values if not math.isfinite(each[1]))
            yield f"{name} was not finite in {len(values) - len(finite)} steps, first {value} in step {first}"


def _recent_tokens_per_s(kept: Sequence[Step]) -> float | None:
    rates = [s.event.tokens / s.event.seconds for s in kept[-RECENT_STEPS:] if s.event.seconds > 0]
    return statistics.median(rates) if any(rates) else None


def _overall_tokens_per_s(kept: Sequence[Step], wall_s: float) -> float | None:
    tokens = sum(step.event.tokens for step in kept)
    return tokens / wall_s if tokens and wall_s > 0 else None


def _phases(records: Sequence[Recorded], attempt: int | None) -> tuple[Phase, ...]:
    slowest: dict[str, Phase] = {}
    for recorded in records:
        event = recorded.event
        # What was done before an earlier attempt, or by an earlier driver, is not ours.
        earlier = isinstance(event, AttemptEnded) and recorded.attempt != attempt
        if isinstance(event, RunStarted) or earlier:
            slowest = {}
        elif isinstance(event, PhaseTimed) and recorded.attempt in (None, attempt):
            known = slowest.get(event.name)
            if known is None or known.seconds < event.seconds:
                slowest[event.name] = Phase(name=event.name, seconds=event.seconds, writer=recorded.writer)
    return tuple(slowest.values())


def _programs(records: Sequence[Recorded], attempt: int | None) -> tuple[ProgramCompiled, ...]:
    slowest: dict[str, ProgramCompiled] = {}
    for recorded in records:
        event = recorded.event
        if isinstance(event, ProgramCompiled) and recorded.attempt == attempt:
            known = slowest.get(event.name)
            if known is None or known.seconds < event.seconds:
                slowest[event.name] = event
    return tuple(slowest.values())


def _next_step(state: str, run: str, durable: CheckpointDurable | None) -> str:
    point = "from the beginning" if durable is None else f"from step {durable.step}"
    match state:
        case "finished":
            return "nothing to do; --fresh trains anew beside this"
        case "failed":
            return f"read `raytpu logs {run} --tail 50`, then run the same file again to go on {point}"
        case "stopped" | "driver lost" | "ended early":
            return f"run the same file again to go on {point}"
        case "driver silent":
            again = f"run the same file again to go on {point}"
            return f"wake its driver (kill -CONT) or end it; once it is gone, {again}"
        case "not started":
            return "run the workload file"
    return f"`raytpu logs {run} --follow` to watch, `raytpu stop {run}` to end it"
