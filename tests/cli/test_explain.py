"""``raytpu explain`` where no book knows the run: its record tells, or what is near."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raytpu.cli.main import exit_code_of
from raytpu.record import (
    AttemptEnded,
    AttemptStarted,
    EventLog,
    RunDirectory,
    RunEnded,
    RunLease,
    RunStarted,
    StateChanged,
    remember_run,
)

NOBODY = "127.0.0.1:1"
WAITED = "need 1 whole v6e 2x4 (2 × 4 chips) slice: 1 busy\n  slice-0: held by llm"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run that waited, ran, and failed."""
    monkeypatch.setenv("RAYTPU_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAY_ADDRESS", NOBODY)
    directory = RunDirectory.newest(str(tmp_path / "storage"), "demo")
    with EventLog(directory, "driver") as driver:
        driver.write(RunStarted(run="demo", steps=10, cluster="10.0.0.1:6379"))
        driver.write(StateChanged(state="waiting", reason=WAITED))
        driver.write(AttemptStarted(attempt=1))
        driver.write(StateChanged(state="running"))
        driver.write(AttemptEnded(ending="program_failed", reason="ValueError: no"))
        driver.write(RunEnded(outcome="failed", reason="ValueError: no"))
    remember_run(directory, str(tmp_path / "home" / "runs"))
    return directory


@pytest.mark.usefixtures("run")
def test_a_run_that_no_book_knows_is_explained_from_its_record(capsys: pytest.CaptureFixture[str]) -> None:
    """The cluster may be gone by the time that somebody asks."""
    assert exit_code_of(["explain", "demo"]) == 0

    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "demo: its record says: failed"
    assert [line.rstrip() for line in rest] == [
        f"  book      no cluster was asked: nothing listens at {NOBODY} (Connection refused); is the cluster "
        "up, and is it the address of its head, as `raytpu sim status` shows it?",
        "  reason    ValueError: no",
        "  waited    need 1 whole v6e 2x4 (2 × 4 chips) slice: 1 busy",
        "              slice-0: held by llm",
        "  attempts  program_failed",
        "  next      read `raytpu logs demo --tail 50`, then run the same file again to go on from the "
        "beginning",
    ]


def test_a_run_is_found_by_its_directory_too(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(["explain", run.url]) == 0

    assert capsys.readouterr().out.startswith("demo: its record says: failed\n")


def test_a_live_run_of_another_cluster_says_which(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its slices are in a book that was not asked."""
    with EventLog(run, "driver") as driver:
        driver.write(RunStarted(run="demo", cluster="10.0.0.1:6379"))
        driver.write(StateChanged(state="waiting", reason=WAITED))
    with RunLease.take(run):
        assert exit_code_of(["explain", "demo"]) == 0

    printed = capsys.readouterr().out
    assert printed.startswith("demo: its record says: waiting\n")
    assert "its slices are those of another cluster: --on 10.0.0.1:6379" in printed
    assert printed.count("held by llm") == 1, "the reason for waiting is not said twice"


@pytest.mark.usefixtures("run")
def test_a_machine_gets_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(["explain", "demo", "--output", "json"]) == 0

    [explained] = json.loads(capsys.readouterr().out)["explanations"]
    assert (explained["owner"], explained["state"], explained["last_wait"]) == ("demo", "failed", WAITED)
    assert {"sentence", "slices", "next_step"} <= explained.keys()


@pytest.mark.usefixtures("run")
def test_a_cluster_that_was_asked_for_by_name_must_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """Else the record of yesterday would pass for what that cluster says now."""
    assert exit_code_of(["explain", "demo", "--on", NOBODY]) == 3

    assert f"nothing listens at {NOBODY}" in capsys.readouterr().err


@pytest.mark.usefixtures("run")
def test_an_unknown_run_says_what_was_searched_and_what_is_near(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(["explain", "dem"]) == 2

    error = capsys.readouterr().err
    assert "no cluster was asked" in error
    assert "did you mean demo?" in error


WRONG = {
    "a file that is not there": (("missing.yaml",), "no workload file missing.yaml"),
    "an override of a name": (("demo", "--set", "slices.count=1"), "'demo' is none"),
}


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(("arguments", "says"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_request_says_what_is_wrong(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(["explain", *arguments]) == 2

    assert says in capsys.readouterr().err


@pytest.mark.usefixtures("run")
def test_a_workload_needs_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether it fits cannot be told without one."""
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\nslices: {generation: v6e, topology: 2x2}\ntrain: {entrypoint: 'mine:train'}\n"
        "checkpoint: {path: ~/runs, every_steps: 1}\n"
    )

    assert exit_code_of(["explain", str(file)]) == 3
    assert f"nothing listens at {NOBODY}" in capsys.readouterr().err
