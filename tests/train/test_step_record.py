"""What counts as a step's time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from raytpu.errors import RunStopped, SpecError
from raytpu.gang import stream
from raytpu.plan import imagined_inventory, plan_gang, plan_mesh
from raytpu.record import EventLog, RunDirectory, StepFinished, read_events
from raytpu.spec import Checkpoint, Replicas, Slices
from raytpu.train.farewell import Farewell
from raytpu.train.job import ReplicaPlace, TrainJob
from raytpu.train.loop_position import LoopPosition
from raytpu.train.step_record import StepRecord

ONE = Slices(generation="v6e", topology="1x1")


def record(
    tmp_path: Path, store: Any = None, farewell: Farewell | None = None, **facts: Any
) -> tuple[StepRecord, RunDirectory]:
    directory = RunDirectory.newest(str(tmp_path), "run")
    job = TrainJob(
        run="run",
        attempt=1,
        directory=directory.url,
        driver_token="",
        gang=plan_gang(ONE, imagined_inventory(ONE)),
        mesh=plan_mesh(None, ONE),
        config={"global_batch": 4, "sequence_length": 8},
        streams=(),
        **{"checkpoint": None, **facts},
    )

    def announce(*_: Any) -> None: ...

    log = EventLog(directory, "slice-0/0", 1)
    farewell = farewell or Farewell()
    book = StepRecord(
        job=job, store=store, log=log, announce=announce, farewell=farewell, position=LoopPosition()
    )
    return book, directory


def steps(directory: RunDirectory) -> list[StepFinished]:
    return [each.event for each in read_events(directory) if isinstance(each.event, StepFinished)]


def test_a_pause_within_a_pause_is_taken_off_once(tmp_path: Path):
    """An evaluation that compiles made the next step's time negative."""
    book, directory = record(tmp_path)
    book.step_done(1, {"loss": 1.0}, None, {})
    with book.pause("evaluating"), book.pause("compiling"):
        time.sleep(0.05)
    book.step_done(2, {"loss": 1.0}, None, {})
    book.finish()
    assert all(0 <= step.seconds < 0.05 for step in steps(directory))
    assert [step.tokens for step in steps(directory)] == [32, 32]


def test_a_step_that_is_left_out_or_told_twice_is_refused(tmp_path: Path):
    """The number of a step is the name of its checkpoint."""
    book, _ = record(tmp_path)
    book.step_done(1, {}, None, {})
    for number in (1, 3):
        with pytest.raises(SpecError, match=f"step {number} after step 1"):
            book.step_done(number, {}, None, {})


class Saved:
    """A store that only remembers what it was given."""

    directory = "/runs"

    def __init__(self) -> None:
        self.states: dict[int, Any] = {}

    def save(self, step: int, state: Any, _: Any) -> None:
        self.states[step] = state

    def wait(self, _: float) -> None: ...

    def raise_failed_save(self) -> None: ...

    def save_reports(self) -> list[Any]:
        return []


def test_between_two_averages_nothing_is_saved_and_no_run_ends(tmp_path: Path):
    """There each replica has a state of its own, and the others are not waiting in a save."""
    place = ReplicaPlace(
        member="a#1",
        joining=False,
        first=True,
        parts=2,
        coordinator=stream.Address(host="", port=0, token=b"", version=""),
        settings=Replicas(every_steps=3),
    )
    store = Saved()
    farewell = Farewell()
    checkpoint = Checkpoint(path="/runs", every_steps=6)
    book, _ = record(tmp_path, store, farewell, replica=place, checkpoint=checkpoint)
    book.whole = lambda state: f"{state} and the outer momentum"
    for step in range(1, 8):
        book.step_done(step, {}, f"state {step}", {})
    assert farewell.propose(8)
    farewell.decide(8, True, "preempted")
    book.step_done(8, {}, "state 8", {})
    with pytest.raises(RunStopped, match="preempted; step 9 is saved"):
        book.step_done(9, {}, "state 9", {})

    assert store.states == {6: "state 6 and the outer momentum", 9: "state 9 and the outer momentum"}
