"""Which processes of simulated hosts, started by this test session, are still there."""

from __future__ import annotations

import os
import time
import uuid

import psutil

SESSION_VARIABLE = "RAYTPU_TEST_SESSION"
"""Every process that the session starts inherits it, also one whose parent is gone."""

HOST_VARIABLE = "RAYTPU_SIM_HOST"
"""Set by ``raytpu.cluster`` in every process of a simulated host."""


def mark_this_session() -> None:
    """Make this session's processes recognisable, so that others on the machine are not taken for them."""
    os.environ[SESSION_VARIABLE] = uuid.uuid4().hex


def find_leftovers() -> list[psutil.Process]:
    """Live processes that carry both variables; those of other users cannot be read and are passed over."""
    session = os.environ[SESSION_VARIABLE]
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            alive = process.status() != psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if alive and HOST_VARIABLE in environment and environment.get(SESSION_VARIABLE) == session:
            found.append(process)
    return found


def await_no_leftovers(deadline_s: float) -> list[str]:
    """One line for each process that is still there after ``deadline_s``; those are killed."""
    end = time.monotonic() + deadline_s
    while (leftovers := find_leftovers()) and time.monotonic() < end:
        time.sleep(0.2)
    lines = []
    for process in leftovers:
        try:
            host = process.environ()[HOST_VARIABLE]
            lines.append(f"{process.pid} {host}: {' '.join(process.cmdline())[:200]}")
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return lines
