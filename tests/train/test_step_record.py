"""What counts as a step's time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from raytpu.errors import SpecError
from raytpu.plan import imagined_inventory, plan_gang, plan_mesh
from raytpu.record import EventLog, RunDirectory, StepFinished, read_events
from raytpu.spec import Slices
from raytpu.train.farewell import Farewell
from raytpu.train.job import TrainJob
from raytpu.train.step_record import StepRecord

ONE = Slices(generation="v6e", topology="1x1")


def record(tmp_path: Path) -> tuple[StepRecord, RunDirectory]:
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
        checkpoint=None,
    )

    def announce(*_: Any) -> None: ...

    log = EventLog(directory, "slice-0/0", 1)
    farewell = Farewell()
    return StepRecord(job=job, store=None, log=log, announce=announce, farewell=farewell), directory


def steps(directory: RunDirectory) -> list[StepFinished]:
    return [each.event for each in read_events(directory) if isinstance(each.event, StepFinished)]


def test_a_pause_within_a_pause_is_taken_off_once(tmp_path: Path):
    """An evaluation that compiles made the next step's time negative."""
    book, directory = record(tmp_path)
    book.step_done(1, {"loss": 1.0}, None, {})
    with book.pause(), book.pause():
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
