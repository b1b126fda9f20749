"""R10: a serving gang of two one-host replicas belongs on one slice. Ray Serve packs, blind to slices."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import raytpu
from raytpu import SimulatedCluster
from tests.stock_pairs.both_sides import CHIPS_PER_HOST, HOSTS_PER_SLICE, hosts_of, in_turn, on_stock, slices
from tests.stock_pairs.conftest import await_whole
from tests.stock_pairs.measured_pair import MeasuredPair, in_ci_and_in_soak

DEADLINE_S = 60.0
"""For all replicas of a gang to answer."""

SERVE_GANG = "SERVE_GANG::"  # GANG_PG_NAME_PREFIX in ray/serve/_private/common.py (2.60)


class StockReplica:
    """One host of a replica that needs them all."""

    def __call__(self) -> str:
        return os.environ["TPU_NAME"]


class Member:
    """The same, as an actor in a placement group of the caller's."""

    def slice_name(self) -> str:
        return os.environ["TPU_NAME"]


@pytest.fixture
def stock_gang(cluster: SimulatedCluster) -> Iterator[Any]:
    """An application whose replicas are one gang, on a Ray Serve without HTTP that is gone after the test."""
    assert cluster.address, "Serve starts on it"
    # Late and quietly: Serve uses pydantic in ways that warn, and a warning at collection is an error.
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        from ray import serve
        from ray.serve.config import GangSchedulingConfig

    deployment = serve.deployment(
        num_replicas=HOSTS_PER_SLICE,
        ray_actor_options={"num_cpus": 0, "resources": {"TPU": CHIPS_PER_HOST}},
        gang_scheduling_config=GangSchedulingConfig(gang_size=HOSTS_PER_SLICE),
    )(StockReplica)
    serve.start(proxy_location="Disabled")
    yield deployment.bind()
    serve.shutdown()


def slices_of_stock_gang() -> list[str]:
    """The slice of each replica of the one gang that Serve has placed."""
    (gang,) = [
        group
        for group in placement_group_table().values()
        if group["name"].startswith(SERVE_GANG) and group["state"] == "CREATED"
    ]
    slice_of = {node["NodeID"]: node["Labels"].get("ray.io/tpu-slice-name") for node in ray.nodes()}
    return [slice_of[node_id] for node_id in gang["bundles_to_node_id"].values()]


def deploy_on_stock(cluster: SimulatedCluster, gang: Any) -> float | None:
    """Seconds until the gang serves; ``None`` when it straddles two slices, or does not serve."""
    from ray import serve

    began = time.monotonic()
    slice_names: list[str] = []
    try:
        handle = serve.run(gang, name="gang", route_prefix=None)
        handle.remote().result(timeout_s=DEADLINE_S)
        taken_s = time.monotonic() - began
        slice_names = slices_of_stock_gang()
    except (RuntimeError, TimeoutError) as failure:  # what Serve raises for a deployment that fails
        print(f"Ray Serve: {failure}")
    serve.delete("gang")
    await_whole(cluster)
    return taken_s if len(slice_names) == HOSTS_PER_SLICE and len(set(slice_names)) == 1 else None


def deploy_on_raytpu(cluster: SimulatedCluster) -> float | None:
    """Seconds until every member of a gang that raytpu holds a slice for answers."""
    began = time.monotonic()
    with raytpu.hold(slices(1), owner="replica", timeout_s=DEADLINE_S) as lease:
        (held,) = lease.slices
        members = [
            ray.remote(Member)
            .options(
                num_cpus=0,
                resources={"TPU": CHIPS_PER_HOST},
                scheduling_strategy=PlacementGroupSchedulingStrategy(held.placement_group, bundle),
            )
            .remote()
            for bundle in range(HOSTS_PER_SLICE)
        ]
        left_s = began + DEADLINE_S - time.monotonic()
        slice_names = ray.get([member.slice_name.remote() for member in members], timeout=left_s)
        taken_s = time.monotonic() - began
        assert [host.name for host in held.hosts] == [f"{name}/{k}" for name, k in hosts_of(held.name)]
    await_whole(cluster)
    return taken_s if set(slice_names) == {held.name} else None


@in_ci_and_in_soak
def test_a_gang_of_replicas_never_straddles_two_slices(
    cluster: SimulatedCluster, stock_gang: Any, measured_pair: Callable[..., MeasuredPair], rounds: int
):
    """Halves of two slices have no interconnect between them: such a replica cannot run its model."""
    pair = measured_pair("R10", "a gang of 2 one-host replicas on one slice", deadline_s=DEADLINE_S)

    for number in range(rounds):
        for side in in_turn(number):
            if side is on_stock:
                pair.stock.add(deploy_on_stock(cluster, stock_gang))
            else:
                pair.raytpu.add(deploy_on_raytpu(cluster))

    pair.assert_raytpu_placed_all(rounds)
