"""Where a stream of batches stands: small, saved with every checkpoint, refused on other data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from raytpu.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsFingerprint:
    """What identifies the rows of a stream, wherever and in whatever blocks they lie."""

    row_count: int
    sequence_length: int
    content: str
    """Digest of the documents in their order; see ``raytpu.data.content``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """The next row to consume, counted from the start of the run over all epochs.

    Rows, not batches: a run may go on with another global batch and still sees every row once an epoch.
    """

    seed: int
    next_row: int
    row_count: int
    sequence_length: int
    content: str

    @property
    def epoch(self) -> int:
        return self.next_row // self.row_count

    def advanced(self, rows: int) -> StreamPosition:
        """The position after ``rows`` more rows."""
        return replace(self, next_row=self.next_row + rows)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint; ``position_from`` reads them back."""
        return asdict(self)


def first_position(seed: int, rows: RowsFingerprint) -> StreamPosition:
    """The start of a stream."""
    return StreamPosition(seed=seed, next_row=0, **asdict(rows))


def position_from(saved: Mapping[str, Any], seed: int, rows: RowsFingerprint) -> StreamPosition:
    """The saved position, when it belongs to these rows and this seed.

    Raises:
        DataError: naming everything that differs, because going on would repeat some rows and lose others.
    """
    names = {field.name for field in fields(StreamPosition)}
    if set(saved) != names:
        raise DataError(f"a stream position has the fields {sorted(names)}, got {sorted(saved)}")
    position = StreamPosition(**saved)
    now = first_position(seed, rows)
    changed = [
        f"{name.replace('_', ' ')} was {getattr(position, name)}, is {getattr(now, name)}"
        for name in ("seed", "sequence_length", "row_count", "content")
        if getattr(position, name) != getattr(now, name)
    ]
    if changed:
        raise DataError(
            "the checkpoint was written on another data stream: "
            + "; ".join(changed)
            + ". Give the run the data, seed and sequence length it began with, or start anew with --fresh"
        )
    return position
