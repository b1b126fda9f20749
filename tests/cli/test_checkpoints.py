"""``raytpu checkpoints RUN``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from raytpu.checkpoint.manifest import read_facts, stored_sizes, write_manifest
from raytpu.checkpoint.quarantine import put_aside
from raytpu.cli.checkpoints import checkpoints
from raytpu.record import RunDirectory, remember_run

DAY_NS = 86_400 * 10**9


def checkpoint(directory: RunDirectory, step: int, *, manifest: bool = True) -> Path:
    """What Orbax and the manifest's writer leave."""
    where = Path(directory.checkpoints) / str(step)
    (where / "state").mkdir(parents=True)
    (where / "state" / "data").write_bytes(b"x" * 2048)
    (where / "commit_success.txt").write_text("")
    (where / "_CHECKPOINT_METADATA").write_text(json.dumps({"commit_timestamp_nsecs": step * DAY_NS}))
    if manifest:
        facts = read_facts(str(where), stored_sizes(str(where)))
        write_manifest(str(where), step, {n: each for n, each in facts.items() if not isinstance(each, str)})
    return where


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run that is known by name, without a checkpoint."""
    monkeypatch.setenv("RAYTPU_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TZ", "UTC")
    directory = RunDirectory.newest(str(tmp_path / "storage"), "demo")
    directory.create()
    remember_run(directory, str(tmp_path / "home" / "runs"))
    return directory


def invoke(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(checkpoints)
    return CliRunner().invoke(app, arguments)


def test_a_run_without_checkpoints_says_where_they_would_be(run: RunDirectory):
    result = invoke("demo")

    assert result.exit_code == 0
    assert result.stdout == f"run demo has no checkpoint in {run.checkpoints}\n"


def test_each_checkpoint_is_listed_with_what_is_known_of_it(run: RunDirectory):
    """Which one a run would go on from is a question that one should not have to ask the files."""
    checkpoint(run, 10, manifest=False)
    checkpoint(run, 20)
    checkpoint(run, 30)
    put_aside(run.checkpoints, 30, "state/data is missing")
    result = invoke("demo")

    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == run.checkpoints
    assert [line.split()[:4] for line in lines[1:5]] == [
        ["STEP", "STATE", "SIZE", "TIME"],
        ["10", "unverified", "2.0", "KiB"],
        ["20", "good", "2.0", "KiB"],
        ["30", "quarantined", "2.0", "KiB"],
    ]
    assert lines[3].split()[4:] == ["1970-01-21", "00:00:00"]
    assert "  state/data is missing" in lines
    assert "--verify reads them and compares checksums" in result.stdout


def test_a_damaged_checkpoint_ends_with_exit_code_four(run: RunDirectory):
    """A nightly check must not need to read the text."""
    (checkpoint(run, 10) / "state" / "data").write_bytes(b"y" * 2048)

    assert invoke("demo").exit_code == 0
    result = invoke("demo", "--verify")
    assert result.exit_code == 4
    assert f"step 10 ({run.checkpoints}/10) is damaged\n  state/data holds other bytes" in result.stdout


def test_a_machine_gets_json(run: RunDirectory):
    (checkpoint(run, 10) / "state" / "data").unlink()
    result = invoke("demo", "--output", "json")

    assert result.exit_code == 4
    document = json.loads(result.stdout)
    assert document["directory"] == run.checkpoints
    assert document["checksums_read"] is False
    [rung] = document["checkpoints"]
    assert rung == {
        "step": 10,
        "state": "damaged",
        "size": len(json.dumps({"commit_timestamp_nsecs": 10 * DAY_NS})),
        "time_s": 864_000.0,
        "path": f"{run.checkpoints}/10",
        "reasons": ["state/data is missing"],
    }
