"""Real host processes on this machine, without Ray: one Python each, joined by JAX over loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

ROOT = Path(__file__).parents[2]

# 90 s: a start takes 3 s on an idle core, and the machine may run other tests.
DEADLINE_S = 90

PRELUDE = """
import json, os, sys
from tests.runtime.builders import assignment, mesh_plan
index, coordinator, given = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])

def answer(value):
    print("ANSWER " + json.dumps(value), flush=True)

def start(slices=2, hosts=2, devices=4, jax_init_s=60, heartbeat_s=60, cache_dir=None, **changes):
    from raytpu.runtime import start_process
    me = assignment(index, slices=slices, hosts=hosts, devices=devices, **changes)
    return me, start_process(
        me, coordinator, jax_init_s=jax_init_s, heartbeat_s=heartbeat_s, cache_dir=cache_dir
    )
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEnd:
    """How a host process ended."""

    returncode: int
    answers: list[Any]
    """What the program passed to ``answer``, in order."""
    output: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def spawn(
    program: str,
    index: int,
    coordinator: str,
    output: IO[str],
    environment: dict[str, str] | None = None,
    **given: Any,
) -> subprocess.Popen[str]:
    """One host process; ``program`` sees ``index``, ``coordinator``, ``given``, ``start`` and ``answer``."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            PRELUDE + textwrap.dedent(program),
            str(index),
            coordinator,
            json.dumps(given),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | (environment or {}),
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_hosts(
    program: str,
    count: int | None = None,
    *,
    indices: tuple[int, ...] | None = None,
    environment: dict[str, str] | None = None,
    **given: Any,
) -> list[HostEnd]:
    """Run ``program`` on every host and return their ends, in order; none outlives this call."""
    coordinator = f"127.0.0.1:{free_port()}"
    chosen = indices if indices is not None else tuple(range(count or 1))
    with ExitStack() as stack:
        outputs = [stack.enter_context(TemporaryFile("w+")) for _ in chosen]
        processes = [
            spawn(program, index, coordinator, output, environment, **given)
            for index, output in zip(chosen, outputs, strict=True)
        ]
        end = time.monotonic() + DEADLINE_S
        try:
            for process in processes:
                process.wait(timeout=max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            pass  # killed below; its return code says so
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return [end_of(process, output) for process, output in zip(processes, outputs, strict=True)]


def end_of(process: subprocess.Popen[str], output: IO[str]) -> HostEnd:
    output.seek(0)
    text = output.read()
    answers = [json.loads(line.split("ANSWER ", 1)[1]) for line in text.splitlines() if "ANSWER " in line]
    return HostEnd(returncode=process.returncode, answers=answers, output=text)


def answers_of(ends: list[HostEnd]) -> list[Any]:
    """The one answer of each host; fails with the output of a host that did not give it."""
    for end in ends:
        assert end.returncode == 0, end.output
        assert len(end.answers) == 1, end.output
    return [end.answers[0] for end in ends]
