"""``raytpu sim``: a newcomer's way to slices, with no word of Ray in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raytpu.cluster import find

pytestmark = pytest.mark.local_ray

RAYTPU = Path(sys.executable).with_name("raytpu")
TWO_HOSTS = ("--generation", "v6e", "--topology", "1x1", "--count", "2")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Where simulations are recorded; one that a failed test left is stopped."""
    yield tmp_path
    sim(tmp_path, "down")


def sim(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(RAYTPU), "sim", *arguments],
        env=os.environ | {"RAYTPU_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_up_status_down(home: Path):
    """The whole life of a simulation, as the README tells it."""
    up = sim(home, "up", *TWO_HOSTS)
    assert up.returncode == 0, up.stderr
    assert "default: up, Ray at 127.77." in up.stdout
    assert "2 slices, 2 of 2 hosts alive" in up.stdout
    assert "raytpu run FILE --on sim:default" in up.stdout
    assert "Traceback" not in up.stderr

    again = sim(home, "up", *TWO_HOSTS)
    assert again.returncode == 3
    assert "raytpu sim down --name default" in again.stderr

    with find("default", home) as simulation:
        simulation.lose_host("slice-1", 0)
        directory = simulation.directory
    status = sim(home, "status")
    assert "1 of 2 hosts alive" in status.stdout
    assert "host 0 at 127.77." in status.stdout
    assert "lost (lost on request (SIGKILL))" in status.stdout

    down = sim(home, "down")
    assert (down.returncode, down.stdout) == (0, "simulation default is down\n")
    assert not os.path.exists(directory)
    assert sim(home, "down").returncode == 2
    assert sim(home, "status").stdout.startswith("no simulation is up")


def test_json_for_machines(home: Path):
    """Scripts read addresses from here."""
    up = json.loads(sim(home, "up", *TWO_HOSTS, "--output", "json").stdout)
    status = json.loads(sim(home, "status", "--output", "json").stdout)

    assert up["state"] == "up"
    assert [each["address"] for each in status["simulations"]] == [up["address"]]
    assert [host["state"] for each in up["slices"] for host in each["hosts"]] == ["up", "up"]
    assert json.loads(sim(home, "down", "--output", "json").stdout) == {"name": "default", "state": "down"}


def test_a_stale_simulation_is_shown_and_cleared(home: Path):
    """A machine that lost power has a record and nothing behind it."""
    assert sim(home, "up", *TWO_HOSTS).returncode == 0
    record = home / "sims" / "default.json"
    content = record.read_text()
    assert sim(home, "down").returncode == 0
    record.write_text(content)

    assert "stale, its keeper" in sim(home, "status").stdout
    assert sim(home, "down").returncode == 0
    assert not record.exists()


def test_ctrl_c_while_starting_leaves_nothing(home: Path):
    """The first thing that an impatient user does."""
    command = subprocess.Popen(
        [str(RAYTPU), "sim", "up", *TWO_HOSTS],
        env=os.environ | {"RAYTPU_HOME": str(home)},
        stderr=subprocess.PIPE,
        text=True,
    )
    record = home / "sims" / "default.json"
    end = time.monotonic() + 30
    while not record.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    directory = json.loads(record.read_text())["directory"]

    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=30)

    assert command.returncode == 130, err
    assert not record.exists()
    assert not os.path.exists(directory)
