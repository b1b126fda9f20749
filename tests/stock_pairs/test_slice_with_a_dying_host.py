"""R7: a host dies under a held slice, another slice is idle. Stock Ray's group waits for the dead host."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from ray.util.placement_group import PlacementGroup, placement_group_table

import raytpu
from raytpu import SimulatedCluster
from raytpu.errors import SliceLost
from tests.stock_pairs.both_sides import NotPlaced, hosts_of, on_raytpu, on_stock, slices
from tests.stock_pairs.conftest import await_whole, replace_lost_hosts
from tests.stock_pairs.measured_pair import CI_ROUNDS, MeasuredPair, in_ci_and_in_soak

DEADLINE_S = 20.0
"""From the kill until the job has an intact slice. Ray itself knows of the dead node after 13 s."""

FIRST_HOLD_S = 30.0

# Each takes the whole deadline: the group never comes back.
STOCK_TRIES_IN_CI, STOCK_TRIES_IN_SOAK = 1, 10


def avoids(group: PlacementGroup, node_id: str | None) -> bool:
    """Whether Ray calls every bundle placed, none of them on that node."""
    entry = placement_group_table(group)
    return entry["state"] == "CREATED" and node_id not in entry["bundles_to_node_id"].values()


def lose_a_host_under_stock(cluster: SimulatedCluster) -> float | None:
    """Seconds until the placement group is whole again, on whatever slice."""
    try:
        with on_stock(1, owner="held", deadline_s=FIRST_HOLD_S) as held:
            slice_name, worker_id = held.places()[1]
            node_id = cluster.host(slice_name, worker_id).node_id
            began = time.monotonic()
            cluster.lose_host(slice_name, worker_id)
            while time.monotonic() - began < DEADLINE_S:
                if avoids(held.groups[0], node_id):
                    return time.monotonic() - began
                time.sleep(0.2)
    except NotPlaced:  # nothing to lose a host of: not placed all the more
        return None
    return None


def lose_a_host_under_raytpu(cluster: SimulatedCluster, told_s: list[float]) -> float | None:
    """Seconds until a program that holds anew, once it is told, has an intact slice."""
    try:
        with raytpu.hold(slices(1), owner="held", timeout_s=FIRST_HOLD_S) as lease:
            lost = lease.slices[0]
            began = time.monotonic()
            cluster.lose_host(lost.name, lost.hosts[1].worker_id)
            while time.monotonic() - began < DEADLINE_S:
                lease.check()
                time.sleep(0.01)
    except SliceLost:
        told_s.append(time.monotonic() - began)
    else:
        return None
    try:
        with on_raytpu(1, owner="held", deadline_s=DEADLINE_S - told_s[-1]) as held:
            taken_s = time.monotonic() - began
            (intact,) = {"slice-0", "slice-1"} - {lost.name}
            assert held.places() == hosts_of(intact)
            return taken_s
    except NotPlaced:
        return None


@in_ci_and_in_soak
def test_a_job_is_on_an_intact_slice_soon_after_its_own_lost_a_host(
    cluster: SimulatedCluster, measured_pair: Callable[..., MeasuredPair], rounds: int
):
    """A group that waits for a dead host keeps the living hosts of its slice from everybody."""
    pair = measured_pair("R7", "a host dies under a held slice, another is idle", deadline_s=DEADLINE_S)
    told_s: list[float] = []

    for number in range(rounds):
        if number < (STOCK_TRIES_IN_SOAK if rounds > CI_ROUNDS else STOCK_TRIES_IN_CI):
            await_whole(cluster)
            pair.stock.add(lose_a_host_under_stock(cluster))
            replace_lost_hosts(cluster)
            await_whole(cluster)
        # After a round of raytpu's own, Ray still counts the host that it lost as alive, beside the new one.
        pair.raytpu.add(lose_a_host_under_raytpu(cluster, told_s))
        replace_lost_hosts(cluster)

    if told_s:
        told = f"median {statistics.median(told_s):.2f} s, slowest {max(told_s):.2f} s"
        pair.notes.append(f"raytpu told the owner of the loss after {told}")
    pair.assert_raytpu_placed_all(rounds)
