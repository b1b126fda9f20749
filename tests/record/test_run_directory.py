"""Where a run lies."""

from __future__ import annotations

import os
import pickle
import sys
import uuid

import pytest

from raytpu.errors import StorageError, UnknownRun
from raytpu.record import RunDirectory
from raytpu.record.storage import absolute_url, file_sizes


@pytest.fixture(params=["local", "object store"])
def root(request, tmp_path):
    return str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}/runs"


def test_a_run_begins_in_lineage_001_which_is_not_made_by_asking(root):
    """`raytpu plan` must leave nothing behind."""
    directory = RunDirectory.newest(root, "demo")

    assert directory.url == f"{root}/demo/001"
    assert (directory.root, directory.run, directory.lineage) == (root, "demo", 1)
    assert not directory.exists()


def test_a_run_goes_on_in_its_newest_lineage(root):
    """Resuming an old lineage would throw the newer training away."""
    for number in (1, 2, 10):
        RunDirectory.at(f"{root}/demo/{number:03d}").write_workload("name: demo")

    assert RunDirectory.newest(root, "demo").lineage == 10
    assert RunDirectory.newest(root, "demo").exists()


def test_a_fresh_start_leaves_the_old_lineage_as_it_is(root):
    """--fresh must never cost a checkpoint."""
    old = RunDirectory.newest(root, "demo")
    old.write_workload("name: demo")

    fresh = RunDirectory.fresh(root, "demo")

    assert fresh.lineage == 2
    assert not fresh.exists()
    assert old.read_workload() == "name: demo"


def test_the_thousandth_lineage_comes_after_the_999th(root):
    """Sorted as text, 1000 comes before 999."""
    for number in ("999", "1000"):
        RunDirectory.at(f"{root}/demo/{number}").write_workload("name: demo")

    assert RunDirectory.newest(root, "demo").lineage == 1000


def test_a_directory_is_found_by_its_lineage_or_its_run(root):
    """People copy whichever path is on their screen."""
    directory = RunDirectory.newest(root, "demo")
    directory.write_workload("name: demo")

    assert RunDirectory.at(directory.url) == directory
    assert RunDirectory.at(directory.run_url + "/") == directory


def test_any_other_folder_is_refused(root):
    """Logs of nothing look like a run without logs."""
    with pytest.raises(UnknownRun, match="no run directory: expected a folder of lineages"):
        RunDirectory.at(root)


def test_the_parts_lie_where_the_documentation_says():
    """Checkpoints are looked for by other tools as well."""
    directory = RunDirectory.at("gs://bucket/runs/demo/003")

    assert directory.checkpoints == "gs://bucket/runs/demo/003/checkpoints"
    assert directory.record == "gs://bucket/runs/demo/003/record"
    assert directory.logs(2) == "gs://bucket/runs/demo/003/logs/002"


def test_a_directory_survives_pickling():
    """It is sent to every host process."""
    directory = RunDirectory.at("gs://bucket/runs/demo/003")

    assert pickle.loads(pickle.dumps(directory)) == directory


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("file:///data/runs", "/data/runs"),
        ("/data//runs/", "/data/runs"),
        ("gs://bucket/runs/", "gs://bucket/runs"),
        ("memory://runs", "memory://runs"),
        ("memory:///runs", "memory://runs"),
    ],
)
def test_one_place_has_one_spelling(given, expected):
    """Two spellings of a place would be two runs that do not see each other's driver."""
    assert absolute_url(given) == expected


def test_the_home_folder_is_expanded(monkeypatch, tmp_path):
    """A folder whose name is ~ is a nuisance to delete."""
    monkeypatch.setenv("HOME", str(tmp_path))

    assert RunDirectory.newest("~/runs", "demo").url == f"{tmp_path}/runs/demo/001"


def test_an_empty_path_is_refused():
    """It would mean the current folder, which nobody chose."""
    with pytest.raises(StorageError, match="a storage path is empty"):
        absolute_url(" ")


def test_checking_that_storage_is_writable_leaves_nothing_behind(root):
    """A refused run must leave no trace."""
    RunDirectory.newest(root, "demo").check_writable()

    assert not RunDirectory.newest(root, "demo").exists()
    assert file_sizes(root) == {}
    if "://" not in root:
        assert os.listdir(root) == []


def test_storage_below_a_file_is_refused_with_path_and_reason(tmp_path):
    """Without the path, nobody can tell which of several storages is meant."""
    (tmp_path / "taken").write_text("")

    with pytest.raises(StorageError) as caught:
        RunDirectory.newest(str(tmp_path / "taken"), "demo").check_writable()

    assert str(caught.value) == (
        f"cannot write to {tmp_path}/taken/demo/001 "
        f"(nothing can be made in {tmp_path}/taken): Not a directory\n"
        "  set checkpoint.path to a folder that can be written"
    )


def test_storage_that_takes_no_files_is_refused():
    """Also root meets file systems that take nothing."""
    with pytest.raises(StorageError, match="cannot write to /proc/runs/demo/001"):
        RunDirectory.newest("/proc/runs", "demo").check_writable()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_refused(tmp_path):
    """The usual case of a shared machine."""
    tmp_path.chmod(0o500)

    with pytest.raises(StorageError, match="Permission denied"):
        RunDirectory.newest(str(tmp_path), "demo").check_writable()


def test_a_missing_storage_package_is_named_with_its_pip_command(monkeypatch):
    """`No module named gcsfs` does not tell what to install."""
    monkeypatch.setitem(sys.modules, "gcsfs", None)

    with pytest.raises(StorageError, match=r"gs:// needs another package: pip install 'raytpu\[gcs\]'"):
        RunDirectory.newest("gs://bucket/runs", "demo")


def test_an_unknown_protocol_is_named():
    """A typo in a URL must not become a local folder of that name."""
    with pytest.raises(StorageError, match="Protocol not known: gcss"):
        RunDirectory.newest("gcss://bucket/runs", "demo")


def test_a_workload_that_was_not_written_is_none(root):
    """Its absence is an answer, not a failure of the storage."""
    assert RunDirectory.newest(root, "demo").read_workload() is None
