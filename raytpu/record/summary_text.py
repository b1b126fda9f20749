"""The summary of a run as plain text, without colour: the same on a terminal, in a log and in a test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from raytpu.record.goodput import Bucket, Goodput
from raytpu.record.summary import RunSummary

_LABEL = 13

# By feel: the error, and the last three frames of a traceback.
_REASON_LINES = 8

_NOTICES = 4  # by feel: of the hosts of one slice, or of the last slices


# The worst ones; all are in the JSON.
_STRAGGLERS = 3


def render_summary(summary: RunSummary) -> str:
    """The summary for a person, without a line end at its end."""
    return "\n".join(line.rstrip() for line in _lines(summary))


def duration_text(seconds: float) -> str:
    """``4.2 s``, ``3 min 05 s``, ``2 h 07 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _lines(summary: RunSummary) -> Iterator[str]:
    name = summary.run or "(no name)"
    lineage = f" (lineage {summary.lineage:03d})" if summary.lineage != 1 else ""
    yield f"run {name}{lineage}: {summary.state}"
    if summary.reason:
        yield from _labelled("reason", _shortened(summary.reason.splitlines()))
    yield from _labelled("steps", [_steps(summary)])
    yield from _labelled("warning", list(summary.warnings))
    yield from _labelled("speed", _speed(summary))
    yield from _labelled("checkpoint", _checkpoint(summary))
    if summary.attempts:
        yield from _labelled("attempts", [_attempts(summary)])
    if summary.lost_slices:
        yield from _labelled("lost", [_lost(summary)])
    yield from _labelled("stuck", [each.reason for each in summary.stuck])
    yield from _labelled("notice", _notices(summary))
    yield from _labelled("wall time", _wall(summary.goodput))
    yield from _labelled("start-up", _phases(summary))
    yield from _labelled("compiled", _programs(summary))
    yield from _labelled("hosts", _paces(summary))
    yield from _labelled("evaluation", _evaluation(summary))
    yield from _labelled("sample", summary.sample.splitlines())
    yield from _labelled("record", _record(summary))
    yield from _labelled("next", [summary.next_step])


def _labelled(label: str, lines: list[str]) -> Iterator[str]:
    for at, line in enumerate(lines):
        yield f"  {label if at == 0 else '':<{_LABEL}}{line}"


def _shortened(lines: list[str]) -> list[str]:
    """The begin, which names the error, and the end of a traceback, which names the place."""
    if len(lines) <= _REASON_LINES:
        return lines
    left_out = len(lines) - _REASON_LINES
    return [lines[0], f"… {left_out} lines …", *lines[left_out + 1 :]]


def _steps(summary: RunSummary) -> str:
    if summary.last_step is None:
        return "none yet"
    of = "" if summary.total_steps is None else f" of {summary.total_steps}"
    loss = ""
    if summary.loss_first is not None and summary.loss_last is not None:
        loss = f", loss {summary.loss_first:.4f} → {summary.loss_last:.4f}"
    return f"{summary.last_step}{of}{loss}"


def _speed(summary: RunSummary) -> list[str]:
    words = []
    if summary.step_s is not None:
        words.append(f"{summary.step_s:.4g} s a step")
    if summary.tokens_per_s is not None:
        words.append(f"{summary.tokens_per_s:,.0f} tokens/s")
    if summary.tokens_per_s_overall is not None:
        words.append(f"{summary.tokens_per_s_overall:,.0f} tokens/s over the whole wall time")
    return [", ".join(words)] if words else []


def _checkpoint(summary: RunSummary) -> list[str]:
    lines = [_durable(summary)]
    for each in summary.quarantined:
        lines.append(f"step {each.step} was damaged and is under quarantine: {each.path}")
        lines.append(f"  {each.reason}")
    return lines


def _durable(summary: RunSummary) -> str:
    step, verified = summary.last_durable_step, summary.last_verified_step
    if step is None:
        return "none is durable yet"
    path = f": {summary.checkpoint_path}" if summary.checkpoint_path else ""
    if verified == step:
        return f"step {step} is durable and verified{path}"
    older = "" if verified is None else f" (step {verified} is)"
    return f"step {step} is durable, not verified{older}{path}"


def _attempts(summary: RunSummary) -> str:
    counted = ", ".join(f"{count} {ending}" for ending, count in Counter(summary.endings).items())
    return f"{summary.attempts} ({counted})" if counted else str(summary.attempts)


def _lost(summary: RunSummary) -> str:
    times = Counter(summary.lost_slices)
    names = ", ".join(name if count == 1 else f"{name} {count} times" for name, count in times.items())
    return f"{len(summary.lost_slices)} slice{'s' if len(summary.lost_slices) != 1 else ''}: {names}"


def _notices(summary: RunSummary) -> list[str]:
    lines = [f"{each.host}: {each.source}, {each.seconds:.0f} s before its end" for each in summary.notices]
    earlier = len(lines) - _NOTICES
    return [f"{earlier} earlier", *lines[-_NOTICES:]] if earlier > 0 else lines


def _wall(split: Goodput) -> list[str]:
    lines = [f"{duration_text(split.wall_s)}, goodput {split.fraction:.1%}"]
    longest = sorted(split.seconds.items(), key=lambda entry: -entry[1])
    for bucket, seconds in longest:
        # A bucket too small to be seen is left out, productive steps never are.
        if seconds >= 0.05 or bucket is Bucket.STEP:
            share = seconds / split.wall_s if split.wall_s > 0 else 0.0
            lines.append(f"{bucket.value:<17}{seconds:>10.1f} s{share:>8.1%}")
    return lines


def _phases(summary: RunSummary) -> list[str]:
    return [f"{phase.name:<20}{phase.seconds:>8.2f} s  {phase.writer}" for phase in summary.phases]


def _programs(summary: RunSummary) -> list[str]:
    return [
        f"{program.name:<20}{program.seconds:>8.2f} s  cache {program.cache}" for program in summary.programs
    ]


def _paces(summary: RunSummary) -> list[str]:
    if len(summary.paces) < 2:
        return []
    slowest, fastest = summary.paces[0], summary.paces[-1]
    slow, fast = (f"{pace.host}: {pace.step_s:.4g} s a step" for pace in (slowest, fastest))
    lines = [f"slowest {slow}; fastest {fast}"]
    for each in summary.stragglers[:_STRAGGLERS]:
        lines.append(
            f"{each.host} is behind in {each.phase}: {each.behind_s:.4g} s a step more than the others' "
            f"{each.others_s:.4g} s, {each.share:.0%} of a step"
        )
    return lines


def _evaluation(summary: RunSummary) -> list[str]:
    if summary.evaluation is None:
        return []
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in summary.evaluation.metrics.items())
    return [f"step {summary.evaluation.step}: {metrics}"]


def _record(summary: RunSummary) -> list[str]:
    lines = []
    if summary.damaged_lines:
        lines.append(f"{summary.damaged_lines} damaged line(s) of the record were left out")
    if summary.unknown_events:
        lines.append(f"{summary.unknown_events} event(s) of another version of raytpu were left out")
    return lines
