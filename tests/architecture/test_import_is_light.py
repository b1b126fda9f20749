"""Importing starts nothing and loads nothing heavy, so that words answer at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.architecture.project_files import output_of

HEAVY = ("ray", "jax", "jaxlib", "flax", "numpy", "pandas", "pyarrow", "orbax", "kubernetes")

HELP_LIMIT_S = 0.5


def test_importing_raytpu_and_its_command_line_loads_neither_ray_nor_jax() -> None:
    """``raytpu plan`` on a laptop would take seconds, and a driver would take the chips of its host."""
    loaded = output_of(
        f"import sys, raytpu, raytpu.cli.main; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    )

    assert loaded == "[]"


def test_importing_raytpu_starts_no_thread_and_leaves_logging_alone() -> None:
    """An import with effects surprises whoever embeds raytpu in a program of their own."""
    code = (
        "import logging, threading; before = (list(logging.root.handlers), logging.root.level);"
        "import raytpu, raytpu.cli.main;"
        "print(threading.active_count(), before == (list(logging.root.handlers), logging.root.level))"
    )

    assert output_of(code) == "1 True"


def cpu_seconds(command: list[str]) -> float:
    """CPU time, user and system, of one run of ``command``, which must succeed."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        assert time.monotonic() < deadline, f"{command} did not end"
        time.sleep(0.01)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def test_help_answers_in_half_a_second_of_cpu_time() -> None:
    """A command line that thinks before it says what it can do is not explored. Best of five: the machine may
    be busy, and the first run compiles bytecode.
    """
    raytpu = str(Path(sys.executable).with_name("raytpu"))

    assert min(cpu_seconds([raytpu, "--help"]) for _ in range(5)) < HELP_LIMIT_S
