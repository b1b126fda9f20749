"""Where the data of a stream comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, Strict

from raytpu.spec.spec import Broken, Spec


class TextData(Spec):
    """Text that is tokenised and packed into rows of ``train.config.sequence_length`` tokens."""

    source: Literal["python-stdlib", "text", "jsonl", "parquet"]
    """Kind of input: python-stdlib reads the sources of the running interpreter, which are on every machine;
    text, jsonl and parquet read files."""
    path: str | Annotated[tuple[str, ...], Strict(False)] | None = None
    """Files, directories or globs to read; a local path or a URL (gs://…, s3://…). Not for python-stdlib."""
    text_column: str = "text"
    """Column (Parquet) or key (JSON Lines) that holds the text of a document."""
    tokenizer: Literal["bytes"] = "bytes"
    """How text becomes tokens. bytes: one token a byte of UTF-8, so nothing needs to be downloaded."""
    holdout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Part of the documents kept back from training for the stream named eval; 0 keeps none back."""

    def broken_rules(self) -> Iterator[Broken]:
        paths = (self.path,) if isinstance(self.path, str) else self.path
        if self.source == "python-stdlib":
            if paths is not None:
                yield Broken(
                    ("path",),
                    "python-stdlib takes no path: it reads the running interpreter's own sources; "
                    "leave it out, or set source to text, jsonl or parquet",
                )
        elif not paths:
            yield Broken(
                ("path",), f"source {self.source} needs a path: a file, a directory, a glob or a URL"
            )
        elif not all(path.strip() for path in paths):
            yield Broken(("path",), "a path is empty")
        if self.text_column != "text" and self.source in ("python-stdlib", "text"):
            yield Broken(
                ("text_column",),
                f"source {self.source} has no columns; leave it out (jsonl and parquet have)",
            )
