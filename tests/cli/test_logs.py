"""``raytpu logs RUN``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from raytpu.cli.logs import logs
from raytpu.errors import WrongRequest
from raytpu.record import RunDirectory, RunLease, remember_run
from raytpu.record.storage import join_url

PROGRAM = """
import typer
from raytpu.cli.logs import logs
app = typer.Typer()
app.command()(logs)
app(standalone_mode=False)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run with two attempts; the second has two hosts."""
    monkeypatch.setenv("RAYTPU_HOME", str(tmp_path / "home"))
    directory = RunDirectory.newest(str(tmp_path / "storage"), "demo")
    print_lines(directory, 1, "slice-0/0", "12:00:00.000 slice-0/0 out| old")
    print_lines(directory, 2, "slice-0/0", "12:30:00.000 slice-0/0 out| a", "12:30:02.000 slice-0/0 err| c")
    print_lines(directory, 2, "slice-0/1", "12:30:01.000 slice-0/1 out| b")
    remember_run(directory, str(tmp_path / "home" / "runs"))
    return directory


def print_lines(directory: RunDirectory, attempt: int, host: str, *lines: str) -> None:
    path = Path(join_url(directory.logs(attempt), host.replace("/", "-host") + ".log"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def invoke(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(logs)
    return CliRunner().invoke(app, arguments)


def follow(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.usefixtures("run")
def test_all_hosts_of_the_newest_attempt_are_merged():
    """The last attempt is the one that is asked about."""
    assert invoke("demo").stdout == (
        "12:30:00.000 slice-0/0 out| a\n12:30:01.000 slice-0/1 out| b\n12:30:02.000 slice-0/0 err| c\n"
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--host", "slice-0/1"], ["b"]),
        (["--attempt", "1"], ["old"]),
        (["--tail", "2"], ["b", "c"]),
        (["--tail", "1", "--host", "slice-0/0"], ["c"]),
        (["--tail", "0"], []),
    ],
)
@pytest.mark.usefixtures("run")
def test_options_choose_lines(options, expected):
    """Of 16 hosts, one is usually meant."""
    lines = invoke("demo", *options).stdout.splitlines()

    assert [line.rpartition("| ")[2] for line in lines] == expected


@pytest.mark.usefixtures("run")
def test_a_machine_gets_one_object_a_line():
    """A line may contain anything; only JSON says where the host ends."""
    first = invoke("demo", "--output", "json").stdout.splitlines()[0]

    assert json.loads(first) == {"host": "slice-0/0", "text": "12:30:00.000 slice-0/0 out| a"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--attempt", "7"], "attempt 7 of run 'demo' has no logs; attempts with logs: 1, 2"),
        (
            ["--host", "slice-9/0"],
            "no log of host 'slice-9/0' in attempt 2 of run 'demo'; hosts with logs: slice-0/0, slice-0/1",
        ),
    ],
)
@pytest.mark.usefixtures("run")
def test_what_is_not_there_is_refused_with_what_is(options, message):
    """An empty answer would look like a silent host."""
    error = invoke("demo", *options).exception

    assert isinstance(error, WrongRequest)
    assert re.search(message, str(error))


def test_a_run_without_logs_says_so(run):
    """Nothing at all looks like a broken command."""
    directory = RunDirectory.fresh(run.root, "demo")
    directory.write_workload("name: demo")
    result = invoke("demo")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "has no logs yet" in result.stderr


@pytest.mark.usefixtures("run")
def test_following_ends_with_the_run():
    """A follower of a finished run would hang for ever."""
    process = follow("demo", "--follow")
    out, err = process.communicate(timeout=60)

    assert process.returncode == 0, err
    assert len(out.splitlines()) == 3


def test_following_goes_on_into_the_next_attempt(run):
    """After a lost slice the interesting lines are in the new attempt."""
    with RunLease.take(run):
        process = follow("demo", "--follow", "--tail", "1")
        assert process.stdout.readline() == "12:30:02.000 slice-0/0 err| c\n"
        print_lines(run, 2, "slice-0/1", "12:30:03.000 slice-0/1 out| d")
        assert process.stdout.readline() == "12:30:03.000 slice-0/1 out| d\n"
        print_lines(run, 3, "slice-1/0", "12:40:00.000 slice-1/0 out| e")
        assert process.stdout.readline() == "12:40:00.000 slice-1/0 out| e\n"
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (0, ""), err


def test_a_reader_that_has_enough_ends_the_command_quietly(run):
    """`raytpu logs RUN | head` must not end in a traceback."""
    print_lines(run, 2, "slice-0/0", *("12:31:00.000 slice-0/0 out| " + "x" * 200 for _ in range(5000)))
    process = follow("demo")
    process.stdout.readline()
    process.stdout.close()
    end = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < end:
        threading.Event().wait(0.02)

    assert process.returncode == 0
    assert process.stderr.read() == ""
    process.stderr.close()
