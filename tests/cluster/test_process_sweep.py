"""Everything of a simulated host is found, whatever its processes did to hide; nothing else is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from raytpu.cluster import process_sweep
from raytpu.cluster.simulation_plan import HOST_MARKER

MARKER = f"test-{os.getpid()}/slice-0/1"


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a shell script with a marker; whatever is left is killed at the end."""
    started = {}

    def start_marked(script: str, marker: str = MARKER) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ["PATH"], HOST_MARKER: marker}
        started[marker] = subprocess.Popen(["sh", "-c", script], env=environment)
        return started[marker]

    yield start_marked
    for marker, process in started.items():
        process_sweep.kill_marked(marker)
        process.wait()


def await_marked(count: int, marker: str = MARKER) -> list[psutil.Process]:
    deadline = time.monotonic() + 5
    while len(found := process_sweep.marked_processes(marker)) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} processes"
    return found


def test_children_in_sessions_of_their_own_die_with_the_host(start):
    """Ray's workers and their children leave the process group of the host."""
    start("setsid sleep 100 & sleep 100")
    await_marked(3)

    assert process_sweep.kill_marked(MARKER) == []
    assert process_sweep.marked_processes(MARKER) == []


def test_a_host_that_forks_as_fast_as_it_can_is_killed(start):
    """One look and one kill would leave what was forked in between."""
    start("while :; do sleep 100 & done")
    await_marked(20)

    assert process_sweep.kill_marked(MARKER) == []
    assert process_sweep.marked_processes(MARKER) == []


def test_the_neighbour_survives(start):
    """Host 1 and host 11 differ by one letter."""
    start("exec sleep 100", MARKER)
    neighbour = start("exec sleep 100", MARKER + "1")
    await_marked(1)
    await_marked(1, MARKER + "1")

    process_sweep.kill_marked(MARKER)

    assert neighbour.poll() is None


def test_a_whole_simulation_is_found_by_its_beginning(start):
    """The end of a simulation clears hosts away that its keeper never heard of."""
    start("exec sleep 100", f"{MARKER}/0")
    start("exec sleep 100", f"{MARKER}/1")
    await_marked(2, f"{MARKER}/")

    assert process_sweep.kill_marked(f"{MARKER}/") == []


def test_processes_without_the_marker_are_found_by_their_session():
    """Between fork and exec a process shows the environment of its parent, the unmarked keeper."""
    leader = subprocess.Popen(["sh", "-c", "sleep 100 & sleep 100"], start_new_session=True)
    deadline = time.monotonic() + 5
    while len(process_sweep.marked_processes("no such marker", {leader.pid})) < 3:
        assert time.monotonic() < deadline

    assert process_sweep.kill_marked("no such marker", {leader.pid}) == []
    assert leader.wait() == -signal.SIGKILL


def test_a_host_is_frozen_whole_and_thawed_whole(start):
    """A half-frozen host answers for what is frozen."""
    start("setsid sleep 100 & sleep 100")
    await_marked(3)

    assert process_sweep.stop_marked(MARKER) == []
    assert {each.status() for each in process_sweep.marked_processes(MARKER)} == {psutil.STATUS_STOPPED}
    assert process_sweep.continue_marked(MARKER) == []
    assert psutil.STATUS_STOPPED not in {each.status() for each in process_sweep.marked_processes(MARKER)}


def test_a_frozen_host_can_be_killed(start):
    """Losing a host that hangs is the usual order of events."""
    start("sleep 100 & sleep 100")
    await_marked(3)
    process_sweep.stop_marked(MARKER)

    assert process_sweep.kill_marked(MARKER) == []


def test_a_pid_is_told_from_its_next_owner():
    """A stale record must not make a stranger look like the keeper."""
    child = subprocess.Popen(["sleep", "100"])
    created_s = psutil.Process(child.pid).create_time()

    assert process_sweep.process_lives(child.pid, created_s)
    assert not process_sweep.process_lives(child.pid, created_s - 100)
    child.kill()
    child.wait()
    assert not process_sweep.process_lives(child.pid, created_s)
