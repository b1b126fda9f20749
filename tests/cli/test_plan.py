from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from raytpu.cli.plan import plan
from raytpu.errors import SpecError, WorkloadInvalid

DOCUMENT = """\
name: tiny
slices: {generation: v6e, topology: 2x4, chips_per_host: 4, count: 2}
train:
  entrypoint: raytpu.recipes.pretrain:train
  config: {steps: 200, global_batch: 32, sequence_length: 128}
checkpoint: {path: /runs, every_steps: 50}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(DOCUMENT, encoding="utf-8")
    return path


def invoke(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(plan)
    return CliRunner().invoke(app, arguments)


def test_a_plan_is_explained_to_a_person(file: Path) -> None:
    result = invoke(str(file))

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("tiny: 2 slices of v6e 2x4, 4 hosts, 16 chips, simulated on CPU\n")
    assert result.stderr == ""


def test_json_output_is_nothing_but_json(file: Path) -> None:
    """A line of talk on stdout breaks every script that reads it."""
    document = json.loads(invoke(str(file), "--output", "json").stdout)

    assert document["workload"]["name"] == "tiny"


def test_set_overrides_the_file(file: Path) -> None:
    """What is planned must be what `run` with the same options does."""
    arguments = ("--set", "train.config.steps=7", "--set", "slices.count=1", "--output", "json")

    document = json.loads(invoke(str(file), *arguments).stdout)

    assert document["steps"]["steps"] == 7
    assert len(document["slices"]) == 1


def test_a_wrong_file_names_itself(file: Path) -> None:
    """With several files at hand, an error without the name sends the user to the wrong one."""
    file.write_text(DOCUMENT.replace("count: 2", "count: 0"), encoding="utf-8")

    error = invoke(str(file)).exception

    assert isinstance(error, WorkloadInvalid)
    assert error.source == str(file)


def test_a_file_that_is_not_text_is_a_wrong_request(file: Path) -> None:
    file.write_bytes(b"name: \xff\xfe")

    error = invoke(str(file)).exception

    assert isinstance(error, SpecError)
    assert "not a UTF-8 text file" in str(error)


@pytest.mark.parametrize("arguments", [("/no/such/file.yaml",), ("--output", "xml"), ()])
def test_wrong_usage_has_exit_code_2(arguments: tuple[str, ...]) -> None:
    assert invoke(*arguments).exit_code == 2
