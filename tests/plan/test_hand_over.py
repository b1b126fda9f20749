"""What follows a notice that a slice goes away: tables."""

from __future__ import annotations

import pytest

from raytpu.plan.hand_over import (
    Leave,
    Pace,
    SaveNow,
    Source,
    TrainOn,
    last_save,
    leaving_replicas,
    notice_s,
)
from raytpu.spec import Recovery

PACE = Pace(step_s=0.5, save_s=4.0)
"""11 s to save (1.5 · 4 + 4 · 0.5 + 3), 4 s to leave."""


@pytest.mark.parametrize(
    ("source", "seconds"),
    [(Source.SIGTERM, 25), (Source.DRAIN, 30), (Source.PREEMPTED, 30), (Source.MAINTENANCE, 60)],
)
def test_a_notice_without_a_deadline_is_as_long_as_google_says(source: Source, seconds: float) -> None:
    assert notice_s(source, Recovery()) == seconds


@pytest.mark.parametrize(
    ("seconds_left", "spares_ready", "pace", "expected"),
    [
        (30, True, PACE, SaveNow()),
        (1, True, PACE, SaveNow()),
        (30, False, PACE, TrainOn(seconds=19)),
        (11, False, PACE, SaveNow()),
        (0, False, PACE, SaveNow()),
        (30, False, Pace(), TrainOn(seconds=12)),
        (30, False, Pace(step_s=0.5, save_s=40.0), SaveNow()),
        (3600, False, PACE, TrainOn(seconds=3589)),
    ],
)
def test_in_lockstep_the_last_save_is_at_once_with_a_spare_and_just_in_time_without(
    seconds_left: float, spares_ready: bool, pace: Pace, expected: object
) -> None:
    """Training on beside an idle spare loses every step; saving at once without one wins none."""
    assert last_save(seconds_left, spares_ready=spares_ready, pace=pace) == expected


@pytest.mark.parametrize(
    ("seconds_left", "full", "expected"),
    [
        ({"b": 30}, "ab", TrainOn(seconds=26)),
        ({"b": 4}, "ab", Leave(members=("b",))),
        ({"b": 30}, "abc", Leave(members=("b",))),
        ({"b": 30}, "a", TrainOn(seconds=30)),
        ({"b": 3, "c": 4, "d": 30}, "abcd", Leave(members=("b", "c"))),
        ({"a": 30, "b": 3}, "ab", Leave(members=("b",))),
        ({"a": 30, "b": 30}, "ab", TrainOn(seconds=26)),
        ({"a": 11, "b": 11}, "ab", SaveNow()),
        ({"a": 11, "b": 5}, "ab", SaveNow()),
        ({"a": 30}, "a", TrainOn(seconds=26)),
        ({"a": 10}, "a", SaveNow()),
        ({"a": 10}, "ab", TrainOn(seconds=6)),
    ],
    ids=[
        "it works until its replacement has the state",
        "or until its time is over",
        "its replacement takes part",
        "one without the state is not waited for",
        "several, each in its time",
        "of all, the one with the most time stays",
        "all, and there is time",
        "all: one saves",
        "all: the others need not leave before",
        "the last one",
        "the last one saves",
        "another one has come",
    ],
)
def test_a_replica_leaves_as_late_as_it_can_unless_it_is_replaced(
    seconds_left: dict[str, float], full: str, expected: object
) -> None:
    """One that leaves at once halves the speed; one that stays too long costs a step, the last one all."""
    assert leaving_replicas(seconds_left, list(full), parts=2, pace=PACE) == expected
