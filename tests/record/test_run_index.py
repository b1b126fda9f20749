"""Finding a run by what a person types."""

from __future__ import annotations

import shutil
import sys
import uuid
from pathlib import Path

import pytest

from raytpu.errors import StorageError, UnknownRun
from raytpu.record import RunDirectory, find_run, known_runs, remember_run

WORKLOAD = """\
name: demo
slices: {{generation: v6e, topology: 2x4, chips_per_host: 4, count: 1}}
train: {{entrypoint: "pkg.mod:train"}}
checkpoint: {{path: {root}, every_steps: 5}}
"""


@pytest.fixture
def index(tmp_path):
    return str(tmp_path / "home" / "runs")


@pytest.fixture
def run(tmp_path, index):
    directory = RunDirectory.newest(str(tmp_path / "storage"), "demo")
    directory.write_workload("name: demo")
    remember_run(directory, index)
    return directory


def test_a_run_is_found_by_name(run, index):
    """Nobody remembers where a detached run of last week keeps its checkpoints."""
    assert find_run("demo", index) == run
    assert known_runs(index) == ["demo"]


def test_a_name_means_the_newest_lineage_even_if_another_machine_made_it(run, index):
    """Status of an abandoned lineage would look like a run that hangs."""
    fresh = RunDirectory.fresh(run.root, "demo")
    fresh.write_workload("name: demo")

    assert find_run("demo", index) == fresh


def test_a_run_is_found_by_its_directory(run, index):
    """Runs of another machine are in no index here."""
    assert find_run(run.url, index) == run
    assert find_run(run.run_url, index) == run


def test_a_run_on_an_object_store_is_found_by_its_url(index):
    """The usual place of a run on real slices."""
    directory = RunDirectory.newest(f"memory://{uuid.uuid4().hex}", "demo")
    directory.write_workload("name: demo")

    assert find_run(directory.run_url, index) == directory


def test_a_run_is_found_by_its_workload_file(run, index, tmp_path):
    """The file is what a person has at hand."""
    file = tmp_path / "demo.yaml"
    file.write_text(WORKLOAD.format(root=run.root))

    assert find_run(str(file), index) == run


@pytest.mark.usefixtures("run")
def test_an_unknown_name_gets_a_suggestion_and_what_was_searched(index, tmp_path, monkeypatch):
    """`not found` leaves a person guessing where raytpu looked."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownRun) as caught:
        find_run("demmo", index)

    assert str(caught.value) == (
        "no run 'demmo'; searched:\n"
        f"  name demmo: not in the index {index}\n"
        f"  directory {tmp_path}/demmo: not there\n"
        "did you mean demo?\n"
        "give the name of a run, its directory, or its workload file"
    )


def test_a_run_whose_directory_is_gone_is_said_to_be_gone(run, index):
    """An empty status would suggest that it never began."""
    shutil.rmtree(run.run_url)

    with pytest.raises(UnknownRun, match=f"name demo: lay in {run.run_url}, which is gone"):
        find_run("demo", index)


def test_a_workload_file_that_was_never_run_is_said_so(index, tmp_path):
    """It is no mistake in the file."""
    file = tmp_path / "demo.yaml"
    file.write_text(WORKLOAD.format(root=tmp_path / "storage"))

    with pytest.raises(UnknownRun, match=f"its run would lie in {tmp_path}/storage/demo, where nothing is"):
        find_run(str(file), index)


def test_a_folder_that_is_no_run_is_refused(index, tmp_path):
    """Taking any folder for a run shows nonsense."""
    with pytest.raises(UnknownRun, match="is no run directory"):
        find_run(str(tmp_path), index)


def test_without_any_run_the_message_still_says_what_to_give(index):
    """The first command of a newcomer may be status."""
    with pytest.raises(UnknownRun, match="give the name of a run, its directory, or its workload file"):
        find_run("demo", index)


@pytest.mark.usefixtures("run")
def test_a_spoilt_index_entry_is_named(index):
    """Deleting it is the fix, and only the path tells what to delete."""
    (Path(index) / "demo.json").write_text("{}")

    with pytest.raises(StorageError, match=r"demo\.json: it is no index entry"):
        find_run("demo", index)


def test_a_storage_that_cannot_be_reached_is_not_a_run_that_does_not_exist(index, monkeypatch):
    """`no such run` for a missing package sends a person the wrong way."""
    monkeypatch.setitem(sys.modules, "gcsfs", None)

    with pytest.raises(StorageError, match=r"pip install 'raytpu\[gcs\]'"):
        find_run("gs://bucket/runs/demo", index)
