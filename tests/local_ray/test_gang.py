"""Whole slices, all or none, by name; and calls to all hosts that name the late."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
import ray

from raytpu import Slices, hold, simulate
from raytpu.errors import DeadlineExceeded, HostLost, Unplaceable
from raytpu.gang import call_hosts, ray_inventory, start_hosts
from raytpu.plan import Diagnosis
from tests.waiting import await_true

pytestmark = pytest.mark.local_ray


def slices(count: int) -> Slices:
    return Slices(generation="v6e", topology="2x4", chips_per_host=4, count=count)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with simulate(slices(2)) as simulated:
        ray.init(address=simulated.address, log_to_driver=False, logging_level="ERROR")
        yield
        ray.shutdown()


def free_chips() -> int:
    return sum(host.chips_free for state in ray_inventory().slices for host in state.hosts)


def wait_until_free() -> None:
    await_true("all chips to be free", lambda: free_chips() == 16)


class Process:
    def __init__(self, index: int) -> None:
        self.index = index

    def who(self) -> tuple[int, str, str]:
        return self.index, os.environ["TPU_NAME"], os.environ["TPU_WORKER_ID"]

    def late(self) -> None:
        time.sleep(60 if self.index == 2 else 0)

    def end(self) -> None:
        if self.index == 3:
            os._exit(1)


def test_two_jobs_that_each_want_all_slices_take_turns():
    """Stock Ray gave each of them half, and both timed out: 0 of 10 jobs placed."""
    with hold(slices(2), owner="first", timeout_s=20) as held:
        assert [planned.name for planned in held.plan.slices] == ["slice-0", "slice-1"]
        await_true("all chips to be taken", lambda: free_chips() == 0)
        reasons: list[Diagnosis] = []
        with (
            pytest.raises(Unplaceable, match="slice-0: held by first"),
            hold(slices(2), owner="second", timeout_s=1, waiting=reasons.append),
        ):
            pass
        assert len(reasons) == 1, "told once why it waits"
    wait_until_free()
    with hold(slices(2), owner="second", timeout_s=20) as held:
        assert [planned.name for planned in held.plan.slices] == ["slice-0", "slice-1"]
    wait_until_free()


def test_a_wait_for_slices_can_be_ended():
    """`raytpu stop` of a run that waits must not wait with it."""

    class Stopped(Exception):
        pass

    def stop() -> None:
        if time.monotonic() - began > 1:
            raise Stopped

    with hold(slices(2), owner="first", timeout_s=20):
        began = time.monotonic()
        with (
            pytest.raises(Stopped),
            hold(slices(1), owner="waits", timeout_s=60, alive=stop),
        ):
            pass
        assert time.monotonic() - began < 10
    wait_until_free()


def test_what_the_cluster_can_never_give_is_refused_at_once():
    """Waiting for a third slice of two helps nobody."""
    began = time.monotonic()
    with (
        pytest.raises(Unplaceable, match="3 are wanted"),
        hold(slices(3), owner="greedy", timeout_s=60),
    ):
        pass
    assert time.monotonic() - began < 10


def test_a_body_that_raises_leaves_nothing_held():
    """A held slice that nobody holds is the costliest leak."""
    with (
        pytest.raises(ZeroDivisionError),
        hold(slices(1), owner="raises", timeout_s=20),
    ):
        raise ZeroDivisionError
    wait_until_free()


def test_processes_start_in_the_order_of_the_hardware_and_late_or_lost_hosts_are_named():
    """Stock Ray gave a different permutation of ranks in each of three runs."""
    with hold(slices(2), owner="order", timeout_s=20) as held:
        hosts = start_hosts(held, Process, lambda assignment: {"index": assignment.process_index})
        who = call_hosts(hosts, "who", waited_for="an answer", deadline_s=60)
        assert who == [
            (0, "slice-0", "0"),
            (1, "slice-0", "1"),
            (2, "slice-1", "0"),
            (3, "slice-1", "1"),
        ]
        with pytest.raises(DeadlineExceeded, match=r"for a nap; late: slice-1/0$"):
            call_hosts(hosts, "late", waited_for="a nap", deadline_s=1)
        with pytest.raises(HostLost, match="lost slice-1/1 while waiting for the end"):
            call_hosts(hosts[3:], "end", waited_for="the end", deadline_s=30)
        for host in hosts:
            ray.kill(host.actor)
    wait_until_free()
