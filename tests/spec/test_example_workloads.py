"""The files that people copy are valid."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from raytpu.spec import parse_workload, workload_schema

FOLDER = Path(__file__).parents[2] / "deploy" / "workloads"
FILES = sorted(FOLDER.glob("*.yaml"))


def test_there_are_examples() -> None:
    """A moved folder would make the tests below pass on nothing."""
    assert FOLDER / "stdlib-gpt.yaml" in FILES


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_example_is_valid_and_named_like_its_file(file: Path) -> None:
    """An example that is refused is the first thing that a newcomer sees."""
    text = file.read_text(encoding="utf-8")

    assert parse_workload(text, file.name).name == file.stem
    jsonschema.validate(yaml.safe_load(text), workload_schema())
