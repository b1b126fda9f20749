"""Which files a source is made of, and what is wrong with it before anything starts."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raytpu.data import check_source
from raytpu.data.sources import source_files
from raytpu.errors import DataError
from raytpu.spec import TextData


def write(folder: Path, **files: str | bytes) -> Path:
    """Files by name, with ``__`` for a dot and ``___`` for a slash."""
    for name, content in files.items():
        path = folder / name.replace("___", "/").replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def names(source: Any, path: Any) -> list[str]:
    return [file.name for file in source_files(TextData(source=source, path=path))]


def refusal(**data: Any) -> str:
    with pytest.raises(DataError) as caught:
        check_source(TextData(**data))
    return str(caught.value)


def test_the_standard_library_is_found_without_tests_and_packages() -> None:
    """Site-packages would make the corpus another one on every machine."""
    files = source_files(TextData(source="python-stdlib"))
    found = {file.name for file in files}

    assert {"abc.py", "asyncio/base_events.py", "json/decoder.py"} <= found
    assert not {"site-packages", "test", "tests"} & {part for name in found for part in name.split("/")[:-1]}
    assert [file.name for file in files] == sorted(found)
    assert 5e6 < sum(file.size or 0 for file in files) < 50e6


def test_paths_keep_their_order_and_files_within_them_are_sorted(tmp_path: Path) -> None:
    """The order of documents is the order of tokens; a directory listing's own order differs by machine."""
    write(tmp_path, b__txt="b", a__txt="a", sub___c__txt="c", z___only__txt="z")

    given = (f"{tmp_path}/z", f"{tmp_path}/*.txt", str(tmp_path / "sub" / "c.txt"))

    assert names("text", given) == ["only.txt", "a.txt", "b.txt", "c.txt"]


def test_a_folder_is_read_whole_but_for_hidden_files(tmp_path: Path) -> None:
    """Markers such as _SUCCESS and .git are not text."""
    write(tmp_path, a__txt="a", sub___b__md="b", __hidden="x", sub___d__git___x="x", _SUCCESS="x")

    (tmp_path / "sub" / ".git").mkdir()
    write(tmp_path / "sub" / ".git", config="x")

    assert names("text", str(tmp_path)) == ["a.txt", "sub/b.md", "sub/d.git/x"]


def test_a_folder_of_jsonl_takes_only_jsonl(tmp_path: Path) -> None:
    """A README beside the data must not stop the run."""
    write(tmp_path, a__jsonl='{"text": "x"}', README__md="no", b__jsonl__gz=gzip.compress(b'{"text": "y"}'))

    assert names("jsonl", str(tmp_path)) == ["a.jsonl", "b.jsonl.gz"]
    check_source(TextData(source="jsonl", path=str(tmp_path)))


def test_any_storage_of_fsspec_will_do() -> None:
    """Clouds are read through the same code as the memory filesystem."""
    store = fsspec.filesystem("memory")
    store.pipe({"/corpus/b.txt": b"b", "/corpus/deep/a.txt": b"a"})

    files = source_files(TextData(source="text", path="memory://corpus"))

    assert [(file.url, file.name) for file in files] == [
        ("memory:///corpus/b.txt", "b.txt"),
        ("memory:///corpus/deep/a.txt", "deep/a.txt"),
    ]
    check_source(TextData(source="text", path="memory://corpus/**/*.txt"))


def test_a_name_with_brackets_is_a_name_when_it_exists(tmp_path: Path) -> None:
    """Files called notes[1].txt exist."""
    (tmp_path / "notes[1].txt").write_text("x")

    assert names("text", str(tmp_path / "notes[1].txt")) == ["notes[1].txt"]


def test_all_wrong_paths_are_told_at_once(tmp_path: Path) -> None:
    """One error a run is a day lost to five typos."""
    write(tmp_path, empty__txt="", good__txt="x", none___readme__md="x")
    (tmp_path / "bare").mkdir()

    message = refusal(
        source="text",
        path=(
            f"{tmp_path}/missing.txt",
            f"{tmp_path}/*.rst",
            f"{tmp_path}/bare",
            f"{tmp_path}/empty.txt",
            f"{tmp_path}/good.txt",
            f"{tmp_path}/good*",
            "nowhere://x",
            "zip://a::b.zip",
        ),
    )

    assert message.startswith("data source text: 7 problems\n")
    assert f"{tmp_path}/missing.txt: does not exist" in message
    assert f"{tmp_path}/*.rst: holds nothing to read" in message
    assert f"{tmp_path}/bare: holds nothing to read" in message
    assert f"{tmp_path}/empty.txt: is empty" in message
    assert f"{tmp_path}/good.txt: named twice" in message
    assert "nowhere://x: cannot be read: Protocol not known: nowhere" in message
    assert "zip://a::b.zip: chained URLs are not supported" in message


def test_a_missing_driver_names_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """'Please install gcsfs' does not say how raytpu wants it."""
    monkeypatch.setitem(sys.modules, "gcsfs", None)

    assert "gs://bucket/x: " in (message := refusal(source="text", path="gs://bucket/x"))
    assert message.endswith("pip install 'raytpu[gcs]'")


def test_text_that_is_not_utf8_is_refused_with_the_byte(tmp_path: Path) -> None:
    """Latin-1 read as UTF-8 would fail hours later, in a worker, without a name."""
    path = tmp_path / "latin.txt"
    path.write_bytes("caf\xe9 au lait".encode("latin-1"))

    message = refusal(source="text", path=str(path))

    assert f"{path}: is not UTF-8 text (byte 3 is 0xe9); convert it" in message


def test_a_character_cut_by_the_checked_window_is_no_problem(tmp_path: Path) -> None:
    """Only the head of a file is checked; its last character may be cut."""
    path = tmp_path / "long.txt"
    path.write_text("x" + "é" * 40_000)

    check_source(TextData(source="text", path=str(path)))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"body": "x"}', "holds no text under 'text' (it has ['body']); set text_column"),
        ('{"text": 3}', "holds no text under 'text'"),
        ("[1]", "(it is a list)"),
        ("{", "is not JSON in UTF-8"),
        (b'{"text": "\xff"}', "is not JSON in UTF-8"),
    ],
)
def test_a_bad_first_line_of_jsonl_is_refused(tmp_path: Path, line: str | bytes, said: str) -> None:
    """The commonest mistake is the wrong text_column."""
    message = refusal(source="jsonl", path=str(write(tmp_path, a__jsonl=line) / "a.jsonl"))

    assert f"{tmp_path}/a.jsonl: the line at byte 0 " in message
    assert said in message


def test_a_parquet_without_the_column_is_refused_with_the_columns_it_has(tmp_path: Path) -> None:
    """The next step is to choose one of them."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["x"], "id": [1]}), path)

    assert "has no column 'text', it has ['body', 'id']" in refusal(source="parquet", path=str(path))
    assert "column 'id' holds int64, not text" in refusal(source="parquet", path=str(path), text_column="id")
    check_source(TextData(source="parquet", path=str(path), text_column="body"))


def test_a_corrupt_parquet_is_refused_with_its_path(tmp_path: Path) -> None:
    """Arrow's own message names no file."""
    path = write(tmp_path, a__parquet="not parquet at all") / "a.parquet"

    assert f"{path}: cannot be read: " in refusal(source="parquet", path=str(path))


def test_checking_a_source_loads_neither_ray_nor_jax(tmp_path: Path) -> None:
    """The driver checks before anything starts; a second of imports would be felt in every command."""
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "x"}))
    code = (
        "import sys\nfrom raytpu.data import check_source\nfrom raytpu.spec import TextData\n"
        f"check_source(TextData(source='jsonl', path={str(path)!r}))\n"
        "print({'ray', 'jax', 'pandas', 'pyarrow'} & set(sys.modules))"
    )

    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
