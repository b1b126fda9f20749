"""One driver per run."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from raytpu.errors import RunIsLive, StorageError
from raytpu.record import (
    RunDirectory,
    RunLease,
    is_alive,
    read_driver,
    request_stop,
    run_lease,
    stop_requested,
)
from raytpu.record.storage import file_sizes, join_url, write_bytes


def rewrite_driver(directory, **changes):
    driver = dataclasses.replace(read_driver(directory), **changes)
    url = join_url(directory.run_url, run_lease.DRIVER_FILE)
    write_bytes(url, json.dumps(dataclasses.asdict(driver)).encode())
    return driver


def await_true(condition, deadline_s=10.0):
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        threading.Event().wait(0.005)


TAKER = """
import sys, time
from raytpu.record import RunDirectory, RunLease
lease = RunLease.take(RunDirectory.at(sys.argv[1]), "10.0.0.1:6379")
print("taken", flush=True)
time.sleep(60)
"""


@pytest.fixture
def other_driver(local):
    """A driver in a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", TAKER, local.url], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "taken\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_run_that_is_let_go_can_be_taken_again(directory):
    """A run would need a manual clean-up after every success."""
    with RunLease.take(directory, "10.0.0.1:6379") as lease:
        assert read_driver(directory).pid == os.getpid()
        assert read_driver(directory).cluster == "10.0.0.1:6379"
    lease.release()

    assert read_driver(directory) is None
    RunLease.take(directory).release()


def test_a_second_driver_is_refused_and_told_by_whom(local, other_driver):
    """Two drivers on one run write over each other's checkpoints."""
    with pytest.raises(RunIsLive) as caught:
        RunLease.take(local)

    message = str(caught.value)
    assert message.startswith(f"run 'demo' is driven by process {other_driver.pid} on ")
    assert " since 20" in message
    assert message.endswith("to end it: raytpu stop demo")


@pytest.mark.usefixtures("other_driver")
def test_a_fresh_start_beside_a_live_driver_is_refused(local):
    """Both would hold slices and answer to one name."""
    with pytest.raises(RunIsLive):
        RunLease.take(RunDirectory.at(f"{local.run_url}/002"))


def test_a_driver_that_was_killed_is_replaced_at_once(local, other_driver):
    """Waiting for a dead process costs half a minute on every resume."""
    other_driver.send_signal(signal.SIGKILL)
    # Not reaped yet: a zombie is dead as well.
    await_true(lambda: not is_alive(read_driver(local), time.time()))

    with RunLease.take(local) as lease:
        assert lease.driver.pid == os.getpid()


def test_a_frozen_driver_on_this_host_keeps_its_run(local, other_driver):
    """When it thaws it goes on, beside the one that replaced it."""
    other_driver.send_signal(signal.SIGSTOP)
    rewrite_driver(local, heartbeat_s=0.0)

    with pytest.raises(RunIsLive):
        RunLease.take(local)


def test_another_process_with_the_number_of_the_dead_driver_does_not_keep_the_run(local):
    """Process numbers come round; a run must not hang on a stranger's life."""
    RunLease.take(local)
    rewrite_driver(local, token="dead", pid_started_s=1.0)

    RunLease.take(local).release()


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"hostname": "another-host"},
        {"machine": "another boot/pid:[1]"},
        {"machine": ""},
    ],
    ids=["another host", "another container with this name", "a system that tells nothing"],
)
def test_a_driver_elsewhere_is_judged_by_its_heartbeat(directory, elsewhere):
    """Its process number says nothing here, or, worse, is somebody else's."""
    now_s = time.time()
    RunLease.take(directory)

    young = rewrite_driver(directory, token="x", pid=1, heartbeat_s=now_s - 29, **elsewhere)
    with pytest.raises(RunIsLive, match=r"(29|30) s ago"):
        RunLease.take(directory)
    assert is_alive(young, now_s)

    rewrite_driver(directory, heartbeat_s=now_s - 31)
    RunLease.take(directory).release()


def test_of_many_that_take_a_run_at_once_one_gets_it(local):
    """Two notebooks started by one click."""
    won, refused = [], []
    barrier = threading.Barrier(8)

    def take():
        barrier.wait()
        try:
            won.append(RunLease.take(local))
        except RunIsLive as error:
            refused.append(error)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (len(won), len(refused)) == (1, 7)
    won[0].release()


def test_the_heartbeat_is_renewed(directory, monkeypatch):
    """A live driver on another host would be replaced after half a minute."""
    monkeypatch.setattr(run_lease, "RENEW_INTERVAL_S", 0.01)
    seconds = iter(range(1000, 100_000))
    with RunLease.take(directory, clock=lambda: float(next(seconds))):
        await_true(lambda: read_driver(directory).heartbeat_s > 1005)


def test_a_driver_that_lost_its_run_notices_and_leaves_the_other_alone(directory, monkeypatch):
    """A machine that slept for an hour wakes up beside its replacement."""
    monkeypatch.setattr(run_lease, "RENEW_INTERVAL_S", 0.01)
    lease = RunLease.take(directory)
    lease.check()
    rewrite_driver(directory, token="other", hostname="another-host")

    def lost():
        try:
            lease.check()
        except RunIsLive:
            return True
        return False

    await_true(lost)
    lease.release()
    assert read_driver(directory).token == "other"


def test_the_address_of_the_cluster_can_be_told_later(directory):
    """A simulated cluster has no address when the run is taken."""
    with RunLease.take(directory) as lease:
        lease.announce("127.0.0.1:4321")

        assert read_driver(directory).cluster == "127.0.0.1:4321"


def test_a_wish_to_stop_reaches_the_driver_and_not_the_next_one(directory):
    """A run that was stopped yesterday must not stop when it is resumed today."""
    with RunLease.take(directory) as lease:
        assert lease.stop_requested() is None
        request_stop(directory, reason="enough", who="ada@laptop")

        assert (lease.stop_requested().reason, lease.stop_requested().who) == ("enough", "ada@laptop")

    with RunLease.take(directory) as lease:
        assert lease.stop_requested() is None
        assert stop_requested(directory) is None


def test_a_driver_file_that_is_spoilt_is_named(local):
    """Taking the run regardless could make two drivers; a traceback does not say which file."""
    write_bytes(join_url(local.run_url, run_lease.DRIVER_FILE), b"{")

    with pytest.raises(StorageError, match=r"driver\.json: it is not JSON"):
        RunLease.take(local)


@pytest.mark.usefixtures("other_driver")
def test_a_refused_driver_leaves_nothing_in_the_run(local):
    """Temporary files of every refusal would pile up in shared storage."""
    before = file_sizes(local.run_url)
    with pytest.raises(RunIsLive):
        RunLease.take(local)

    assert list(file_sizes(local.run_url)) == list(before)
