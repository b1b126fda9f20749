"""``raytpu status RUN``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from raytpu.cli.status import status
from raytpu.errors import UnknownRun
from raytpu.launch.explain import explain_record
from raytpu.launch.status import run_status
from raytpu.record import (
    AttemptStarted,
    CheckpointDurable,
    EventLog,
    RunDirectory,
    RunEnded,
    RunLease,
    RunStarted,
    StateChanged,
    StepFinished,
    remember_run,
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run of three steps, at which its driver was killed."""
    monkeypatch.setenv("RAYTPU_HOME", str(tmp_path / "home"))
    directory = RunDirectory.newest(str(tmp_path / "storage"), "demo")
    with EventLog(directory, "driver") as driver, EventLog(directory, "slice-0/0", attempt=1) as host:
        driver.write(RunStarted(run="demo", steps=10))
        driver.write(AttemptStarted(attempt=1))
        driver.write(StateChanged(state="running"))
        for step in (1, 2, 3):
            host.write(StepFinished(step=step, seconds=0.5, metrics={"loss": 6.0 - step}, tokens=512))
        host.write(CheckpointDurable(step=2, path=f"{directory.checkpoints}/2"))
    remember_run(directory, str(tmp_path / "home" / "runs"))
    return directory


def invoke(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(status)
    return CliRunner().invoke(app, arguments)


def test_a_run_whose_driver_was_killed_is_lost_and_can_be_resumed(run):
    """`running` for a dead run makes a person wait for nothing."""
    result = invoke("demo")

    assert result.exit_code == 0
    assert result.stdout.startswith("run demo: driver lost\n")
    assert "steps        3 of 10, loss 5.0000 → 3.0000\n" in result.stdout
    assert f"checkpoint   step 2 is durable, not verified: {run.checkpoints}/2\n" in result.stdout
    assert "next         run the same file again to go on from step 2\n" in result.stdout
    assert f"directory    {run.url}\n" in result.stdout


def test_a_run_with_a_live_driver_is_in_the_state_that_it_told(run):
    """And the driver is named, for whoever wants to look at it."""
    with RunLease.take(run):
        result = invoke("demo")

    assert result.stdout.startswith("run demo: running\n")
    assert re.search(r"driver +process \d+ on \S+, last heartbeat 0 s ago\n", result.stdout)
    assert "raytpu stop demo" in result.stdout


def test_a_fresh_lineage_does_not_lend_its_driver_to_the_old_one(run):
    """The old lineage would look alive."""
    with RunLease.take(RunDirectory.at(f"{run.run_url}/002")):
        assert invoke(run.url).stdout.startswith("run demo: driver lost\n")


def test_a_finished_run_says_so(run):
    """With the reason, had there been one."""
    with EventLog(run, "driver") as driver:
        driver.write(RunEnded(outcome="finished"))

    assert invoke(run.run_url).stdout.startswith("run demo: finished\n")


def test_a_machine_gets_json(run):
    """Scripts that wait for a run need its state and nothing else."""
    document = json.loads(invoke("demo", "--output", "json").stdout)

    assert (document["state"], document["last_step"], document["last_durable_step"]) == ("driver lost", 3, 2)
    assert document["directory"] == run.url
    assert document["driver"] is None


@pytest.mark.usefixtures("run")
def test_an_unknown_run_is_an_error_with_a_suggestion():
    """Exit code 2: the request cannot be right."""
    result = invoke("dem")

    assert isinstance(result.exception, UnknownRun)
    assert "did you mean demo?" in str(result.exception)


@pytest.mark.usefixtures("run")
def test_no_colour_gets_into_a_pipe():
    """Escape codes in a log file are noise."""
    assert "\x1b" not in invoke("demo").stdout


def test_a_driver_that_has_been_silent_too_long_is_not_running(run):
    """`running` for a frozen driver whose slices were taken back makes a person wait for nothing."""
    with RunLease.take(run) as lease:
        path = Path(run.run_url) / "driver.json"
        silent = json.loads(path.read_text()) | {"heartbeat_s": lease.driver.heartbeat_s - 33}
        path.write_text(json.dumps(silent))

        result = invoke("demo")
        explained = explain_record(run_status(run), "", "none is there")

    assert result.stdout.startswith("run demo: driver silent\n")
    assert "driver silent for 33 s; its slices are taken back after 30 s\n" in result.stdout
    assert "or end it; once it is gone, run the same file again to go on from step 2\n" in result.stdout
    assert explained.state == "driver silent"
    assert dict(explained.notes)["driver"] == str(lease.driver)
