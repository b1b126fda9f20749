"""Replicas that average their parameters every few steps, on real sockets; hosts are threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from raytpu.errors import SpecError
from raytpu.gang import stream
from raytpu.record import EventLog, RunDirectory
from raytpu.train.replicas.diloco_step import outer_step
from tests.train.diloco_hosts import EVERY, MOMENTUM, RATE, DilocoHost, assert_same, reference
from tests.train.replica_hosts import World
from tests.waiting import await_true

ALWAYS, NEVER = (lambda _: True), (lambda _: False)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []
    log = EventLog(RunDirectory.newest(str(tmp_path), "run"), "host")

    def make(
        *founders: str, steps: int = 5 * EVERY, meets: Any = NEVER, stuck_s: float = 60, **host: Any
    ) -> World:
        worlds.append(
            World(
                *founders,
                steps=steps,
                host=partial(DilocoHost, log=log, meets=meets, **host),
                every_steps=EVERY,
                stuck_s=stuck_s,
                outer_learning_rate=RATE,
                outer_momentum=MOMENTUM,
            )
        )
        return worlds[-1]

    yield make
    for each in worlds:
        each.close()
    log.close()


def assert_ended_as(world: World, member: str, wanted: Callable[[int], list[np.ndarray]]) -> None:
    for host in world.hosts[member]:
        assert_same(host.states[world.steps], wanted(host.position))


@pytest.mark.parametrize("meets", [NEVER, ALWAYS, lambda step: step % 8 == 0], ids=["never", "always", "8"])
def test_replicas_take_inner_steps_alone_and_outer_steps_together(world, meets):
    each = world("a", "b", meets=meets)
    each.add("a"), each.add("b")
    each.join("a", "b")

    for member in ("a", "b"):
        [part] = each.coordinator.view.parts_of(member)
        assert_ended_as(each, member, lambda at, part=part: reference(each.steps, at, meets, replica=part))
        assert [host.parts_read for host in each.hosts[member]] == [{part}, {part}], "it reads no other"
    for ours, theirs in zip(each.hosts["a"], each.hosts["b"], strict=True):
        names = ("count", "key", "velocity", "velocity", "weights", "weights")  # in the order of the leaves
        for name, one, other in zip(names, ours.states[20], theirs.states[20], strict=True):
            assert np.array_equal(one, other) or (name == "velocity" and meets is not ALWAYS), name


def test_where_the_optimizers_meet_a_loss_changes_nothing(world):
    """The part of the lost one is made again from a state that all had."""
    each = world("a", "b", meets=ALWAYS)
    gone = threading.Event()
    each.add("a", before_step=lambda step: step == 10 and gone.wait(10))
    each.add("b", before_step=lambda step: step == 11 and gone.wait(10))
    await_true("b to be in the middle of a round", lambda: each.hosts["b"][0].done == 10)
    each.kill("b")
    gone.set()
    each.join("a")

    assert_ended_as(each, "a", lambda position: reference(each.steps, position, ALWAYS))
    assert list(each.lost) == ["b"]


def test_a_lost_part_goes_on_with_the_optimizer_of_who_makes_it(world):
    """What only the lost replica had is gone: this, and no more than this, differs."""
    each = world("a", "b")
    gone = threading.Event()
    each.add("a", before_step=lambda step: step == 10 and gone.wait(10))
    each.add("b", before_step=lambda step: step == 11 and gone.wait(10))
    await_true("b to be in the middle of a round", lambda: each.hosts["b"][0].done == 10)
    [kept, taken] = each.coordinator.view.parts_of("a")[0], each.coordinator.view.parts_of("b")[0]
    each.kill("b")
    gone.set()
    each.join("a")

    heirs = {number: {taken: kept} for number in range(3, 6)}
    assert_ended_as(each, "a", lambda position: reference(each.steps, position, NEVER, heirs, replica=kept))


def test_a_replica_that_joins_has_the_same_state_and_takes_a_part(world):
    each = world("a", steps=10 * EVERY, meets=ALWAYS)
    go_on = threading.Event()
    each.add("a", before_step=lambda step: step == 5 and go_on.wait(10))
    await_true("the first outer step", lambda: each.hosts["a"][0].done == 4)
    joined = each.add("b", joining=True)
    await_true("the joiner to be heard of", lambda: joined[0].session.membership is not None)
    go_on.set()
    each.join("a", "b")

    for member in ("a", "b"):
        assert_ended_as(each, member, lambda position: reference(each.steps, position, ALWAYS))
    assert all(host.parts_read for host in joined)


def test_who_comes_to_another_inner_step_is_slow_not_stuck(world, monkeypatch):
    """The others have made theirs, and wait for longer than a step may take."""
    monkeypatch.setattr(stream, "BEAT_S", 0.05)
    each = world("a", "b", steps=EVERY, stuck_s=1.0)
    each.add("a")
    each.add("b", before_step=lambda _: time.sleep(0.4))
    each.join("a", "b")

    assert each.lost == {}


def test_what_is_saved_where_optimizers_meet_is_all_that_a_run_needs(world):
    """A resumed run would drift from one that was not interrupted."""
    first = world("a", "b", steps=2 * EVERY, meets=ALWAYS)
    first.add("a"), first.add("b")
    first.join("a", "b")
    saved = {host.position: host.last_whole for host in first.hosts["b"]}

    second = world("a", "b", meets=ALWAYS, begin_after=2 * EVERY, saved_whole=saved)
    second.add("a"), second.add("b")
    second.join("a", "b")

    assert_ended_as(second, "a", lambda position: reference(second.steps, position, ALWAYS))


def test_a_run_does_not_begin_between_outer_steps(world):
    each = world("a", begin_after=0)
    [host, _] = each.add("a")
    each.join("a")

    with pytest.raises(SpecError, match=r"is of step 6, and train.replicas.every_steps is 4"):
        host.made.begin(host.last_whole, 6)


@pytest.mark.parametrize(
    "parameters",
    [lambda _: {}, lambda _: 3.0, lambda _: "weights"],
    ids=["nothing", "a number", "a name"],
)
def test_parameters_are_a_part_of_the_state(world, parameters):
    each = world("a", parameters=parameters)
    hosts = each.add("a")
    await_true("the refusal", lambda: all(host.error for host in hosts))

    assert "parameters must give a part of the state" in str(hosts[0].error)


def test_the_outer_optimizer_is_sgd_with_nesterov_momentum():
    parameters, velocity = jnp.ones(4), jnp.zeros(4)
    known = optax.sgd(RATE, momentum=MOMENTUM, nesterov=True)
    other, state = parameters, known.init(parameters)
    for number in range(5):
        delta = jnp.arange(4.0) - number
        parameters, velocity = jax.jit(outer_step(RATE, MOMENTUM))(parameters, velocity, delta)
        updates, state = known.update(delta, state)
        other = optax.apply_updates(other, updates)

    np.testing.assert_allclose(parameters, other, rtol=1e-6)
