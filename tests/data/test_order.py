"""The order of rows is a permutation in every epoch, anywhere at the same cost."""

from __future__ import annotations

import time

import numpy as np
import pytest

from raytpu.data import rows_at, rows_for_step


@pytest.mark.parametrize("row_count", [1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 100, 257, 1000, 4097])
def test_every_epoch_holds_every_row_exactly_once(row_count: int) -> None:
    """A row seen twice is another row never seen."""
    for epoch in (0, 1, 12345):
        positions = np.arange(row_count) + epoch * row_count

        assert sorted(rows_at(7, row_count, positions)) == list(range(row_count))


def test_batches_that_cross_epochs_lose_no_row() -> None:
    """Dropping the remainder at each epoch's end would never show some rows in short epochs."""
    row_count, global_batch = 50, 12
    steps = [rows_for_step(3, row_count, global_batch, step) for step in range(25)]

    seen = np.concatenate(steps).reshape(6, row_count)

    assert all(sorted(epoch) == list(range(row_count)) for epoch in seen)


def test_the_order_does_not_depend_on_who_asks_for_what() -> None:
    """Hosts ask for parts of a batch; together they must hold exactly the batch."""
    whole = rows_at(0, 1000, np.arange(5000))
    shuffled = np.random.default_rng(0).permutation(5000)

    assert (rows_at(0, 1000, shuffled) == whole[shuffled]).all()


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    """One order for all epochs would let the model learn it."""
    first, second, other_seed, negative_seed = (
        rows_at(seed, 1000, np.arange(1000) + 1000 * epoch)
        for seed, epoch in [(0, 0), (0, 1), (1, 0), (-1, 0)]
    )

    for one, other in [(first, second), (first, other_seed), (first, negative_seed), (second, other_seed)]:
        # Two independent orders of 1000 rows agree in one place on average.
        assert (one == other).sum() < 10


def test_rows_are_mixed_well() -> None:
    """A Feistel network with weak rounds leaves neighbours together."""
    rows = rows_at(0, 10_000, np.arange(10_000)).astype(float)
    identity = np.arange(10_000)

    assert abs(np.corrcoef(rows, identity)[0, 1]) < 0.05
    assert abs(np.corrcoef(rows[1:], rows[:-1])[0, 1]) < 0.05


def test_the_order_of_today_is_the_order_of_tomorrow() -> None:
    """A checkpoint's position means nothing if another version orders rows otherwise."""
    assert rows_for_step(0, 1000, 8, 0).tolist() == GOLDEN_FIRST
    assert rows_for_step(0, 1000, 8, 125_000_000).tolist() == GOLDEN_FAR


def test_seeking_far_costs_no_more_than_the_beginning() -> None:
    """Resuming must not replay: position 10^15 in a billion rows, well under a second."""
    began = time.perf_counter()
    rows = rows_for_step(0, 10**9, 1024, 10**12)

    assert time.perf_counter() - began < 0.5
    assert len(set(rows.tolist())) == 1024


@pytest.mark.parametrize(
    ("row_count", "global_batch", "step"), [(0, 1, 0), (10, 0, 0), (10, 1, -1)], ids=["rows", "batch", "step"]
)
def test_impossible_requests_are_refused(row_count: int, global_batch: int, step: int) -> None:
    """An empty data set would walk the permutation for ever."""
    with pytest.raises(ValueError, match="need"):
        rows_for_step(0, row_count, global_batch, step)


GOLDEN_FIRST = [37, 914, 682, 632, 25, 984, 512, 867]
GOLDEN_FAR = [88, 142, 30, 618, 35, 730, 936, 495]
