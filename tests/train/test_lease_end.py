"""A driver that was frozen is told why its slices are gone, not what their loss has done to its hosts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from raytpu.errors import HostLost, LeaseEnded, ProgramFailed, RunFailed
from raytpu.spec import Recovery
from raytpu.train import attempt
from raytpu.train.replicas import controller
from tests.waiting import await_true

SILENT = LeaseEnded("mine", "this driver was silent for 21 s")
TAKEN_BACK = "INTENDED_SYSTEM_EXIT … Destroying worker since its placement group was removed."
CRASHED = "Worker unexpectedly exits with a connection error code 2. End of file."


class Held:
    """Slices of a lease, whose end is heard of at the third look."""

    def __init__(self, end: LeaseEnded | None, notice: object = None) -> None:
        self.end, self.notice, self.looks = end, notice, 0
        self.lost: dict[str, str] = {}
        self.slices = ("slice-0",)

    def check(self, _known: object = ()) -> None:
        self.looks += 1
        if self.end is not None and self.looks >= 3:
            raise self.end


def look_for_cause(held: Held, death: str, monkeypatch: pytest.MonkeyPatch) -> LeaseEnded | None:
    monkeypatch.setattr(attempt, "unwell_hosts", lambda _: {})
    monkeypatch.setattr(attempt, "HEALTH_PATIENCE_S", 0.05)
    watch = SimpleNamespace(look=lambda: None, lost={"slice-0/1": death})
    return attempt._look_for_cause(cast(Any, held), [], cast(Any, watch), 5.0)


def test_hosts_of_slices_that_were_taken_back_are_not_the_cause(monkeypatch: pytest.MonkeyPatch):
    """ "Placement group was removed" tells nobody that it was his own driver that stood still."""
    assert look_for_cause(Held(SILENT), TAKEN_BACK, monkeypatch) is SILENT


def test_a_crash_is_not_waited_upon_for_a_lease_that_has_not_ended(monkeypatch: pytest.MonkeyPatch):
    """Every restart would take seconds longer."""
    held = Held(None)
    took_s = await_true("a cause", lambda: look_for_cause(held, CRASHED, monkeypatch) is None)

    assert took_s < 2


def run_of_replicas(failure: RunFailed, *leases: Held) -> RunFailed:
    """How a run of replicas ends for its caller, when ``failure`` is what is seen of its end."""

    def check() -> None:
        raise failure

    staff = SimpleNamespace(
        check=check,
        stop=lambda: None,
        present=list,
        leases=lambda: [each for each in leases if each.notice is None],
    )
    training = SimpleNamespace(stop_requested=lambda: None, recovery=Recovery(), log=None)
    with pytest.raises(RunFailed) as caught:
        controller._Run(cast(Any, training), cast(Any, staff)).to_its_end()
    return caught.value


@pytest.mark.parametrize("failure", [HostLost("every replica is lost"), RunFailed("2 replicas were lost")])
def test_replicas_that_were_taken_back_are_not_the_cause(failure: RunFailed):
    assert run_of_replicas(failure, Held(SILENT)) is SILENT


def test_a_failure_with_its_slices_held_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(controller, "LEASE_PATIENCE_S", 0.05)
    lost, bug = HostLost("every replica is lost"), ProgramFailed("slice-0/0: ValueError: no")

    assert run_of_replicas(lost, Held(None)) is lost
    assert run_of_replicas(bug, Held(SILENT)) is bug
