"""Kill whatever there is, again and again: the losses stay those of the undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from raytpu.cluster import find
from raytpu.record import HostReady, read_events
from tests.workflow.conftest import Story, wait_for

pytestmark = pytest.mark.soak

ROUNDS = int(os.environ.get("RAYTPU_SOAK_ROUNDS", "20"))
STEPS = ("train.config.steps=400", "checkpoint.every_steps=5")


def test_a_run_survives_any_number_of_kills_bit_for_bit(story: Story):
    """A leak or an off-by-one that one kill hides, twenty show."""
    assert story.raytpu(*story.run_arguments("whole", *STEPS), timeout_s=900).code == 0
    whole = story.losses("whole")
    for round_number in range(ROUNDS):
        last = max(story.losses("killed"), default=0)
        if last >= 380:
            break
        driver = story.start(*story.run_arguments("killed", *STEPS))
        goal = last + random.randint(6, 18)
        wait_for(f"step {goal}", lambda goal=goal: goal in story.losses("killed"), deadline_s=180)
        victim = random.choice(["driver", "process", "host"])
        print(f"round {round_number}: {victim} after step {goal}", flush=True)
        if victim == "driver":
            driver.send_signal(signal.SIGKILL)
        elif victim == "process":
            events = read_events(story.directory("killed"))
            ready = [each.event for each in events if isinstance(each.event, HostReady)]
            os.kill(random.choice(ready[-4:]).pid, signal.SIGKILL)
        else:
            with find(story.simulation, story.home) as cluster:
                cluster.lose_host("slice-1", 1)
                driver.communicate(timeout=90)
                cluster.add_host("slice-1", 1)
        driver.communicate(timeout=90)
        time.sleep(random.random())
    ended = story.raytpu(*story.run_arguments("killed", *STEPS), timeout_s=900)
    assert ended.code == 0, ended.err
    assert story.losses("killed") == whole
