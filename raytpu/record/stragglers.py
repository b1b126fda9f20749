"""Which hosts keep the others waiting, by how much, and with what.

A step is collective, so its whole time is alike on all hosts. What differs is how a host spends it: the one
that is late waits least for the others, and longest for its data or for its own Python.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from raytpu.record.event_reading import Recorded
from raytpu.record.events import CheckpointSaved, StepFinished
from raytpu.record.writer_name import name_order

LEAST_SHARE = 0.05
"""Of a step that a host must be behind to be told of. By feel: less is lost in noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPace:
    """How fast one host was; medians of an attempt."""

    host: str
    step_s: float
    """From step to step."""
    data_wait_s: float
    """Of a step, waiting for its batch."""
    work_s: float
    """Of a step, with neither data nor devices nor others to wait for: the host's own Python."""
    save_s: float = 0.0
    """Of a step, standing still for a save: a usual save, spread over the steps between two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A host that is behind the others in one phase."""

    host: str
    phase: str
    """``data wait``, ``step`` or ``checkpoint``."""
    behind_s: float
    """More than the median of the others, a step."""
    others_s: float
    """That median."""
    share: float
    """``behind_s`` over a usual step."""


@dataclass(slots=True)
class _Times:
    steps: list[StepFinished] = field(default_factory=list)
    saves: list[float] = field(default_factory=list)


def host_paces(records: Iterable[Recorded], attempt: int | None) -> list[HostPace]:
    """Of each host in an attempt, the slowest first."""
    times: dict[str, _Times] = defaultdict(_Times)
    for recorded in records:
        if recorded.attempt == attempt:
            match recorded.event:
                case StepFinished():
                    times[recorded.writer].steps.append(recorded.event)
                case CheckpointSaved():
                    times[recorded.writer].saves.append(recorded.event.blocked_s)
    paces = [
        HostPace(
            host=host,
            step_s=statistics.median(event.seconds for event in each.steps),
            data_wait_s=statistics.median(event.data_wait_s for event in each.steps),
            work_s=statistics.median(_work_s(event) for event in each.steps),
            save_s=statistics.median(each.saves) * len(each.saves) / len(each.steps) if each.saves else 0.0,
        )
        for host, each in times.items()
        if each.steps
    ]
    return sorted(paces, key=lambda pace: (-pace.step_s, name_order(pace.host)))


def find_stragglers(paces: Sequence[HostPace]) -> list[Straggler]:
    """Hosts that are behind the median of the others by ``LEAST_SHARE`` of a step, the worst first."""
    if len(paces) < 2:
        return []
    usual_s = statistics.median(pace.step_s for pace in paces)
    phases: Mapping[str, Mapping[str, float]] = {
        "data wait": {pace.host: pace.data_wait_s for pace in paces},
        "step": {pace.host: pace.work_s for pace in paces},
        "checkpoint": {pace.host: pace.save_s for pace in paces if pace.save_s > 0},
    }
    found = []
    for phase, seconds in phases.items():
        for host, own_s in seconds.items():
            others = [each for name, each in seconds.items() if name != host]
            if not others:
                continue
            others_s = statistics.median(others)
            behind_s = own_s - others_s
            if behind_s > 0 and behind_s >= LEAST_SHARE * usual_s:
                found.append(
                    Straggler(
                        host=host,
                        phase=phase,
                        behind_s=behind_s,
                        others_s=others_s,
                        share=behind_s / usual_s if usual_s > 0 else 0.0,
                    )
                )
    return sorted(found, key=lambda each: (-each.behind_s, name_order(each.host)))


def _work_s(event: StepFinished) -> float:
    return max(0.0, event.seconds - event.data_wait_s - event.wait_s)
