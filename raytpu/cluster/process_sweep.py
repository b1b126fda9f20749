"""Find, kill, stop and continue every process of a simulated host: race-free, with a deadline."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterable

import psutil

from raytpu.cluster.simulation_plan import HOST_MARKER

SWEEP_DEADLINE_S = 10.0
"""A SIGKILLed process is gone within milliseconds; this long only when it hangs in the kernel."""


def marked_processes(marker: str, leaders: Collection[int] = ()) -> list[psutil.Process]:
    """Living processes of the hosts whose marker is ``marker`` or, when it ends in ``/``, starts so.

    A process belongs when its environment says so or when its session or group is led by one of
    ``leaders``: a forked process shows the environment of its parent until it executes a program.
    """
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.pid in leaders or _led_by(process.pid, leaders) or _has_marker(process, marker)
            if ours and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError, PermissionError):
            continue  # gone meanwhile, or another user's and so not ours
    return found


def kill_marked(
    marker: str, leaders: Collection[int] = (), deadline_s: float = SWEEP_DEADLINE_S
) -> list[int]:
    """SIGKILL until nothing of the hosts is left; returns the processes that outlived the deadline."""
    return _until_none(lambda: marked_processes(marker, leaders), lambda process: process.kill(), deadline_s)


def terminate_marked(marker: str, leaders: Collection[int] = ()) -> None:
    """SIGTERM everything once: what a machine does that is about to go away."""
    _signal_each(marked_processes(marker, leaders), lambda process: process.terminate())


def stop_marked(
    marker: str, leaders: Collection[int] = (), deadline_s: float = SWEEP_DEADLINE_S
) -> list[int]:
    """SIGSTOP until everything is stopped; returns the processes that still run at the deadline."""

    def running() -> list[psutil.Process]:
        return [each for each in marked_processes(marker, leaders) if _status(each) not in _STANDING]

    return _until_none(running, lambda process: process.suspend(), deadline_s)


def continue_marked(
    marker: str, leaders: Collection[int] = (), deadline_s: float = SWEEP_DEADLINE_S
) -> list[int]:
    """SIGCONT until nothing is stopped; returns the processes that are still stopped at the deadline."""

    def stopped() -> list[psutil.Process]:
        return [each for each in marked_processes(marker, leaders) if _status(each) == psutil.STATUS_STOPPED]

    return _until_none(stopped, lambda process: process.resume(), deadline_s)


def process_lives(pid: int, created_s: float) -> bool:
    """True when ``pid`` is the very process that was created at ``created_s``, and no zombie."""
    try:
        process = psutil.Process(pid)
        # 1 s: create_time() is computed from the boot time, which moves with clock corrections.
        return abs(process.create_time() - created_s) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def remove_directory(path: str) -> bool:
    """Remove a simulation's directory, already gone or not; ``False`` when something of it stays."""
    for _ in range(20):
        shutil.rmtree(path, ignore_errors=True)  # what fails is tried again, and told
        if not os.path.exists(path):
            return True
        time.sleep(0.1)  # something was still being written there
    return False


_STANDING = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD, psutil.STATUS_TRACING_STOP)


def _until_none(
    find: Callable[[], list[psutil.Process]], act: Callable[[psutil.Process], None], deadline_s: float
) -> list[int]:
    deadline = time.monotonic() + deadline_s
    empty_passes = 0
    while True:
        left = find()
        if not left:
            # Two passes: a process that forks and ends during the first is missed with its child.
            empty_passes += 1
            if empty_passes == 2:
                return []
            continue
        empty_passes = 0
        if time.monotonic() > deadline:
            return sorted(process.pid for process in left)
        _signal_each(left, act)
        time.sleep(0.005)  # lets the kernel take the processes down before the next look


def _signal_each(processes: Iterable[psutil.Process], act: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        try:
            act(process)
        except psutil.NoSuchProcess:
            continue


def _has_marker(process: psutil.Process, marker: str) -> bool:
    value = process.environ().get(HOST_MARKER, "")
    return value.startswith(marker) if marker.endswith("/") else value == marker


def _led_by(pid: int, leaders: Collection[int]) -> bool:
    return bool(leaders) and (os.getsid(pid) in leaders or os.getpgid(pid) in leaders)


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_DEAD)


def signal_name(status: int) -> str:
    """How a child ended, in words, from the status that ``waitpid`` gave."""
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit code {os.WEXITSTATUS(status)}"
