"""Whatever is killed: within 30 s no slice is held, no process of the run is left, and the run can go on.

The ways to end that differ most are in `make test`, the others in `make thorough`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from raytpu.cluster import find
from raytpu.record import HostReady, read_events
from tests.workflow.conftest import Story, processes_of, wait_for

LONG = ("train.config.steps=100000", "checkpoint.every_steps=5")
ONE_ATTEMPT = ("recovery.max_lost_slices=0", "recovery.max_program_failures=0")
FREE_DEADLINE_S = 30
TOTAL_CHIPS = 16


def host_pids(story: Story, name: str) -> dict[str, int]:
    ready = [each.event for each in read_events(story.directory(name)) if isinstance(each.event, HostReady)]
    return {event.host: event.pid for event in ready}


def free_chips(story: Story) -> float:
    """Chips that Ray has free, asked by a driver of its own."""
    code = (
        "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR');"
        "print(ray.available_resources().get('TPU', 0))"
    )
    with find(story.simulation, story.home) as cluster:
        command = [sys.executable, "-c", code, cluster.address]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return float(done.stdout.split()[-1])


def start_and_wait(story: Story, name: str, *settings: str) -> subprocess.Popen[str]:
    driver = story.start(*story.run_arguments(name, *LONG, *settings))
    wait_for("the first durable checkpoint", lambda: max(story.losses(name), default=0) >= 8)
    return driver


def assert_free(story: Story, pids: dict[str, int], since: float) -> None:
    wait_for(
        "every process of the run to be gone",
        lambda: not any(psutil.pid_exists(pid) for pid in pids.values()) and not processes_of(story),
        deadline_s=max(1.0, FREE_DEADLINE_S - (time.monotonic() - since)),
    )
    wait_for("all chips to be free", lambda: free_chips(story) == TOTAL_CHIPS, deadline_s=FREE_DEADLINE_S)


def assert_free_and_resumable(story: Story, name: str, pids: dict[str, int], since: float) -> None:
    assert_free(story, pids, since)
    last = max(story.losses(name))
    again = story.raytpu(
        *story.run_arguments(name, f"train.config.steps={last + 3}", "checkpoint.every_steps=5")
    )
    assert again.code == 0, again.err
    assert max(story.losses(name)) == last + 3


@pytest.mark.workflow
def test_after_the_driver_is_killed(story: Story):
    """An attached run ends with its driver; slices held by nobody are the costliest leak."""
    driver = start_and_wait(story, "no-driver")
    pids = host_pids(story, "no-driver")
    since = time.monotonic()
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    assert_free(story, pids, since)


@pytest.mark.thorough
def test_after_one_host_process_is_killed(story: Story):
    """The run fails with the name of the host, instead of hanging in its next collective."""
    driver = start_and_wait(story, "no-process", *ONE_ATTEMPT)
    pids = host_pids(story, "no-process")
    since = time.monotonic()
    os.kill(pids["slice-1/1"], signal.SIGKILL)
    _, err = driver.communicate(timeout=60)
    assert driver.returncode == 4, err
    assert "slice-1/1" in err
    assert "Traceback" not in err
    assert_free_and_resumable(story, "no-process", pids, since)


@pytest.mark.thorough
def test_after_one_raylet_is_killed(story: Story):
    """A machine that is gone takes its raylet along; its slice is whole again when one comes back."""
    driver = start_and_wait(story, "no-raylet", *ONE_ATTEMPT)
    pids = host_pids(story, "no-raylet")
    since = time.monotonic()
    with find(story.simulation, story.home) as cluster:
        cluster.lose_host("slice-1", 1)
        _, err = driver.communicate(timeout=90)
        assert driver.returncode == 4, err
        assert "slice-1/1" in err
        cluster.add_host("slice-1", 1)
    assert_free_and_resumable(story, "no-raylet", pids, since)


@pytest.mark.workflow
def test_after_ctrl_c(story: Story):
    """Ctrl-C is how most runs end."""
    driver = start_and_wait(story, "interrupted")
    pids = host_pids(story, "interrupted")
    since = time.monotonic()
    driver.send_signal(signal.SIGINT)
    _, err = driver.communicate(timeout=30)
    assert driver.returncode == 130, err
    assert_free(story, pids, since)


@pytest.mark.thorough
def test_after_sigterm(story: Story):
    """Kubernetes, systemd and `timeout` end a command by SIGTERM."""
    driver = start_and_wait(story, "terminated")
    pids = host_pids(story, "terminated")
    since = time.monotonic()
    driver.send_signal(signal.SIGTERM)
    _, err = driver.communicate(timeout=30)
    assert driver.returncode == 4, err
    assert "SIGTERM" in err
    assert "Traceback" not in err
    assert_free(story, pids, since)


@pytest.mark.thorough
def test_after_the_driver_is_frozen(story: Story):
    """To Ray a frozen driver is alive; it would hold its slices until somebody looks."""
    driver = start_and_wait(story, "frozen", "deadlines.orphan_grace_s=10")
    pids = host_pids(story, "frozen")
    since = time.monotonic()
    driver.send_signal(signal.SIGSTOP)
    wait_for("the hosts to end", lambda: not any(map(psutil.pid_exists, pids.values())), FREE_DEADLINE_S)
    wait_for("all chips to be free", lambda: free_chips(story) == TOTAL_CHIPS, FREE_DEADLINE_S)
    driver.send_signal(signal.SIGCONT)
    _, err = driver.communicate(timeout=60)
    assert driver.returncode == 4, err
    assert_free(story, pids, since)


@pytest.mark.workflow
def test_a_detached_run_is_found_by_name_and_stopped(story: Story):
    """A detached run outlives its command; nobody but its name leads back to it."""
    started = story.raytpu(*story.run_arguments("afar", *LONG), "--detach")
    assert started.code == 0, started.err
    wait_for("steps", lambda: max(story.losses("afar"), default=0) >= 6)
    status = story.raytpu("status", "afar")
    assert status.code == 0, status.err
    assert "running" in status.out
    refused = story.raytpu(*story.run_arguments("afar", *LONG))
    assert refused.code == 3, refused.err
    assert "raytpu stop afar" in refused.err
    pids = host_pids(story, "afar")
    since = time.monotonic()
    stopped = story.raytpu("stop", "afar")
    assert stopped.code == 0, stopped.err
    assert "stopped" in story.raytpu("status", "afar").out
    assert_free(story, pids, since)
