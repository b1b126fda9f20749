"""A checkpoint is damaged on the disk between two drivers of a run."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from raytpu.checkpoint import rungs
from raytpu.record import CheckpointQuarantined, CheckpointRestored, read_events
from tests.workflow.conftest import FinishedRun, Story, losses_of, processes_of, wait_for


def flip_a_byte(step: Path) -> None:
    path = max((each for each in step.rglob("*") if each.is_file()), key=lambda each: each.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


@pytest.mark.thorough
def test_a_run_whose_newest_checkpoint_is_damaged_goes_on_from_the_older_one_bit_for_bit(
    story: Story, finished_run: FinishedRun
):
    """It would be refused until somebody removes the damaged one by hand, or train on from garbage."""
    checkpoints = Path(story.directory("spoilt").checkpoints)
    driver = story.start(*story.run_arguments("spoilt"))
    wait_for("the second checkpoint", (checkpoints / "12" / "manifest.json").exists)
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    wait_for("every process of the run to be gone", lambda: not processes_of(story), deadline_s=30)
    for rung in rungs(str(checkpoints)):
        if (
            rung.state == "unverified"
        ):  # killed between commit and manifest: nothing would tell the flipped byte
            shutil.rmtree(rung.path)
    *_, older, newest = [rung.step for rung in rungs(str(checkpoints))]
    flip_a_byte(checkpoints / str(newest))
    assert story.raytpu("checkpoints", "spoilt").code == 0, "the sizes are right"
    listed = story.raytpu("checkpoints", "spoilt", "--verify")
    assert listed.code == 4, listed.err
    assert "holds other bytes than were saved" in listed.out

    again = story.raytpu(*story.run_arguments("spoilt"))

    assert again.code == 0, again.err
    assert f"checkpoint of step {newest} is damaged and put aside" in again.err
    events = read_events(story.directory("spoilt"))
    quarantined = [each.event.step for each in events if isinstance(each.event, CheckpointQuarantined)]
    assert newest in quarantined
    assert (checkpoints / "quarantined" / f"{newest}-1").is_dir()
    restored = [each.event for each in events if isinstance(each.event, CheckpointRestored)]
    assert {(each.step, each.verified) for each in restored} == {(older, True)}
    assert losses_of(events) == finished_run.losses

    status = story.raytpu("status", "spoilt")
    assert "step 24 is durable and verified" in status.out
    assert f"step {newest} was damaged and is under quarantine" in status.out
    document = json.loads(story.raytpu("checkpoints", "spoilt", "--verify", "--output", "json").out)
    assert (newest, "quarantined") in [(each["step"], each["state"]) for each in document["checkpoints"]]


@pytest.mark.thorough
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
