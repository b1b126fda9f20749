"""Replicas that die at random moments and are replaced, again and again: the numbers stay exact."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import pytest

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


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_for_long(chaos: World) -> None:
    seed = int(os.environ.get("RAYTPU_SOAK_SEED", random.randrange(1_000_000)))
    print(f"RAYTPU_SOAK_SEED={seed}")
    living = shaken(chaos, 300, random.Random(seed))

    assert_exact(chaos, *living)
    assert len(chaos.lost) == 300, "no healthy replica was given up"
