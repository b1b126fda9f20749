"""What a run does now, on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import os
import sys
import time
from types import TracebackType
from typing import Any

from raytpu.record import (
    AttemptStarted,
    CheckpointDurable,
    CheckpointQuarantined,
    CheckpointRestored,
    CheckpointSlow,
    CheckpointVerified,
    Evaluated,
    HostReady,
    PhaseTimed,
    ProgramCompiled,
    Recorded,
    RunStarted,
    StateChanged,
    StepFinished,
)

LINE_INTERVAL_S = 5.0

_OF_EVERY_HOST = (
    ProgramCompiled,
    CheckpointRestored,
    CheckpointDurable,
    CheckpointVerified,
    CheckpointSlow,
    Evaluated,
)
"""Events that all hosts write alike; those of process 0 are shown."""


class RunProgress:
    """Shows events as they are recorded. Steps come from every host; those of process 0 carry metrics."""

    def __init__(self, steps: int | None, interval_s: float = LINE_INTERVAL_S) -> None:
        self._steps, self._interval_s = steps, interval_s
        self._last_line = float("-inf")
        self._began = time.monotonic()
        self._leader: str | None = None
        """The host of process 0: all hosts compile the same programs, one of them is told of."""
        self._saves = False
        """The run keeps checkpoints."""
        self._durable: int | None = None
        """Newest durable step; shown with every step."""
        self._not_finite: set[str] = set()
        """Metrics that were nan or infinite once: that is told once."""
        self._bar: Any = None
        if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
            self._bar = _Bar(steps)

    def show(self, recorded: Recorded) -> None:
        """Show one event, if it says something."""
        event = recorded.event
        if isinstance(event, StepFinished):
            if event.metrics:
                self._step(event)
            return
        if isinstance(event, HostReady) and event.process_index == 0:
            self._leader = event.host
        if isinstance(event, _OF_EVERY_HOST) and recorded.writer != self._leader:
            return
        if isinstance(event, RunStarted):
            self._saves = bool(event.checkpoints)
        if isinstance(event, CheckpointDurable | CheckpointRestored):
            self._durable = event.step
        text = _text(event)
        if text:
            self._print(text)

    def close(self) -> None:
        """Leave the terminal as it was. Closing twice is not an error."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _step(self, event: StepFinished) -> None:
        for name, value in event.metrics.items():
            if not math.isfinite(value) and name not in self._not_finite:
                self._not_finite.add(name)
                self._print(f"warning: {name} is {value} since step {event.step}")
        rate = event.tokens / event.seconds if event.seconds > 0 else 0.0
        loss = event.metrics.get("loss")
        words = [] if loss is None else [f"loss {loss:.4f}"]
        if event.tokens:
            words.append(f"{rate:,.0f} tokens/s")
        if self._saves:
            words.append("nothing durable yet" if self._durable is None else f"durable {self._durable}")
        if event.data_wait_s > 0.1 * event.seconds:
            words.append(f"waited {event.data_wait_s:.2f} s for data")
        if self._bar is not None:
            self._bar.at(event.step, "  ".join(words))
        elif event.step == self._steps or time.monotonic() - self._last_line >= self._interval_s:
            self._last_line = time.monotonic()
            of = f"/{self._steps}" if self._steps is not None else ""
            self._print("  ".join([f"step {event.step}{of}", *words]))

    def _print(self, text: str) -> None:
        line = f"[{time.monotonic() - self._began:6.1f} s] {text}"
        if self._bar is not None:
            self._bar.print(line)
        else:
            print(line, file=sys.stderr, flush=True)


class _Bar:
    """rich's progress bar; imported only where it is shown."""

    def __init__(self, steps: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[words]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True, highlight=False),
            transient=True,
        )
        self._task = self._progress.add_task("steps", total=steps, words="")
        self._progress.start()

    def at(self, step: int, words: str) -> None:
        self._progress.update(self._task, completed=step, words=words)

    def print(self, line: str) -> None:
        self._progress.console.print(line, markup=False)

    def close(self) -> None:
        self._progress.stop()


def _text(event: object) -> str:
    match event:
        case StateChanged(state=state, reason=reason):
            return f"{state}: {reason}" if reason else state
        case AttemptStarted(attempt=attempt, slices=slices) if attempt > 1:
            return f"attempt {attempt}" + (f" on {', '.join(slices)}" if slices else "")
        case HostReady(host=host, process_index=index, devices=devices, platform=platform):
            return f"{host} is process {index} with {devices} {platform} devices"
        case PhaseTimed(name="prepare data", seconds=seconds):
            return f"data prepared in {seconds:.1f} s"
        case ProgramCompiled(name=name, seconds=seconds, cache=cache) if seconds > 0.5:
            return f"compiled {name} in {seconds:.1f} s ({cache})"
        case CheckpointRestored(step=step, verified=verified):
            return f"restored step {step}" + ("" if verified else ", for which no manifest vouches")
        case CheckpointQuarantined(step=step, reason=reason, path=path):
            return f"checkpoint of step {step} is damaged and put aside as {path}: {reason}"
        case CheckpointSlow(step=step, seconds=seconds, limit_s=limit_s):
            return f"checkpoint of step {step} is slow: {seconds:.0f} s so far, limit {limit_s:.0f} s"
        case CheckpointDurable(step=step):
            return f"checkpoint of step {step} is durable"
        case Evaluated(step=step, metrics=metrics):
            return f"evaluation at step {step}: " + "  ".join(f"{k} {v:.4f}" for k, v in metrics.items())
    return ""
