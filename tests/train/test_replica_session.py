"""Coordinator, sessions and the exchange between them, on real sockets; hosts are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from raytpu.errors import HostLost, ProgramFailed, SliceLost
from tests.train.replica_hosts import World, assert_exact
from tests.waiting import await_true


@pytest.fixture
def world() -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(*founders: str, **options: Any) -> World:
        worlds.append(World(*founders, **options))
        return worlds[-1]

    yield make
    for each in worlds:
        each.close()


def test_replicas_make_the_steps_that_one_world_would_make(world):
    each = world("a", "b")
    each.add("a"), each.add("b")
    each.join("a", "b")

    assert_exact(each, "a", "b")
    assert each.lost == {}
    assert each.admitted == ["a", "b"] or each.admitted == ["b", "a"]


def test_a_lost_replica_leaves_its_rows_to_the_others(world):
    each = world("a", "b")
    gone = threading.Event()
    each.add("a", before_step=lambda step: step == 10 and gone.wait(10))
    each.add("b")
    await_true("the others to be at step 9", lambda: each.hosts["b"][0].done == 9)
    each.kill("b")
    gone.set()
    each.join("a")

    assert_exact(each, "a")
    assert list(each.lost) == ["b"]


def test_a_replica_that_joins_takes_state_and_parts_from_the_living(world):
    each = world("a", steps=60)
    go_on = threading.Event()
    each.add("a", before_step=lambda step: step == 5 and go_on.wait(10))
    await_true("step 4", lambda: each.hosts["a"][0].done == 4)
    mine: set[int] = set()
    each.add("b", joining=True, before_step=mine.add)
    go_on.set()
    each.join("a", "b")

    assert_exact(each, "a", "b")
    assert each.admitted == ["a", "b"]
    assert mine, "it computes a part as soon as it has the state"


def test_a_replica_that_is_to_leave_ends_between_two_steps(world):
    """One that is dropped in the middle of a step has the others compute its part again."""
    each = world("a", "b")
    go_on = threading.Event()
    each.add("a")
    gone = each.add("b", before_step=lambda step: step == 5 and go_on.wait(10))
    await_true("step 4", lambda: gone[1].done == 4)
    each.coordinator.leave("b", "preempted")
    go_on.set()
    each.join("a")

    assert_exact(each, "a")
    assert each.lost == {"b": "preempted"}
    await_true("its end", lambda: all(host.error is not None for host in gone))
    assert {type(host.error) for host in gone} == {SliceLost}
    assert {host.done for host in gone} == {4}, "the step that it voted for is the others'"
    view = each.coordinator.view
    assert (view.members, view.epoch) == (("a",), 2), "one change, that of the commit"


def test_a_silent_host_is_given_up(world):
    """A frozen machine sends no end of its connections."""
    each = world("a", "b", silence_s=3)
    stop = threading.Event()
    each.add("a")
    frozen = each.add("b", before_step=lambda step: step == 5 and stop.wait(20))
    await_true("step 4", lambda: frozen[1].done == 4)
    frozen[1].session.membership._closed.set()  # its beats end; nothing else does
    each.join("a")
    stop.set()

    assert_exact(each, "a")
    assert "host 1 has been silent for" in each.lost["b"]


def test_a_host_that_keeps_all_others_waiting_is_named_and_given_up(world, capfd):
    """An endless loop still beats, and its peers only wait."""
    each = world("a", "b", stuck_s=1)
    stop = threading.Event()
    each.add("a")
    stuck = each.add("b")
    stuck[1].before_step = lambda step: step == 5 and stop.wait(20)
    each.join("a")
    stop.set()

    assert_exact(each, "a")
    assert "host 1 has been at step 5 for" in each.lost["b"]
    shown = capfd.readouterr().err
    assert "b: its host 1 has been at step 5 for" in shown
    assert "before_step" in shown or "compute" in shown, "the stack of the one that is stuck"


def test_a_pause_of_one_host_has_an_end(world):
    """Saving, evaluating and compiling keep a host from its step by intent; one that never ends keeps all."""
    each = world("a", "b", stuck_s=2, pause_s=3)  # hosts say a word a second
    stop = threading.Event()
    each.add("a")
    pausing = each.add("b")

    def pause(step: int) -> None:
        if step == 5:
            with pausing[0].session.membership.phase("evaluating"):
                stop.wait(20)

    pausing[0].before_step = pause
    each.join("a")
    stop.set()

    assert_exact(each, "a")
    assert "host 0 has been evaluating for" in each.lost["b"]


def test_when_all_are_late_at_once_nobody_is_given_up_and_the_run_ends(world):
    """Given up one by one they would only show the bug again; left alone the run hangs for ever."""
    each = world("a", "b", stuck_s=0.5, pause_s=2)
    stop = threading.Event()
    for member in ("a", "b"):
        each.add(member, before_step=lambda step: step == 5 and stop.wait(20))

    def over() -> bool:
        try:
            each.coordinator.check()
        except ProgramFailed as error:
            return "step 5 is not finished after" in str(error)
        return False

    await_true("the end", over)
    stop.set()

    assert each.lost == {}
    assert [set(stuck.late) for stuck in each.stuck] == [{"a/0", "a/1", "b/0", "b/1"}]


def test_the_last_save_is_made_by_another_when_the_one_that_leads_is_lost(world):
    """Else a finished run would have to make its last steps again."""
    each = world("a", "b")
    saving = threading.Event()
    first = each.add("a")
    for host in first:
        host.session.finish = lambda _: saving.wait(20)  # it is still saving
    other = each.add("b")
    await_true("the end of the steps", lambda: all(host.done == 30 for host in [*first, *other]))
    assert not any(host.saved for host in other)
    each.kill("a")
    await_true("the other to save", lambda: all(host.saved for host in other))
    saving.set()


def test_when_all_are_lost_the_driver_hears_why(world):
    each = world("a", steps=10_000)
    each.add("a")
    await_true("steps", lambda: each.hosts["a"][0].done > 3)
    each.kill("a")

    def over() -> bool:
        try:
            each.coordinator.check()
        except HostLost as error:
            return "every replica is lost" in str(error)
        return False

    await_true("the end", over)


def test_two_losses_while_a_replica_computes_leave_it_unharmed(world):
    """It acts on every view in order, also on one of members that are gone when it comes to that."""
    each = world("a", "b", "c")
    go_on = threading.Event()
    each.add("a", before_step=lambda step: step == 5 and go_on.wait(20))
    each.add("b"), each.add("c")
    await_true("step 4", lambda: all(host.done == 4 for hosts in each.hosts.values() for host in hosts))
    for member in ("b", "c"):
        each.kill(member)
        await_true(f"{member} to be given up", lambda member=member: member in each.lost)
    go_on.set()
    each.join("a")

    assert_exact(each, "a")
