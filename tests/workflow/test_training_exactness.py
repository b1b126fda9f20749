"""The numbers of a run are those of the mathematics, whatever the slices and whatever was killed."""

from __future__ import annotations

import random
import signal
from pathlib import Path

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


def test_the_first_losses_on_two_slices_equal_those_of_one_device(story: Story):
    """A wrong mean over the batch, or rows read twice, would train another model than asked for."""
    assert story.raytpu(*story.run_arguments("two-slices")).code == 0
    alone = story.raytpu(*story.run_arguments("one-device", *ONE_DEVICE, on="sim"))
    assert alone.code == 0, alone.err
    many, one = story.losses("two-slices"), story.losses("one-device")
    assert set(range(1, 21)) <= set(many)
    for step in range(1, 21):
        assert many[step] == pytest.approx(one[step], rel=1e-4), step


@pytest.fixture(scope="module")
def whole(simulation: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of a run that nothing disturbed."""
    home, name = simulation
    story = Story(home=home, root=tmp_path_factory.mktemp("whole"), simulation=name)
    assert story.raytpu(*story.run_arguments("whole")).code == 0
    losses = story.losses("whole")
    assert sorted(losses) == list(range(1, 25))
    return losses


def kill_driver_after(story: Story, step: int, arguments: list[str], name: str) -> None:
    driver = story.start(*arguments)
    wait_for(f"step {step}", lambda: step in story.losses(name))
    driver.send_signal(signal.SIGKILL)
    driver.communicate()


def test_a_run_whose_driver_was_killed_goes_on_bit_for_bit(story: Story, whole: dict[int, float]):
    """A data position or optimizer state that is off by one shows in the next loss."""
    kill_driver_after(story, random.randint(7, 20), story.run_arguments("broken"), "broken")
    again = story.raytpu(*story.run_arguments("broken"))
    assert again.code == 0, again.err

    events = read_events(story.directory("broken"))
    restored = [each.event.step for each in events if isinstance(each.event, CheckpointRestored)]
    assert restored, "the second driver began anew"
    assert restored[0] >= 6
    assert losses_of(events) == whole


def test_a_run_goes_on_with_one_device_and_back_on_two_slices(story: Story, whole: dict[int, float]):
    """People resume on whatever slices they get."""
    kill_driver_after(story, 7, story.run_arguments("moving"), "moving")
    kill_driver_after(story, 13, story.run_arguments("moving", *ONE_DEVICE, on="sim"), "moving")
    last = story.raytpu(*story.run_arguments("moving"))
    assert last.code == 0, last.err

    moving = story.losses("moving")
    assert sorted(moving) == sorted(whole)
    for step, loss in whole.items():
        assert moving[step] == pytest.approx(loss, rel=1e-4), step
