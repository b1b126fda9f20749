"""Rows of text in columns, without colour: the same on a terminal, in a log and in a test."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """One line for the header and one for each row, two spaces before and between the columns."""
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    padded = (zip(row, widths, strict=True) for row in cells)
    return ["  " + "  ".join(text.ljust(width) for text, width in row).rstrip() for row in padded]
