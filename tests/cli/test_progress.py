"""The lines that a person watches while a run trains."""

from __future__ import annotations

import pytest

from raytpu.cli.progress import RunProgress
from raytpu.record import (
    CheckpointDurable,
    CheckpointQuarantined,
    CheckpointRestored,
    CheckpointSlow,
    HostReady,
    Recorded,
    RunStarted,
    StepFinished,
    WrittenEvent,
)

LEADER = "slice-0/0"


def shown(capsys: pytest.CaptureFixture[str], *events: WrittenEvent, writer: str = LEADER) -> list[str]:
    """What is printed for ``events``, without the time in front."""
    with RunProgress(steps=100, interval_s=0.0) as progress:
        progress.show(Recorded(0.0, LEADER, 1, HostReady(host=LEADER, process_index=0)))
        capsys.readouterr()
        for event in events:
            progress.show(Recorded(0.0, writer, 1, event))
    return [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()]


def step(number: int) -> StepFinished:
    return StepFinished(step=number, seconds=1.0, metrics={"loss": 2.0})


def test_every_step_says_how_far_back_a_loss_would_go(capsys: pytest.CaptureFixture[str]):
    """Steps without a durable checkpoint behind them are the ones that can be lost."""
    lines = shown(
        capsys, RunStarted(run="demo", checkpoints="/c"), step(1), CheckpointDurable(step=1), step(2)
    )

    assert lines == [
        "step 1/100  loss 2.0000  nothing durable yet",
        "checkpoint of step 1 is durable",
        "step 2/100  loss 2.0000  durable 1",
    ]


def test_a_run_without_checkpoints_says_nothing_of_them(capsys: pytest.CaptureFixture[str]):
    assert shown(capsys, RunStarted(run="demo"), step(1)) == ["step 1/100  loss 2.0000"]


def test_damage_and_what_is_restored_instead_are_told(capsys: pytest.CaptureFixture[str]):
    """A run that is suddenly 50 steps back must say why."""
    lines = shown(
        capsys,
        RunStarted(run="demo", checkpoints="/c"),
        CheckpointQuarantined(step=20, reason="state/d/ab is missing", path="/c/quarantined/20-1"),
        CheckpointRestored(step=10, seconds=0.1, verified=True),
        step(11),
    )

    assert lines == [
        "checkpoint of step 20 is damaged and put aside as /c/quarantined/20-1: state/d/ab is missing",
        "restored step 10",
        "step 11/100  loss 2.0000  durable 10",
    ]


def test_a_slow_save_is_told_once_for_all_hosts(capsys: pytest.CaptureFixture[str]):
    slow = CheckpointSlow(step=50, seconds=61.0, limit_s=60.0)

    assert shown(capsys, slow) == ["checkpoint of step 50 is slow: 61 s so far, limit 60 s"]
    assert shown(capsys, slow, writer="slice-0/1") == []


def test_a_loss_that_is_not_a_number_is_told_once(capsys: pytest.CaptureFixture[str]):
    """A night of steps after it is a night lost."""

    def lost_step(number: int) -> StepFinished:
        return StepFinished(step=number, seconds=1.0, metrics={"loss": float("nan")})

    assert shown(capsys, step(1), lost_step(2), lost_step(3)) == [
        "step 1/100  loss 2.0000",
        "warning: loss is nan since step 2",
        "step 2/100  loss nan",
        "step 3/100  loss nan",
    ]
