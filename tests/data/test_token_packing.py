"""Documents become one token stream that depends on the source alone. (On Ray: tests/local_ray.)"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raytpu.data.content import Content
from raytpu.data.documents import documents_in, pieces_of
from raytpu.data.sources import source_files
from raytpu.data.token_packing import block_facts, stream_of, tokenise
from raytpu.data.token_rows import tokens_in
from raytpu.spec import TextData

TEXTS = [f"document {number} " + "naïve ☃ " * (number % 7) for number in range(50)]


def sources(folder: Path) -> dict[str, TextData]:
    """The same texts in every kind of source."""
    (folder / "text").mkdir()
    for number, text in enumerate(TEXTS):
        (folder / "text" / f"{number:03}.txt").write_text(text)
    lines = "\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in TEXTS) + "\n\n"
    (folder / "a.jsonl").write_text(lines)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    pq.write_table(pa.table({"text": TEXTS}), folder / "a.parquet", row_group_size=7)
    return {
        "text": TextData(source="text", path=str(folder / "text")),
        "jsonl": TextData(source="jsonl", path=str(folder / "a.jsonl")),
        "jsonl.gz": TextData(source="jsonl", path=str(folder / "a.jsonl.gz")),
        "parquet": TextData(source="parquet", path=str(folder / "a.parquet")),
    }


def streams(data: TextData, piece_bytes: int) -> dict[str, tuple[list[int], Content]]:
    """Tokens and content of each stream, as ``prepare_text`` joins them."""
    joined: dict[str, tuple[list[int], Content]] = {}
    for number, piece in enumerate(pieces_of(data, source_files(data), piece_bytes)):
        table = tokenise(data, number, piece)
        for fact in block_facts(table):
            assert not fact["problem"]
            assert fact["piece"] == number
            tokens, content = joined.get(fact["stream"], ([], Content()))
            part = tokens_in(table, fact["table_row"]).tolist()
            assert len(part) == fact["token_count"]
            joined[fact["stream"]] = tokens + part, content.then(Content.parse(fact["content"]))
    return joined


@pytest.mark.parametrize("kind", ["text", "jsonl", "jsonl.gz", "parquet"])
@pytest.mark.parametrize("piece_bytes", [11, 40, 300, 1 << 20])
def test_the_stream_does_not_depend_on_the_pieces(tmp_path: Path, kind: str, piece_bytes: int) -> None:
    """A token lost or doubled at a border would shift every row behind it."""
    data = sources(tmp_path)[kind]
    expected = [token for text in TEXTS for token in [*text.encode(), 256]]

    tokens, content = streams(data, piece_bytes)["train"]

    assert tokens == expected
    assert content == Content.of([np.frombuffer(text.encode(), np.uint8) for text in TEXTS])


@pytest.mark.parametrize("kind", ["text", "jsonl", "parquet"])
def test_held_back_documents_do_not_depend_on_the_pieces(tmp_path: Path, kind: str) -> None:
    """A document that wanders from eval to train makes the evaluation a lie."""
    data = sources(tmp_path)[kind].model_copy(update={"holdout": 0.3})

    small, large = streams(data, 40), streams(data, 1 << 20)

    assert small == large
    counts = {name: content.documents for name, (_, content) in large.items()}
    assert counts["train"] + counts["eval"] == len(TEXTS)
    assert 5 <= counts["eval"] <= 25


def test_small_files_share_a_piece_and_large_ones_are_cut(tmp_path: Path) -> None:
    """A task per small file would cost more than reading it."""
    data = sources(tmp_path)
    total = sum(len(text.encode()) for text in TEXTS)

    assert len(pieces_of(data["text"], source_files(data["text"]), 2 * total)) == 1
    assert len(pieces_of(data["jsonl"], source_files(data["jsonl"]), 100)) > 10
    assert len(pieces_of(data["parquet"], source_files(data["parquet"]), 1)) == 8  # its row groups


def test_lines_longer_than_a_piece_are_read_once(tmp_path: Path) -> None:
    """Pieces without a line's beginning hold nothing."""
    path = tmp_path / "a.jsonl"
    texts = ["x" * 500, "", "y", "z" * 300]
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    data = TextData(source="jsonl", path=str(path))

    for piece_bytes in range(1, 60, 2):
        pieces = pieces_of(data, source_files(data), piece_bytes)
        found = [document for piece in pieces for part in piece for document in documents_in(data, part)]
        assert [text for _, text in found] == texts
        assert [name for name, _ in found] == ["a.jsonl@0", "a.jsonl@513", "a.jsonl@526", "a.jsonl@540"]


def test_modules_that_are_not_utf8_are_tolerated_in_the_standard_library(tmp_path: Path) -> None:
    """Some distributions keep a latin-1 module; it must not end the demo."""
    path = tmp_path / "odd.py"
    path.write_bytes(b"# -*- coding: latin-1 -*-\n# caf\xe9\n")
    text = TextData(source="text", path=str(path))
    pieces = pieces_of(text, source_files(text), 100)

    table = tokenise(TextData(source="python-stdlib"), 0, pieces[0])

    assert bytes(tokens_in(table, 0)[:-1].astype(np.uint8)).decode().endswith("# caf�\n")


def test_every_unreadable_part_is_told_and_none_is_skipped(tmp_path: Path) -> None:
    """A worker that stops at the first bad file makes the user fix them one run at a time."""
    (tmp_path / "a.txt").write_text("fine")
    (tmp_path / "b.txt").write_bytes(b"\xff")
    (tmp_path / "c.txt").write_bytes(b"ok \xff")
    data = TextData(source="text", path=str(tmp_path))

    facts = block_facts(tokenise(data, 0, pieces_of(data, source_files(data), 100)[0]))

    assert [fact["stream"] for fact in facts] == ["train", "", ""]
    assert "b.txt: is not UTF-8 text (byte 0 is 0xff)" in facts[1]["problem"]
    assert "c.txt: is not UTF-8 text (byte 3 is 0xff)" in facts[2]["problem"]


def test_a_null_in_parquet_names_its_row_group(tmp_path: Path) -> None:
    """A null is not an empty text."""
    pq.write_table(pa.table({"text": ["a", "b", None]}), tmp_path / "a.parquet", row_group_size=2)
    data = TextData(source="parquet", path=str(tmp_path))

    facts = block_facts(tokenise(data, 0, pieces_of(data, source_files(data), 1 << 20)[0]))

    assert "a.parquet: row 2 (row group 1) holds null under 'text'" in facts[-1]["problem"]


def test_the_held_back_documents_of_today_are_those_of_tomorrow() -> None:
    """Python's own hash changes with every process."""
    held = [name for name in map(str, range(40)) if stream_of(name, 0.1) == "eval"]

    assert held == GOLDEN_HELD
    assert all(stream_of(name, 0.0) == "train" for name in map(str, range(1000)))


def test_content_tells_order_borders_and_values_apart_but_not_grouping() -> None:
    """A resume onto reordered files must be refused; the same files in other blocks must not."""
    a, b, c = np.arange(5), np.arange(3), np.arange(7)
    whole = Content.of([a, b, c])

    assert Content.of([a]).then(Content.of([b, c])) == whole == Content.of([a, b]).then(Content.of([c]))
    assert Content.of([a.astype(np.uint16), b, c]) == whole
    assert Content().then(whole) == whole == whole.then(Content())
    others: list[list[Any]] = [
        [b, a, c],
        [np.concatenate([a, b]), c],
        [a, b],
        [a, b, c + 1],
        [a, b, c, c[:0]],
    ]
    assert all(Content.of(other) != whole for other in others)
    assert Content.parse(str(whole)) == whole


GOLDEN_HELD = ["3", "9", "16", "21", "38"]
