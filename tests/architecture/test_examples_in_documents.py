"""What a document shows can be copied."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import raytpu
from raytpu.spec import parse_workload
from tests.architecture.project_files import ROOT, project_files, shown


def blocks(language: str) -> list[tuple[Path, str]]:
    """The fenced blocks of one language in every document."""
    pattern = re.compile(rf"^```{language}\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
    documents = [path for path in project_files() if path.suffix == ".md"]
    return [
        (path, block) for path in documents for block in pattern.findall(path.read_text(encoding="utf-8"))
    ]


def named(block: tuple[Path, str]) -> str:
    return shown(block[0])


@pytest.mark.parametrize("block", blocks("python"), ids=named)
def test_python_in_a_document_parses_and_imports_what_there_is(block: tuple[Path, str]) -> None:
    """A first program that fails at its first line is the last one."""
    imported = {
        alias.name
        for node in ast.walk(ast.parse(block[1]))
        if isinstance(node, ast.ImportFrom) and node.module == "raytpu"
        for alias in node.names
    }

    assert imported <= set(raytpu.__all__)


@pytest.mark.parametrize("block", blocks("yaml"), ids=named)
def test_a_workload_in_a_document_is_valid(block: tuple[Path, str]) -> None:
    """A copied example that is refused teaches that the documentation lies."""
    parse_workload(block[1], source=shown(block[0]))


def test_the_workload_that_the_readme_explains_is_the_one_the_demo_runs() -> None:
    """The explanation would otherwise drift from what a newcomer sees on the screen."""
    explained = [block for path, block in blocks("yaml") if path == ROOT / "README.md"]
    file = (ROOT / "deploy/workloads/stdlib-gpt.yaml").read_text(encoding="utf-8")

    assert parse_workload(explained[0]) == parse_workload(file)
