"""Documents of a source: what they are called and where each piece of work finds its own.

A piece is a list of parts; the documents of all pieces in order are the documents of the source, however
large the pieces are made. A document's name does not depend on the pieces either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from raytpu.data.sources import SourceFile, open_filesystem, source_error, source_files
from raytpu.data.storage_errors import reading
from raytpu.errors import DataError

if TYPE_CHECKING:
    from raytpu.spec import TextData

# What check_source opens: enough to catch a wrong column or encoding, and still seconds on a slow store.
_CHECKED_FILES = 16
_CHECKED_BYTES = 64 * 1024

_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A file or a range of one."""

    url: str
    name: str
    begin: int = 0
    """jsonl: first byte; a line belongs to the part in which it begins. parquet: first row group."""
    end: int | None = None
    """One past the last; ``None`` for the end of the file."""


Piece = tuple[Part, ...]


def pieces_of(data: TextData, files: Sequence[SourceFile], piece_bytes: int) -> list[Piece]:
    """The source in pieces of about ``piece_bytes``, in document order.

    Small files share a piece. JSONL is cut by bytes and Parquet by row groups; a text file or a compressed
    JSONL file is never cut.
    """
    pieces: list[Piece] = []
    parts: list[Part] = []
    size = 0
    for file in files:
        for part, part_size in _parts_of(data, file, piece_bytes):
            if parts and size + part_size > piece_bytes:
                pieces.append(tuple(parts))
                parts, size = [], 0
            parts.append(part)
            size += part_size
    return [*pieces, tuple(parts)] if parts else pieces


def _parts_of(data: TextData, file: SourceFile, piece_bytes: int) -> list[tuple[Part, int]]:
    whole = [(Part(url=file.url, name=file.name), file.size or 0)]
    if file.size is None or file.size <= piece_bytes:
        return whole
    if data.source == "jsonl" and not file.url.endswith(_COMPRESSED):
        cuts = [*range(0, file.size, piece_bytes), file.size]
        return [
            (Part(url=file.url, name=file.name, begin=begin, end=end), end - begin)
            for begin, end in pairwise(cuts)
        ]
    if data.source == "parquet":
        with reading(file.url), _open(file.url) as stream:
            groups = _parquet(stream).num_row_groups
        return [
            (Part(url=file.url, name=file.name, begin=group, end=group + 1), file.size // groups)
            for group in range(groups)
        ]
    return whole


def documents_in(data: TextData, part: Part) -> Iterator[tuple[str, str | bytes]]:
    """Name and text of each document of a part, in order.

    Raises:
        DataError: naming the file and the place in it.
    """
    match data.source:
        case "python-stdlib":
            # Python allows other encodings; here the text matters, not the encoding of an odd module.
            yield part.name, _read(part.url).decode("utf-8", errors="replace")
        case "text":
            raw = _read(part.url)
            _require_utf8(part.url, raw)
            yield part.name, raw
        case "jsonl":
            yield from _json_documents(part, data.text_column)
        case "parquet":
            yield from _parquet_documents(part, data.text_column)


def check_source(data: TextData) -> None:
    """Find the files of a source and look into the first of them, without Ray.

    Looks for a missing column, a wrong type and text that is not UTF-8 in the first 64 KiB of up to 16
    files; ``prepare_text`` meets the rest.

    Raises:
        DataError: with every problem found, the path and the next step.
    """
    files = source_files(data)
    if data.source == "python-stdlib":
        return
    problems = []
    for file in files[:_CHECKED_FILES]:
        try:
            _check_file(data, file)
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise source_error(data, problems)


def _check_file(data: TextData, file: SourceFile) -> None:
    if file.size == 0 and data.source != "parquet":
        return
    if data.source == "parquet":
        with reading(file.url), _open(file.url) as stream:
            schema = _parquet(stream).schema_arrow
        _require_text_column(file.url, schema, data.text_column)
        return
    if data.source == "jsonl":
        next(_json_documents(Part(url=file.url, name=file.name), data.text_column), None)
        return
    with reading(file.url), _open(file.url) as stream:
        head = stream.read(_CHECKED_BYTES)
    # A character may be cut at the end of the window: up to three bytes of it.
    _require_utf8(file.url, head, may_be_cut=len(head) == _CHECKED_BYTES)


def _require_utf8(url: str, raw: bytes, *, may_be_cut: bool = False) -> None:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if may_be_cut and error.reason == "unexpected end of data":
            return
        raise DataError(
            f"{url}: is not UTF-8 text (byte {error.start} is 0x{raw[error.start]:02x}); convert it, for "
            "example with iconv -t UTF-8, or leave it out with a pattern"
        ) from error


def _json_documents(part: Part, column: str) -> Iterator[tuple[str, str]]:
    for offset, line in _lines(part):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:  # also UnicodeDecodeError: json.loads decodes
            raise DataError(
                f"{part.url}: the line at byte {offset} is not JSON in UTF-8 ({error}); every line must be "
                "one JSON object"
            ) from error
        if not isinstance(record, dict) or not isinstance(record.get(column), str):
            has = f"has {sorted(record)}" if isinstance(record, dict) else f"is a {type(record).__name__}"
            raise DataError(
                f"{part.url}: the line at byte {offset} holds no text under {column!r} (it {has}); "
                "set text_column to the name of the text"
            )
        yield f"{part.name}@{offset}", record[column]


def _lines(part: Part) -> Iterator[tuple[int, bytes]]:
    """Lines that begin in the part, each with the offset of its first byte (in the unpacked file)."""
    with reading(part.url), _open(part.url) as stream:
        offset = part.begin
        if offset:
            # The byte before tells whether a line begins exactly here.
            stream.seek(offset - 1)
            offset += len(stream.readline()) - 1
        while part.end is None or offset < part.end:
            line = stream.readline()
            if not line:
                return
            yield offset, line
            offset += len(line)


def _parquet_documents(part: Part, column: str) -> Iterator[tuple[str, str]]:
    with reading(part.url), _open(part.url) as stream:
        file = _parquet(stream)
        _require_text_column(part.url, file.schema_arrow, column)
        end = file.num_row_groups if part.end is None else part.end
        row = sum(file.metadata.row_group(group).num_rows for group in range(part.begin))
        for group in range(part.begin, end):
            for value in file.read_row_group(group, columns=[column])[column]:
                text = value.as_py()
                if text is None:
                    raise DataError(
                        f"{part.url}: row {row} (row group {group}) holds null under {column!r}; "
                        "leave such rows out of the file"
                    )
                yield f"{part.name}#{row}", text
                row += 1


def _require_text_column(url: str, schema: Any, column: str) -> None:
    import pyarrow as pa

    if column not in schema.names:
        raise DataError(
            f"{url}: has no column {column!r}, it has {sorted(schema.names)}; set text_column to one of them"
        )
    kind = schema.field(column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise DataError(
            f"{url}: column {column!r} holds {kind}, not text; set text_column to a string column"
        )


def _parquet(stream: Any) -> Any:
    from pyarrow.parquet import ParquetFile

    return ParquetFile(stream)


def _read(url: str) -> bytes:
    with reading(url):
        filesystem, path, _ = open_filesystem(url)
        return bytes(filesystem.cat_file(path))


def _open(url: str) -> Any:
    import fsspec

    return fsspec.open(url, "rb", compression="infer" if url.endswith(_COMPRESSED) else None).open()
