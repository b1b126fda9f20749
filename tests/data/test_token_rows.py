"""Rows are windows of the stream, wherever blocks end."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from raytpu.data import TokenRows
from raytpu.data.token_rows import TokenBlock
from raytpu.errors import DataError

STREAM = np.random.default_rng(0).integers(0, 257, 1000).astype(np.uint16)


def in_blocks(sizes: list[int], sequence_length: int) -> TokenRows:
    """The stream cut into blocks of these sizes, the last one taking the rest."""
    cuts = np.cumsum(sizes)
    blocks = [TokenBlock(token_count=part.size, source=part) for part in np.split(STREAM, cuts)]
    return TokenRows(blocks, sequence_length=sequence_length, content="c")


@pytest.mark.parametrize("length", [1, 2, 7, 16, 333, 999])
@pytest.mark.parametrize("sizes", [[], [500], [1] * 900, [0, 3, 0, 17, 400], [7] * 100], ids=str)
def test_row_i_is_the_window_at_i_times_the_length(length: int, sizes: list[int]) -> None:
    """A row cut wrongly at a block's end teaches the model text that nobody wrote."""
    rows = in_blocks(sizes, length)
    assert rows.row_count == (STREAM.size - 1) // length
    order = np.random.default_rng(1).permutation(rows.row_count)

    got = rows.rows(order)

    assert got.dtype == np.int32
    assert got.shape == (rows.row_count, length + 1)
    for place, row in enumerate(order):
        assert (got[place] == STREAM[row * length : row * length + length + 1]).all()


def test_rows_are_the_callers_own() -> None:
    """device_put on CPU keeps using the array it was given."""
    rows = TokenRows.from_tokens(STREAM, sequence_length=8)
    first = rows.rows(np.array([0, 0]))
    first[:] = -1

    assert (rows.rows(np.array([0]))[0] == STREAM[:9]).all()


def test_a_row_that_does_not_exist_is_refused() -> None:
    """NumPy would take a negative index from the end."""
    rows = TokenRows.from_tokens(STREAM, sequence_length=8)

    for wrong in (-1, rows.row_count):
        with pytest.raises(IndexError, match="asked of 124"):
            rows.rows(np.array([0, wrong]))


def test_pickling_keeps_rows_and_fingerprint() -> None:
    """Hosts get the rows through serialisation."""
    rows = in_blocks([10, 20], 8)
    rows.rows(np.arange(5))

    copy = pickle.loads(pickle.dumps(rows))

    assert copy.fingerprint == rows.fingerprint
    assert (copy.rows(np.arange(100)) == rows.rows(np.arange(100))).all()


def test_blocks_above_the_cache_bound_are_let_go_and_read_again() -> None:
    """A long run must not pin every block it ever saw."""
    blocks = [TokenBlock(token_count=part.size, source=part) for part in np.split(STREAM, 10)]
    rows = TokenRows(blocks, sequence_length=8, content="c", cache_bytes=500)

    everything = rows.rows(np.arange(rows.row_count))

    assert rows.cached_bytes <= 500
    assert (rows.rows(np.arange(rows.row_count)) == everything).all()
    assert (everything[:, 0] == STREAM[: rows.row_count * 8 : 8]).all()


def test_other_tokens_have_another_fingerprint() -> None:
    """A resume onto different data would repeat some text and skip other."""
    one = TokenRows.from_tokens(STREAM, sequence_length=8).fingerprint
    changed = STREAM.copy()
    changed[500] += 1

    assert one == TokenRows.from_tokens(STREAM.astype(np.int64), sequence_length=8).fingerprint
    assert one != TokenRows.from_tokens(changed, sequence_length=8).fingerprint
    assert one != TokenRows.from_tokens(STREAM, sequence_length=9).fingerprint


def test_only_a_stream_of_integers_will_do() -> None:
    """Rows of floats would become tokens by truncation."""
    with pytest.raises(DataError, match="1-D array of integers, got float64 of shape"):
        TokenRows.from_tokens(np.zeros(10), sequence_length=2)
    with pytest.raises(DataError, match="1-D array of integers, got int64 of shape"):
        TokenRows.from_tokens(np.zeros((2, 5), np.int64), sequence_length=2)
    with pytest.raises(DataError, match="sequence_length must be at least 1, got 0"):
        TokenRows.from_tokens(STREAM, sequence_length=0)


def test_too_few_tokens_make_no_row() -> None:
    """A row needs one token more than its length."""
    assert TokenRows.from_tokens(STREAM[:8], sequence_length=8).row_count == 0
    assert TokenRows.from_tokens(STREAM[:9], sequence_length=8).row_count == 1
    assert TokenRows.from_tokens(STREAM[:0], sequence_length=8).row_count == 0
