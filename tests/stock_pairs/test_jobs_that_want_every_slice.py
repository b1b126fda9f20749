"""R1: two jobs that each want both of two slices. Stock Ray takes heads one by one, so each gets half."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.stock_pairs.both_sides import NotPlaced, Side, hosts_of, in_turn, on_stock
from tests.stock_pairs.measured_pair import MeasuredPair, in_ci_and_in_soak

DEADLINE_S = 5.0
USE_S = 0.2


def run_two_jobs(side: Side) -> list[float | None]:
    """Two jobs at the same moment; each gives everything back after a short use."""
    together = threading.Barrier(2)

    def job(owner: str) -> float | None:
        together.wait()
        try:
            with side(2, owner=owner, deadline_s=DEADLINE_S) as held:
                assert held.places() == hosts_of("slice-0", "slice-1")
                time.sleep(USE_S)
                return held.seconds
        except NotPlaced:
            return None

    with ThreadPoolExecutor(2) as jobs:
        return list(jobs.map(job, ["first", "second"]))


@in_ci_and_in_soak
@pytest.mark.usefixtures("cluster")
def test_both_jobs_get_their_turn(measured_pair: Callable[..., MeasuredPair], rounds: int):
    """Half a job on half the slices helps nobody: both wait for what the other holds, and both time out."""
    pair = measured_pair("R1", "two jobs, each wants both of 2 slices", deadline_s=DEADLINE_S)

    for number in range(rounds):
        for side in in_turn(number):
            (pair.stock if side is on_stock else pair.raytpu).add(*run_two_jobs(side))

    pair.assert_raytpu_placed_all(2 * rounds)
