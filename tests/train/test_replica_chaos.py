"""Replicas that die at random moments and are replaced, again and again: the numbers stay exact."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from raytpu.record import EventLog, RunDirectory
from tests.train.diloco_hosts import EVERY, MOMENTUM, RATE, DilocoHost, assert_same, reference
from tests.train.replica_hosts import World, assert_exact
from tests.waiting import await_true


@pytest.fixture
def chaos() -> Iterator[World]:
    world = World("m0", "m1", steps=1_000_000)
    yield world
    world.close()


def shaken(world: World, kills: int, chance: random.Random) -> list[str]:
    """Kill and replace ``kills`` times, then let the run come to an end; who lives then."""
    living = [world.add(name) and name for name in ("m0", "m1")]
    for number in range(2, kills + 2):
        await_true("all replicas to have the state", lambda: set(living) <= set(world.admitted), 30)
        time.sleep(chance.uniform(0, 0.05))
        victim = living.pop(chance.randrange(len(living)))
        world.kill(victim)
        name = f"m{number}"
        world.add(name, joining=True)
        living.append(name)
    await_true("all replicas to have the state", lambda: set(living) <= set(world.admitted), 30)
    world.end_soon(living)
    world.join(*living)
    return living


@pytest.mark.parametrize("seed", [1, 2])
def test_replicas_that_are_killed_and_replaced_stay_exact(chaos: World, seed: int) -> None:
    living = shaken(chaos, 12, random.Random(seed))

    assert_exact(chaos, *living)
    assert len(chaos.lost) == 12, "no healthy replica was given up"


def test_replicas_that_average_every_few_steps_stay_exact_where_they_meet(tmp_path: Path) -> None:
    """Whatever is lost in a round, it is made again from what all had."""
    log = EventLog(RunDirectory.newest(str(tmp_path), "run"), "host")
    world = World(
        "m0",
        "m1",
        steps=1_000_000,
        host=partial(DilocoHost, log=log),
        every_steps=EVERY,
        outer_learning_rate=RATE,
        outer_momentum=MOMENTUM,
    )
    living = shaken(world, 5, random.Random(4))
    ended = {member: world.hosts[member][0].states[world.steps] for member in living}
    lost = list(world.lost)
    world.close()
    log.close()

    wanted = reference(world.steps, 0, lambda _: True)
    for member in living:
        assert_same(ended[member], wanted)
    assert len(lost) == 5, "no healthy replica was given up"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_for_long(chaos: World) -> None:
    seed = int(os.environ.get("RAYTPU_SOAK_SEED", random.randrange(1_000_000)))
    print(f"RAYTPU_SOAK_SEED={seed}")
    living = shaken(chaos, 300, random.Random(seed))

    assert_exact(chaos, *living)
    assert len(chaos.lost) == 300, "no healthy replica was given up"
