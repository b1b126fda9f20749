"""R12: one host of a slice is dead, the other slice is intact. Stock Ray chooses the broken one."""

from __future__ import annotations

from collections.abc import Callable

from raytpu import SimulatedCluster
from tests.stock_pairs.both_sides import NotPlaced, hosts_of, in_turn, on_stock
from tests.stock_pairs.conftest import await_whole, replace_lost_hosts
from tests.stock_pairs.measured_pair import MeasuredPair, in_ci_and_in_soak

DEADLINE_S = 4.0

ROUNDS_OF_ONE_DEATH = 10
"""Then the other slice loses a host. The first rounds fall into the 13 s in which Ray has not noticed yet."""


@in_ci_and_in_soak
def test_the_intact_slice_is_taken_not_the_broken_one(
    cluster: SimulatedCluster, measured_pair: Callable[..., MeasuredPair], rounds: int
):
    """A reservation on a broken slice waits for a host that is gone."""
    pair = measured_pair("R12", "one host of one slice dead, the other slice intact", deadline_s=DEADLINE_S)

    for number in range(rounds):
        deaths, since_death = divmod(number, ROUNDS_OF_ONE_DEATH)
        broken, intact = ("slice-1", "slice-0") if deaths % 2 == 0 else ("slice-0", "slice-1")
        if since_death == 0:
            replace_lost_hosts(cluster)
            await_whole(cluster)
            cluster.lose_host(broken, 1)
        for side in in_turn(number):
            tries = pair.stock if side is on_stock else pair.raytpu
            try:
                with side(1, owner="one-slice", deadline_s=DEADLINE_S) as held:
                    assert held.places() == hosts_of(intact)
                    tries.add(held.seconds)
            except NotPlaced:
                tries.add(None)

    pair.assert_raytpu_placed_all(rounds)
