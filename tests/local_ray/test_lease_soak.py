"""Many owners, random operations and deaths; then every rule is checked against what was said and seen."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
import ray

from raytpu import SimulatedCluster, Slices, simulate
from tests.local_ray.lease_soak import Soak, schedule

SEED = int(os.environ.get("RAYTPU_SOAK_SEED", random.randrange(1_000_000)))
STEPS = int(os.environ.get("RAYTPU_SOAK_STEPS", "400"))

SLICES = (
    Slices(generation="v6e", topology="2x2", count=5),
    Slices(generation="v6e", topology="2x4", chips_per_host=4, count=3),
)
EVERYTHING = {
    "acquire": 50,
    "release": 32,
    "kill_owner": 4,
    "lose_host": 5,
    "kill_book": 3,
    "stop_book": 1,
    "quarantine": 5,
}
BOOK_DIES = {"acquire": 50, "release": 35, "kill_book": 15}


@pytest.fixture(scope="module")
def cluster() -> Iterator[SimulatedCluster]:
    with simulate(SLICES) as simulated:
        ray.init(address=simulated.address, log_to_driver=False, logging_level="ERROR")
        yield simulated
        ray.shutdown()


def check(cluster: SimulatedCluster, seed: int, steps: int, weights: dict[str, int], owners: int) -> None:
    print(f"RAYTPU_SOAK_SEED={seed}", flush=True)
    soak = Soak(cluster, owners)
    soak.run(schedule(seed, steps, weights, longest_wait_s=0.6))
    violations: list[str] | None = None
    try:
        soak.finish()
        violations = soak.history.violations()
    finally:
        if violations != []:
            print(soak.history.story(), *(violations or ()), sep="\n", flush=True)
    assert violations == [], f"RAYTPU_SOAK_SEED={seed}"


@pytest.mark.local_ray
def test_leases_stay_right_while_owners_hosts_and_the_book_die(cluster: SimulatedCluster) -> None:
    """A short part of the soak below, always the same."""
    check(cluster, seed=1, steps=40, weights=EVERYTHING, owners=2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_leases_stay_right_for_long(cluster: SimulatedCluster) -> None:
    check(cluster, SEED, STEPS, EVERYTHING, owners=4)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_book_that_is_killed_again_and_again_loses_nothing(cluster: SimulatedCluster) -> None:
    check(cluster, SEED, STEPS // 2, BOOK_DIES, owners=3)
