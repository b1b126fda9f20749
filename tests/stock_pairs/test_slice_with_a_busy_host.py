"""R2: one host of a slice is busy, another slice is idle. Stock Ray looks at worker 0 only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import ray

from raytpu import SimulatedCluster
from tests.stock_pairs.both_sides import CHIPS_PER_HOST, NotPlaced, hosts_of, in_turn, on_raytpu, on_stock
from tests.stock_pairs.conftest import await_whole
from tests.stock_pairs.measured_pair import MeasuredPair, in_ci_and_in_soak

DEADLINE_S = 4.0


@ray.remote(num_cpus=0, resources={"TPU": CHIPS_PER_HOST})
class Occupant:
    """A small job that was there first."""

    def is_there(self) -> bool:
        return True


@contextmanager
def busy_host(cluster: SimulatedCluster, slice_name: str, worker_id: int) -> Iterator[None]:
    """A host whose chips are taken."""
    selector = {"ray.io/tpu-slice-name": slice_name, "ray.io/tpu-worker-id": str(worker_id)}
    occupant = Occupant.options(label_selector=selector).remote()
    try:
        assert ray.get(occupant.is_there.remote(), timeout=60)
        yield
    finally:
        ray.kill(occupant)
    await_whole(cluster)


@in_ci_and_in_soak
def test_the_idle_slice_is_taken_not_the_half_busy_one(
    cluster: SimulatedCluster, measured_pair: Callable[..., MeasuredPair], rounds: int
):
    """A reservation on the half busy slice waits for a job that has no reason to end."""
    pair = measured_pair("R2", "one host of one slice busy, the other slice idle", deadline_s=DEADLINE_S)

    for number in range(rounds):
        busy, idle = ("slice-0", "slice-1") if number % 4 < 2 else ("slice-1", "slice-0")
        with busy_host(cluster, busy, 1):
            for side in in_turn(number):
                tries = pair.stock if side is on_stock else pair.raytpu
                try:
                    with side(1, owner="one-slice", deadline_s=DEADLINE_S) as held:
                        assert held.places() == hosts_of(idle)
                        tries.add(held.seconds)
                except NotPlaced:
                    tries.add(None)

    pair.assert_raytpu_placed_all(rounds)


@pytest.mark.local_ray
def test_a_slice_that_others_took_right_after_its_release_costs_no_more_than_a_moment(
    cluster: SimulatedCluster,
):
    """The book knows a slice to be free that it just gave back; Ray, a second late, knows better."""
    with on_raytpu(2, owner="before", deadline_s=DEADLINE_S):
        pass
    with (
        busy_host(cluster, "slice-0", 1),
        on_raytpu(1, owner="after", deadline_s=DEADLINE_S) as held,
    ):
        assert held.places() == hosts_of("slice-1")
