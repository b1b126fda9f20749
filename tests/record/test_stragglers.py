"""Hosts that keep the others waiting are told by name, amount and phase."""

from __future__ import annotations

import pytest

from raytpu.record import AttemptStarted, CheckpointSaved, StepFinished
from raytpu.record.stragglers import HostPace, find_stragglers, host_paces
from tests.record.logbook import Logbook


def pace(host: str, **seconds: float) -> HostPace:
    """One that spends a second on a step, nearly all of it waiting for its devices."""
    return HostPace(**{"host": host, "step_s": 1.0, "data_wait_s": 0.01, "work_s": 0.02} | seconds)


CASES = {
    "alike": ({}, []),
    "its data is slow": ({"data_wait_s": 0.31}, [("data wait", 0.3, 0.01)]),
    "its Python is slow": ({"work_s": 0.22}, [("step", 0.2, 0.02)]),
    "its saves are slow": ({"save_s": 5.5}, [("checkpoint", 5.0, 0.5)]),
    "too little to be seen": ({"data_wait_s": 0.05}, []),
    "faster": ({"data_wait_s": 0.0, "work_s": 0.0}, []),
    "in two phases, the worse first": (
        {"data_wait_s": 0.11, "work_s": 0.22},
        [("step", 0.2, 0.02), ("data wait", 0.1, 0.01)],
    ),
}


@pytest.mark.parametrize(("own", "expected"), CASES.values(), ids=CASES)
def test_a_host_that_is_behind_is_told_by_how_much_and_in_which_phase(own, expected):
    """The time of a whole step is alike on all hosts: it names nobody."""
    paces = [
        pace("slice-0/0", save_s=0.5),
        pace("slice-0/1", save_s=0.5),
        pace("slice-1/0", **{"save_s": 0.5} | own),
    ]

    found = find_stragglers(paces)

    assert [(each.phase, round(each.behind_s, 6), each.others_s) for each in found] == expected
    assert {each.host for each in found} <= {"slice-1/0"}


@pytest.mark.parametrize("paces", [[], [pace("slice-0/0", data_wait_s=0.9)]], ids=["nobody", "alone"])
def test_one_host_is_behind_nobody(paces):
    assert find_stragglers(paces) == []


def test_a_save_by_one_host_alone_is_no_lag():
    """Of replicas, one saves for all."""
    assert find_stragglers([pace("slice-0/0", save_s=9.0), pace("slice-1/0")]) == []


def test_paces_are_medians_of_an_attempt_the_slowest_first():
    """One slow step is no slow host."""
    book = Logbook().add(AttemptStarted(attempt=1))
    for host, wait_s in (("slice-0/0", 0.1), ("slice-0/10", 0.5), ("slice-0/2", 0.1)):
        for step in range(1, 6):
            seconds = 9.0 if step == 1 else 1.0 + 0.1 * wait_s
            book.add(StepFinished(step=step, seconds=seconds, data_wait_s=wait_s, wait_s=0.3), host)
        book.add(CheckpointSaved(step=5, blocked_s=0.25), host)
    book.add(AttemptStarted(attempt=2)).add(StepFinished(step=6, seconds=50.0), "slice-0/2")

    paces = host_paces(book.records, attempt=1)

    assert [each.host for each in paces] == ["slice-0/10", "slice-0/0", "slice-0/2"]
    assert paces[0].step_s == pytest.approx(1.05)
    assert (paces[0].data_wait_s, paces[0].save_s) == (0.5, pytest.approx(0.05))
    assert paces[0].work_s == pytest.approx(0.25)
