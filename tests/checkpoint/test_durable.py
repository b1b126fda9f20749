"""The driver knows which checkpoints are durable by looking at the storage path alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

from raytpu.checkpoint import durable_steps, newest_durable_step
from raytpu.errors import StorageError


def step(directory: Path, name: str, *, marker: bool = True) -> None:
    (directory / name).mkdir(parents=True)
    if marker:
        (directory / name / "commit_success.txt").write_text("")


def test_a_directory_that_does_not_exist_has_no_checkpoint(tmp_path: Path):
    assert newest_durable_step(str(tmp_path / "none")) is None


def test_steps_are_numbers_and_not_words(tmp_path: Path):
    """As words, 9 is newer than 100: a resumed run would lose 91 steps."""
    for name in ("9", "100", "20"):
        step(tmp_path, name)

    assert durable_steps(str(tmp_path)) == (9, 20, 100)


def test_what_is_still_being_written_is_not_durable(tmp_path: Path):
    """A run resumed from half a checkpoint does not start, or starts from wrong numbers."""
    step(tmp_path, "10")
    step(tmp_path, "20", marker=False)  # Google Cloud Storage: written in place, the marker comes last
    step(tmp_path, "30.orbax-checkpoint-tmp", marker=False)
    step(tmp_path, "40.orbax-checkpoint-tmp")  # POSIX: the marker is written just before the rename
    step(tmp_path, "notes")
    (tmp_path / "50").write_text("a file")

    assert newest_durable_step(str(tmp_path)) == 10


def test_urls_are_looked_at_where_they_point():
    storage = fsspec.filesystem("memory")
    storage.pipe_file("/run/checkpoints/7/commit_success.txt", b"")
    storage.pipe_file("/run/checkpoints/8/state/manifest", b"")

    assert durable_steps("memory://run/checkpoints") == (7,)


def test_a_storage_that_cannot_be_reached_is_an_error_and_not_an_empty_answer(tmp_path: Path):
    """Taken for empty, the run would start from step 0 beside its own checkpoints."""
    with pytest.raises(StorageError, match="nosuch"):
        newest_durable_step("nosuch://bucket/run")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot list"):
        newest_durable_step(str(tmp_path / "file"))


def test_looking_loads_neither_jax_nor_orbax(tmp_path: Path):
    """The driver and the command line would pay seconds for them."""
    code = (
        "import sys; from raytpu.checkpoint import newest_durable_step; "
        f"newest_durable_step({str(tmp_path)!r}); print({{'jax', 'orbax'}} & set(sys.modules))"
    )

    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
