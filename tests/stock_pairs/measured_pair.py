"""One case, tried on stock Ray and on raytpu in turn: what came of it, as a row of a table."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

CI_ROUNDS = 3
SOAK_ROUNDS = int(os.environ.get("RAYTPU_SOAK_ROUNDS", "50"))

ENOUGH_TO_TELL = 20
"""Tries of stock Ray from which on "all placed" is no luck: the case that it gets right most often, the gang
of replicas, it got right in 4 of 6 tries, and 20 in a row by luck would be seen once in 3,000 times."""

in_ci_and_in_soak = pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(CI_ROUNDS, id="ci", marks=pytest.mark.local_ray),
        # 120 s a round by feel: the slowest case waits up to 35 s for stock Ray and replaces two hosts.
        pytest.param(
            SOAK_ROUNDS, id="soak", marks=[pytest.mark.soak, pytest.mark.timeout(300 + 120 * SOAK_ROUNDS)]
        ),
    ],
)
"""Runs a case in CI with few rounds, and in the soak with ``RAYTPU_SOAK_ROUNDS`` (50)."""


@dataclass(slots=True)
class Tries:
    """Seconds of each try until it was placed; ``None`` where it was not."""

    seconds: list[float | None] = field(default_factory=list)

    def add(self, *seconds: float | None) -> None:
        """Note one try or several."""
        self.seconds.extend(seconds)

    @property
    def placed(self) -> int:
        return sum(each is not None for each in self.seconds)

    @property
    def all_placed(self) -> bool:
        return bool(self.seconds) and self.placed == len(self.seconds)

    def __str__(self) -> str:
        """Such as ``3 of 8 placed, median 0.20 s, slowest 0.31 s``."""
        if not self.seconds:
            return "not tried"
        taken = [each for each in self.seconds if each is not None]
        times = f", median {statistics.median(taken):.2f} s, slowest {max(taken):.2f} s" if taken else ""
        return f"{self.placed} of {len(self.seconds)} placed{times}"


@dataclass(slots=True)
class MeasuredPair:
    """The two sides of one claim. The test asserts raytpu's; stock Ray's is told, whatever it is."""

    name: str
    """Of the regression, such as ``R1``."""
    case: str
    deadline_s: float
    """For one try, the same on both sides."""
    stock: Tries = field(default_factory=Tries)
    raytpu: Tries = field(default_factory=Tries)
    notes: list[str] = field(default_factory=list)
    """What else was seen, a line each."""

    @property
    def verdict(self) -> str:
        """Whether the difference that the case is about is still there; empty when it is."""
        if not self.stock.all_placed:
            return ""
        tried = len(self.stock.seconds)
        if tried < ENOUGH_TO_TELL:
            return f"stock Ray placed all {tried} too: luck, or it has caught up; `make soak` tells"
        return f"STOCK RAY HAS CAUGHT UP: it placed all {tried}; raytpu's claim is no longer a difference"

    def lines(self, ray_version: str) -> Iterable[str]:
        """The row for a person."""
        yield f"{self.name}  {self.case} (deadline {self.deadline_s:g} s)"
        yield f"    stock Ray {ray_version}: {self.stock}"
        yield f"    raytpu: {self.raytpu}"
        for note in (*self.notes, *filter(None, [self.verdict])):
            yield f"    {note}"

    def assert_raytpu_placed_all(self, tries: int) -> None:
        """Fail with both sides in the message, unless raytpu placed every one of at least ``tries``."""
        assert len(self.raytpu.seconds) >= tries
        assert self.raytpu.all_placed, f"{self.case}: raytpu {self.raytpu}; stock Ray {self.stock}"
