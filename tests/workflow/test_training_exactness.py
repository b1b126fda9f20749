"""The numbers of a run are those of the mathematics, whatever the slices and whatever was killed."""

from __future__ import annotations

import random
import signal

import pytest

from raytpu.record import CheckpointRestored, read_events
from tests.workflow.conftest import Story, losses_of, wait_for

pytestmark = pytest.mark.workflow

ONE_DEVICE = (
    "slices.topology=1x1",
    "slices.chips_per_host=1",
    "slices.count=1",
    "train.mesh={ici: {fsdp: 1}}",
)
ONE_SLICE = ("slices.count=1", "train.mesh={ici: {fsdp: 8}}")
FP32 = ("train.config.dtype=fp32",)


def test_the_first_losses_on_two_slices_equal_those_of_one_device(story: Story):
    """A wrong mean over the batch, or rows read twice, would train another model than asked for."""
    assert story.raytpu(*story.run_arguments("two-slices", *FP32)).code == 0
    alone = story.raytpu(*story.run_arguments("one-device", *FP32, *ONE_DEVICE, on="sim"))
    assert alone.code == 0, alone.err
    many, one = story.losses("two-slices"), story.losses("one-device")
    assert set(range(1, 21)) <= set(many)
    for step in range(1, 21):
        assert many[step] == pytest.approx(one[step], rel=1e-4), step


def test_a_run_whose_driver_was_killed_goes_on_bit_for_bit(story: Story):
    """A data position or optimizer state that is off by one shows in the next loss."""
    assert story.raytpu(*story.run_arguments("whole")).code == 0
    whole = story.losses("whole")

    killed_after = random.randint(7, 20)
    driver = story.start(*story.run_arguments("broken"))
    wait_for(f"step {killed_after}", lambda: killed_after in story.losses("broken"))
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    again = story.raytpu(*story.run_arguments("broken"))
    assert again.code == 0, again.err

    events = read_events(story.directory("broken"))
    restored = [each.event.step for each in events if isinstance(each.event, CheckpointRestored)]
    assert restored, "the second driver began anew"
    assert restored[0] >= 6
    assert losses_of(events) == whole


def test_a_run_goes_on_with_another_number_of_slices_and_back(story: Story):
    """People resume on whatever slices they get."""
    first = story.raytpu(*story.run_arguments("moving", "train.config.steps=6"))
    assert first.code == 0, first.err
    second = story.raytpu(*story.run_arguments("moving", "train.config.steps=12", *ONE_SLICE))
    assert second.code == 0, second.err
    third = story.raytpu(*story.run_arguments("moving", "train.config.steps=18", *ONE_DEVICE, on="sim"))
    assert third.code == 0, third.err
    last = story.raytpu(*story.run_arguments("moving"))
    assert last.code == 0, last.err

    whole = story.raytpu(*story.run_arguments("staying"))
    assert whole.code == 0, whole.err
    moving, staying = story.losses("moving"), story.losses("staying")
    assert sorted(moving) == sorted(staying) == list(range(1, 25))
    for step, loss in staying.items():
        assert moving[step] == pytest.approx(loss, rel=2e-2), step  # bf16; another mesh sums in another order
