"""The numbers of a run are those of the mathematics, whatever the slices and whatever was killed."""

from __future__ import annotations

import random
import signal

import pytest

from raytpu.record import CheckpointRestored, read_events
from tests.workflow.conftest import FinishedRun, Story, losses_of, wait_for

ONE_DEVICE = (
    "slices.topology=1x1",
    "slices.chips_per_host=1",
    "slices.count=1",
    "train.mesh={ici: {fsdp: 1}}",
)


@pytest.mark.workflow
def test_the_first_losses_on_two_slices_equal_those_of_one_device(story: Story, finished_run: FinishedRun):
    """A wrong mean over the batch, or rows read twice, would train another model than asked for."""
    alone = story.raytpu(*story.run_arguments("one-device", *ONE_DEVICE, on="sim"))
    assert alone.code == 0, alone.err
    many, one = finished_run.losses, story.losses("one-device")
    assert set(range(1, 21)) <= set(many)
    for step in range(1, 21):
        assert many[step] == pytest.approx(one[step], rel=1e-4), step


def kill_driver_after(story: Story, step: int, arguments: list[str], name: str) -> None:
    driver = story.start(*arguments)
    wait_for(f"step {step}", lambda: step in story.losses(name))
    driver.send_signal(signal.SIGKILL)
    driver.communicate()


@pytest.mark.workflow
def test_a_run_whose_driver_was_killed_goes_on_bit_for_bit(story: Story, finished_run: FinishedRun):
    """A data position or optimizer state that is off by one shows in the next loss."""
    kill_driver_after(story, random.randint(7, 20), story.run_arguments("broken"), "broken")
    again = story.raytpu(*story.run_arguments("broken"))
    assert again.code == 0, again.err

    events = read_events(story.directory("broken"))
    restored = [each.event.step for each in events if isinstance(each.event, CheckpointRestored)]
    assert restored, "the second driver began anew"
    assert restored[0] >= 6
    assert losses_of(events) == finished_run.losses


@pytest.mark.thorough
def test_a_run_goes_on_with_one_device_and_back_on_two_slices(story: Story, finished_run: FinishedRun):
    """People resume on whatever slices they get."""
    kill_driver_after(story, 7, story.run_arguments("moving"), "moving")
    kill_driver_after(story, 13, story.run_arguments("moving", *ONE_DEVICE, on="sim"), "moving")
    last = story.raytpu(*story.run_arguments("moving"))
    assert last.code == 0, last.err

    moving = story.losses("moving")
    assert sorted(moving) == sorted(finished_run.losses)
    for step, loss in finished_run.losses.items():
        assert moving[step] == pytest.approx(loss, rel=1e-4), step
