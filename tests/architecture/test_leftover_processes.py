"""The check at the end of every session can see what it is there to see."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.architecture.project_files import python_files
from tests.leftover_processes import HOST_VARIABLE, SESSION_VARIABLE, await_no_leftovers, find_leftovers

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def start(**environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(SLEEP, env={**os.environ, **environment}, start_new_session=True)


def test_a_host_that_outlives_its_cluster_is_named_and_killed() -> None:
    """A leaked raylet holds memory and ports until the machine is restarted, and nobody knows whose it is."""
    process = start(**{HOST_VARIABLE: "slice-0/3"})

    lines = await_no_leftovers(deadline_s=0.5)

    assert len(lines) == 1
    assert f"{process.pid} slice-0/3" in lines[0]
    assert process.wait(timeout=10) != 0


def test_hosts_of_other_people_on_the_machine_are_left_alone() -> None:
    """Killing another session's simulated slices would be a failure nobody could explain."""
    process = start(**{HOST_VARIABLE: "slice-0/0", SESSION_VARIABLE: "another"})
    try:
        assert process.pid not in {found.pid for found in find_leftovers()}
    finally:
        process.kill()
        process.wait()


def test_the_variable_looked_for_is_the_one_that_hosts_carry() -> None:
    """Renamed in one place only, the check at the end of every session would find nothing for ever."""
    assert any(f'"{HOST_VARIABLE}"' in path.read_text() for path in python_files("raytpu/cluster"))
