"""A checkpoint is damaged on the disk between two drivers of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raytpu.record import CheckpointQuarantined, CheckpointRestored, read_events
from tests.workflow.conftest import FinishedRun, Story, losses_of

pytestmark = pytest.mark.workflow


def flip_a_byte(step: Path) -> None:
    path = max((each for each in step.rglob("*") if each.is_file()), key=lambda each: each.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def test_a_run_whose_newest_checkpoint_is_damaged_goes_on_from_the_older_one_bit_for_bit(
    story: Story, finished_run: FinishedRun
):
    """It would be refused until somebody removes the damaged one by hand, or train on from garbage."""
    first = story.raytpu(*story.run_arguments("spoilt", "train.config.steps=18"))
    assert first.code == 0, first.err
    checkpoints = Path(story.directory("spoilt").checkpoints)
    flip_a_byte(checkpoints / "18")
    assert story.raytpu("checkpoints", "spoilt").code == 0, "the sizes are right"
    listed = story.raytpu("checkpoints", "spoilt", "--verify")
    assert listed.code == 4, listed.err
    assert "holds other bytes than were saved" in listed.out

    again = story.raytpu(*story.run_arguments("spoilt"))

    assert again.code == 0, again.err
    assert "checkpoint of step 18 is damaged and put aside" in again.err
    assert "durable" in again.err
    events = [each.event for each in read_events(story.directory("spoilt"))]
    [quarantined] = [each for each in events if isinstance(each, CheckpointQuarantined)]
    assert quarantined.step == 18
    assert (checkpoints / "quarantined" / "18-1").is_dir()
    restored = [each for each in events if isinstance(each, CheckpointRestored)]
    assert {(each.step, each.verified) for each in restored} == {(12, True)}
    assert losses_of(read_events(story.directory("spoilt"))) == finished_run.losses

    status = story.raytpu("status", "spoilt")
    assert "step 24 is durable and verified" in status.out
    assert "step 18 was damaged and is under quarantine" in status.out
    document = json.loads(story.raytpu("checkpoints", "spoilt", "--verify", "--output", "json").out)
    assert [(each["step"], each["state"]) for each in document["checkpoints"]] == [
        (12, "good"),
        (18, "good"),
        (18, "quarantined"),
        (24, "good"),
    ]


def test_a_run_without_a_good_checkpoint_is_refused_with_every_reason(story: Story):
    """A silent start from step 0 looks like a run that goes on."""
    first = story.raytpu(*story.run_arguments("ruined", "train.config.steps=6"))
    assert first.code == 0, first.err
    checkpoints = Path(story.directory("ruined").checkpoints)
    flip_a_byte(checkpoints / "6")

    again = story.raytpu(*story.run_arguments("ruined"))

    assert again.code == 2, again.err
    assert "no checkpoint is good" in again.err
    assert "  6: " in again.err
    assert "--fresh" in again.err
    assert "Traceback" not in again.err
    assert (checkpoints / "6").is_dir()
