"""A pair says what was measured, and says so when there is no difference left."""

from __future__ import annotations

import pytest

from tests.stock_pairs.measured_pair import ENOUGH_TO_TELL, MeasuredPair


def pair(stock: list[float | None], raytpu: list[float | None]) -> MeasuredPair:
    made = MeasuredPair("R0", "a case", deadline_s=5)
    made.stock.add(*stock)
    made.raytpu.add(*raytpu)
    return made


def test_a_pair_shows_both_sides():
    """A claim without its other half cannot be checked."""
    assert list(pair([None, 0.5, None], [0.1, 0.2, 0.4]).lines("2.60.0")) == [
        "R0  a case (deadline 5 s)",
        "    stock Ray 2.60.0: 1 of 3 placed, median 0.50 s, slowest 0.50 s",
        "    raytpu: 3 of 3 placed, median 0.20 s, slowest 0.40 s",
    ]


def test_one_try_that_raytpu_does_not_place_fails_with_both_sides_in_the_message():
    """99 % would be a claim that nobody makes."""
    with pytest.raises(AssertionError, match=r"raytpu 1 of 2 placed.*; stock Ray 2 of 2 placed"):
        pair([0.1, 0.1], [0.1, None]).assert_raytpu_placed_all(2)
    with pytest.raises(AssertionError):
        pair([0.1], []).assert_raytpu_placed_all(0)
    pair([None], [0.1]).assert_raytpu_placed_all(1)


@pytest.mark.parametrize(
    ("stock", "verdict"),
    [
        ([None] + [0.1] * ENOUGH_TO_TELL, ""),
        ([0.1] * 3, "stock Ray placed all 3 too: luck, or it has caught up; `make soak` tells"),
        ([0.1] * ENOUGH_TO_TELL, f"STOCK RAY HAS CAUGHT UP: it placed all {ENOUGH_TO_TELL}"),
        ([], ""),
    ],
)
def test_a_better_stock_ray_is_told_and_fails_nothing(stock: list[float | None], verdict: str):
    """A test that fails because another project improved is read as a bug of this one."""
    measured = pair(stock, [0.1])
    measured.assert_raytpu_placed_all(1)
    assert measured.verdict.startswith(verdict)
    assert bool(measured.verdict) == bool(verdict)
