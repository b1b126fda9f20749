"""Builders of records: what a driver and its hosts would have written."""

from __future__ import annotations

from dataclasses import dataclass, field

from raytpu.record import (
    AttemptEnded,
    AttemptStarted,
    HostReady,
    Recorded,
    RunEnded,
    RunStarted,
    StepFinished,
    WrittenEvent,
)


@dataclass
class Logbook:
    """Events in the order in which they are added, with a clock that only ``at`` moves."""

    now_s: float = 1000.0
    attempt: int | None = None
    records: list[Recorded] = field(default_factory=list)

    def at(self, time_s: float) -> Logbook:
        self.now_s = time_s
        return self

    def add(self, event: WrittenEvent, writer: str = "driver") -> Logbook:
        if isinstance(event, AttemptStarted):
            self.attempt = event.attempt
        self.records.append(Recorded(self.now_s, writer, self.attempt, event))
        if isinstance(event, AttemptEnded):
            self.attempt = None
        return self

    def start(self, run: str = "demo", steps: int | None = 10) -> Logbook:
        return self.add(RunStarted(run=run, steps=steps, checkpoints="/runs/demo/001/checkpoints"))

    def start_attempt(self, number: int, hosts: int = 2) -> Logbook:
        self.add(AttemptStarted(attempt=number))
        for index in range(hosts):
            host = f"slice-0/{index}"
            self.add(HostReady(host=host, process_index=index), writer=host)
        return self

    def steps(
        self, first: int, last: int, seconds: float = 1.0, data_wait_s: float = 0.0, hosts: int = 2
    ) -> Logbook:
        """Steps one after the other, each ``seconds`` long; process 0 reports a falling loss."""
        for step in range(first, last + 1):
            self.now_s += seconds
            for index in range(hosts):
                self.add(
                    StepFinished(
                        step=step,
                        seconds=seconds,
                        data_wait_s=data_wait_s,
                        tokens=4096,
                        metrics={"loss": 6.0 - 0.1 * step} if index == 0 else {},
                    ),
                    writer=f"slice-0/{index}",
                )
        return self

    def end_attempt(self, ending: str = "completed", reason: str = "") -> Logbook:
        return self.add(AttemptEnded(ending=ending, reason=reason))

    def end(self, outcome: str = "finished", reason: str = "") -> Logbook:
        return self.add(RunEnded(outcome=outcome, reason=reason))
