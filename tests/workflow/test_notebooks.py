"""Every notebook runs from its first cell to its last, on simulated slices."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.workflow.conftest import REPOSITORY

pytestmark = pytest.mark.workflow

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


def shorten(notebook: nbformat.NotebookNode) -> None:
    """Train for a third of the steps: half a minute less, and every cell still does what it does."""
    shortened = 0
    for cell in notebook.cells:
        if cell.cell_type == "code" and '"steps": 60' in cell.source:
            cell.source = cell.source.replace('"steps": 60', '"steps": 20')
            shortened += 1
    assert shortened == 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_to_its_end(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A notebook that nobody runs is broken by the next change of an interface."""
    # A Ray that ran in this process leaves its settings in the environment, such as that there is a token
    # to authenticate with, which lies in the real home.
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAYTPU_HOME", str(tmp_path / "home"))
    notebook = nbformat.read(path, as_version=4)
    shorten(notebook)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no figure was drawn"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path):
    """Outputs in the repository are somebody's old numbers."""
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code")
