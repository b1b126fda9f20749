"""Several jobs on parts of one slice: each sees its part alone, checked from inside its processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import ray

from raytpu import Lease, SimulatedCluster, Slices, hold, simulate
from raytpu.cluster import NodeOptions
from raytpu.errors import Unplaceable
from raytpu.gang import BookView, Host, call_hosts, open_book, start_hosts
from raytpu.plan import ProcessAssignment
from tests.waiting import await_true

pytestmark = pytest.mark.local_ray

SQUARE = Slices(generation="v6e", topology="4x4")
"""Four hosts of four chips."""
SINGLE = Slices(generation="v6e", topology="2x4", chips_per_host=8)
"""One host of eight chips."""
HALF_OF_SQUARE = Slices(generation="v6e", topology="2x4", chips_per_host=4, sub_slice=True)
HALF_OF_SINGLE = Slices(generation="v6e", topology="2x2", sub_slice=True, exclude=["slice-0"])


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[SimulatedCluster]:
    with simulate([SQUARE, SINGLE], options=NodeOptions(host_cpus=8)) as simulated:
        ray.init(address=simulated.address, log_to_driver=False, logging_level="ERROR")
        yield simulated
        ray.shutdown()


def book() -> BookView:
    return ray.get(open_book().view.remote(), timeout=30)


class Process:
    """A JAX process of a job, started as a training run starts its own."""

    def __init__(self, assignment: ProcessAssignment) -> None:
        self.assignment = assignment

    def coordinator(self) -> str:
        import socket

        with socket.socket() as probe:
            probe.bind((self.assignment.address, 0))
            return f"{self.assignment.address}:{probe.getsockname()[1]}"

    def look(self, coordinator: str) -> dict[str, Any]:
        """Join the job's JAX world; what this process sees of it, and what all of them add up."""
        from raytpu.runtime import start_process

        start_process(self.assignment, coordinator, jax_init_s=60, heartbeat_s=30)
        import jax
        from jax.experimental.multihost_utils import process_allgather

        mine = jax.numpy.array([self.assignment.worker_id])
        return {
            "local": jax.local_device_count(),
            "devices": jax.device_count(),
            "process": (jax.process_index(), jax.process_count()),
            "everybody": process_allgather(mine).ravel().tolist(),
            "node": ray.get_runtime_context().get_node_id(),
            "chips": os.environ["TPU_VISIBLE_CHIPS"],
            "told": {
                name: os.environ[name]
                for name in (
                    "TPU_TOPOLOGY",
                    "TPU_ACCELERATOR_TYPE",
                    "TPU_WORKER_ID",
                    "TPU_HOST_BOUNDS",
                    "TPU_CHIPS_PER_HOST_BOUNDS",
                    "TPU_WORKER_HOSTNAMES",
                )
            },
        }


def start(lease: Lease) -> tuple[Host, ...]:
    return start_hosts(lease, Process, lambda assignment: {"assignment": assignment})


def seen_by(hosts: tuple[Host, ...]) -> list[dict[str, Any]]:
    [coordinator] = call_hosts(hosts[:1], "coordinator", waited_for="an address", deadline_s=60)
    return call_hosts(hosts, "look", coordinator, waited_for="JAX's world", deadline_s=120)


def test_two_jobs_on_halves_of_a_slice_see_their_hosts_alone_and_a_third_waits_for_both():
    """Of one slice, Ray's own helper gave the second job the part of the first."""
    left = hold(HALF_OF_SQUARE, owner="left", timeout_s=30)
    right = hold(HALF_OF_SQUARE, owner="right", timeout_s=30)
    assert [held.name for held in (*left.slices, *right.slices)] == ["slice-0", "slice-0"]
    jobs = [start(left), start(right)]  # both at once: neither may take the other's devices
    whole: list[Lease] = []
    waits = threading.Thread(target=lambda: whole.append(hold(SQUARE, owner="whole", timeout_s=120)))
    waits.start()
    await_true("the third to wait", lambda: len(book().ledger.requests) == 1)

    for hosts, workers in zip(jobs, ([0, 2], [1, 3]), strict=True):
        assert [host.assignment.worker_id for host in hosts] == workers
        for position, (host, seen) in enumerate(zip(hosts, seen_by(hosts), strict=True)):
            assert (seen["local"], seen["devices"], seen["process"]) == (4, 8, (position, 2))
            assert seen["everybody"] == workers
            assert seen["node"] == host.assignment.node_id
            assert seen["told"] == {
                "TPU_TOPOLOGY": "2x4",
                "TPU_ACCELERATOR_TYPE": "v6e-8",
                "TPU_WORKER_ID": str(position),
                "TPU_HOST_BOUNDS": "1,2,1",
                "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
                "TPU_WORKER_HOSTNAMES": ",".join(each.assignment.address for each in hosts),
            }
    left.release()
    waits.join(3)
    assert not whole, "half of it is still held"
    right.release()
    waits.join(30)
    assert [len(held.hosts) for held in whole[0].slices] == [4]
    whole[0].release()


def test_two_jobs_on_halves_of_one_host_see_chips_that_are_neighbours_and_not_the_others():
    with (
        hold(HALF_OF_SINGLE, owner="one", timeout_s=30) as one,
        hold(HALF_OF_SINGLE, owner="other", timeout_s=30) as other,
    ):
        jobs = [start(one), start(other)]
        chips = []
        for [seen] in map(seen_by, jobs):
            assert (seen["local"], seen["devices"], seen["process"]) == (4, 4, (0, 1))
            assert (seen["told"]["TPU_TOPOLOGY"], seen["told"]["TPU_CHIPS_PER_HOST_BOUNDS"]) == (
                "2x2",
                "2,2,1",
            )
            chips.append(seen["chips"])
    assert sorted(chips) == ["0,1,2,3", "4,5,6,7"]


def test_single_chips_of_a_host_go_to_several_jobs_and_half_of_it_to_none_meanwhile():
    """What is left are chips that need not be neighbours."""
    chip = Slices(generation="v6e", topology="1x1", sub_slice=True, exclude=["slice-0"])
    leases = [hold(chip, owner=f"job {number}", timeout_s=30) for number in range(3)]
    hosts = [start(lease)[0] for lease in leases[1:]]
    seen = call_hosts(hosts, "look", "127.0.0.1:1", waited_for="JAX", deadline_s=120)
    assert [each["chips"] for each in seen] == ["1", "2"]
    assert {(each["local"], each["devices"]) for each in seen} == {(1, 1)}
    with pytest.raises(Unplaceable, match="no 2x2 part of it is idle"):
        hold(HALF_OF_SINGLE, owner="half", timeout_s=0)
    for lease in leases:
        lease.release()
    with hold(SINGLE, owner="whole host", timeout_s=30):
        pass


def test_a_lost_host_takes_its_own_part_only(cluster: SimulatedCluster):
    """The job on the other half has lost nothing; and nobody gets what is left of a broken slice."""
    left = hold(HALF_OF_SQUARE, owner="left", timeout_s=30)
    with hold(HALF_OF_SQUARE, owner="right", timeout_s=30) as right:
        cluster.lose_host("slice-0", left.slices[0].hosts[1].worker_id)
        await_true("the owner to be told", lambda: bool(left.lost), 10)
        right.check()
        assert [lease.owner for lease in book().ledger.leases] == ["right"]
        with pytest.raises(Unplaceable, match="host 2: its raylet refuses connections"):
            hold(HALF_OF_SQUARE, owner="next", timeout_s=0)
    left.release()
