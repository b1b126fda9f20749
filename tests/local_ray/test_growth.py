"""Slices that the cluster does not have are brought up by Ray's own autoscaler, whole, and only as long as
somebody waits for them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from threading import Thread

import pytest
import ray
from ray.util.tpu import slice_placement_group

from raytpu import Slices, hold
from raytpu.errors import Unplaceable
from raytpu.gang import open_book, ray_internals
from tests.kuberay.cluster import KubeRayCluster, group
from tests.waiting import await_true

pytestmark = pytest.mark.local_ray


def v6e(topology: str, count: int = 1) -> Slices:
    chips_per_host = 4 if topology == "2x4" else None
    return Slices(generation="v6e", topology=topology, chips_per_host=chips_per_host, count=count)


@pytest.fixture(scope="module")
def cluster() -> Iterator[KubeRayCluster]:
    groups = (
        # Those before it in the list must not get the hosts of another one.
        group(v6e("4x8"), 2, pods_start=False),
        group(v6e("4x4"), 3, pods_start=False),
        group(v6e("2x2"), 1),
        group(v6e("2x4"), 3, later_replicas_s=4),
    )
    with KubeRayCluster(groups=groups, idle_timeout_s=2) as started:
        ray.init(address=started.address, log_to_driver=False, logging_level="ERROR")
        yield started
        ray.shutdown()


def replicas(cluster: KubeRayCluster, topology: str) -> list[int]:
    """Of the group of this topology, over time."""
    history: list[int] = cluster.state["replicas"][f"v6e-{topology}-4"]
    return history


def nodes_of(topology: str) -> list[object]:
    """Live nodes of slices of this topology."""
    return [
        node
        for node in ray.nodes()
        if node["Alive"] and node["Labels"].get("ray.io/tpu-topology") == topology
    ]


def groups_of_raytpu() -> list[str]:
    rows = ray.util.placement_group_table().values()
    return [row["name"] for row in rows if row["name"].startswith("raytpu/") and row["state"] != "REMOVED"]


def test_a_slice_that_no_group_offers_is_refused_at_once(cluster: KubeRayCluster):  # noqa: ARG001
    """Nobody waits ten minutes for what will never come."""
    want = Slices(generation="v5e", topology="2x2")
    with pytest.raises(Unplaceable, match="no worker group offers TPU-v5litepod-4-head"):
        hold(want, owner="job", timeout_s=60)
    with pytest.raises(Unplaceable, match="autoscaler cannot add 1 more v5e 2x2"):
        hold(want, owner="another", timeout_s=2)  # known by now: its own deadline is not what ends it
    assert groups_of_raytpu() == []


def test_a_slice_of_one_host_is_brought_up_and_held(cluster: KubeRayCluster):
    with hold(v6e("2x2"), owner="job", timeout_s=60) as lease:
        assert replicas(cluster, "2x2") == [0, 1]
        assert [held.name for held in lease.slices] == list(cluster.state["slices"])
        assert groups_of_raytpu() == [f"raytpu/job/{lease.id}/{lease.slices[0].name}"]


def test_more_slices_than_the_group_may_have_are_refused_at_once(cluster: KubeRayCluster):
    # Known: when the idle slice of an earlier job goes in this very moment, the refusal takes the deadline.
    await_true("the idle slice to be taken away", lambda: not nodes_of("2x2"), 30)
    with pytest.raises(Unplaceable, match=r"autoscaler cannot add [12] more v6e 2x2"):
        hold(v6e("2x2", count=2), owner="job", timeout_s=60)
    assert max(replicas(cluster, "2x2")) == 1


def test_slices_of_several_hosts_come_whole_and_what_is_ready_is_kept_until_all_are(cluster: KubeRayCluster):
    """The autoscaler takes idle nodes away after 2 s here, and the second slice takes longer than that."""
    with hold(v6e("2x4"), owner="job", timeout_s=60) as lease:
        assert replicas(cluster, "2x4") == [0, 1]
        first = lease.slices[0]
        assert [host.worker_id for host in first.hosts] == [0, 1]

    with hold(v6e("2x4", count=2), owner="job", timeout_s=60) as lease:
        assert replicas(cluster, "2x4") == [0, 1, 2]
        assert first.name in [held.name for held in lease.slices]


def test_stock_ray_does_not_get_a_slice_of_several_hosts():
    """When this fails, Ray has caught up; ``raytpu.plan.growth`` may become simpler."""
    with pytest.raises(TimeoutError):
        slice_placement_group("4x8", "v6e", head_reservation_timeout_s=2)


def test_a_demand_ends_with_the_wait_and_outlives_the_book_only_as_long(cluster: KubeRayCluster):
    """A demand that is left behind keeps slices up for nobody."""
    refusals: list[Unplaceable] = []

    def wait_in_vain() -> None:
        try:
            hold(v6e("4x4", count=3), owner="job", timeout_s=11)
        except Unplaceable as refusal:
            refusals.append(refusal)

    waiter = Thread(target=wait_in_vain)
    waiter.start()
    # 12 hosts: two slices at first, because the autoscaler launches 10 nodes at a time.
    await_true("two slices to be asked for", lambda: replicas(cluster, "4x4") == [0, 2])
    os.kill(ray.get(open_book().pid.remote()), signal.SIGKILL)
    await_true("the next book to ask for the third", lambda: replicas(cluster, "4x4") == [0, 2, 3])
    waiter.join(timeout=30)

    assert "Ray's autoscaler" in str(refusals[0]), "it is said what was tried"
    await_true("the demand to be withdrawn", lambda: groups_of_raytpu() == [], deadline_s=2)
    state = ray_internals.autoscaler_state()
    assert state is not None
    assert not state.waiting, "nothing is shown to the autoscaler any more"
    assert replicas(cluster, "4x4") == [0, 2, 3]
    assert replicas(cluster, "4x8") == [0]
