"""Replicas commit a step on all or on none, whoever dies and when: the protocol, model-checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from raytpu.plan.replica_messages import Committed
from tests.plan.replica_world import SimHost, World

SOAK_EXAMPLES = int(os.environ.get("RAYTPU_SOAK_EXAMPLES", "1500"))

PICKS = st.integers(0, 999)
SEEDS = st.integers(0, 2**32 - 1)


def one_of(things: Sequence[Any], pick: int) -> Any:
    return things[pick % len(things)]


def some(what: Callable[[Replicas], Sequence[Any]]) -> Callable[[Any], Any]:
    """Only when there is one to choose, and the run is not over."""
    return precondition(lambda replicas: replicas.goes_on() and bool(what(replicas)))


def living(replicas: Replicas) -> list[SimHost]:
    return [host for host in replicas.world.hosts.values() if host.alive]


def spared(replicas: Replicas) -> list[SimHost]:
    """Hosts whose death leaves the state on a member that is well; without these most runs were soon over."""
    well = replicas.world.with_state()
    return [host for host in living(replicas) if host.member not in well or len(well) > 1]


def may_freeze(replicas: Replicas) -> list[str]:
    well = replicas.world.with_state()
    healthy = replicas.world.healthy()
    return [each for each in healthy if each not in well or len(well) > 1]


def told_of_a_commit(replicas: Replicas) -> list[SimHost]:
    return [
        host for host in living(replicas) if any(isinstance(message, Committed) for message in host.inbox)
    ]


class Replicas(RuleBasedStateMachine):
    """Every order of messages, with deaths of hosts and of coordinators between any two."""

    @initialize(founders=st.integers(1, 4), hosts=st.integers(1, 2), least=st.integers(1, 2))
    def start(self, founders: int, hosts: int, least: int) -> None:
        self.world = World(founders, hosts, least)

    def goes_on(self) -> bool:
        return self.world.state.over is None

    @rule(seed=SEEDS, actions=st.integers(1, 80))
    def they_work(self, seed: int, actions: int) -> None:
        self.world.run(Random(seed), actions)

    @rule(seed=SEEDS)
    def they_work_until_a_commit_is_under_way(self, seed: int) -> None:
        self.world.run(Random(seed), 300, until=lambda: bool(told_of_a_commit(self)))

    @rule(seed=SEEDS)
    def they_work_long(self, seed: int) -> None:
        self.world.run(Random(seed), 200)

    @precondition(lambda replicas: replicas.goes_on())
    @rule(seed=SEEDS, losses=st.integers(1, 6))
    def they_work_under_fire(self, seed: int, losses: int) -> None:
        """Loss after loss, with replacements, each at another point of some step."""
        chance = Random(seed)
        for _ in range(losses):
            if len(self.world.healthy()) < 4:
                self.world.start_member()
            self.world.run(chance, chance.randrange(80))
            hosts = spared(self)
            match chance.randrange(6):
                case 0:
                    self.world.kill_coordinator(old_record=chance.random() < 0.5)
                case 1 if may_freeze(self):
                    self.world.declare_lost(chance.choice(may_freeze(self)))
                case 1 if living(self):
                    self.world.notice(chance.choice(living(self)).member)
                case 2 | 3 if living(self):
                    self.world.break_connection(chance.choice(living(self)))
                case _ if hosts:
                    self.world.kill(chance.choice(hosts))
            if self.world.broken() and chance.random() < 0.7:
                self.world.declare_lost(chance.choice(self.world.broken()))

    @some(spared)
    @rule(pick=PICKS)
    def a_host_dies(self, pick: int) -> None:
        self.world.kill(one_of(spared(self), pick))

    @some(living)
    @rule(pick=PICKS)
    def any_host_may_die(self, pick: int) -> None:
        if pick < 100:
            self.world.kill(one_of(living(self), pick))

    @some(lambda replicas: [host for host in told_of_a_commit(replicas) if host in spared(replicas)])
    @rule(pick=PICKS)
    def a_host_dies_before_it_applies(self, pick: int) -> None:
        hosts = [host for host in told_of_a_commit(self) if host in spared(self)]
        self.world.kill(one_of(hosts, pick))

    @some(lambda replicas: replicas.world.broken())
    @rule(pick=PICKS)
    def a_loss_is_noticed(self, pick: int) -> None:
        self.world.declare_lost(one_of(self.world.broken(), pick))

    @some(may_freeze)
    @rule(pick=PICKS)
    def a_frozen_member_is_taken_for_lost(self, pick: int) -> None:
        self.world.declare_lost(one_of(may_freeze(self), pick))

    @some(may_freeze)
    @rule(pick=PICKS)
    def a_member_is_to_leave(self, pick: int) -> None:
        self.world.notice(one_of(may_freeze(self), pick))

    @precondition(lambda replicas: replicas.goes_on() and len(replicas.world.healthy()) < 4)
    @rule()
    def a_member_starts(self) -> None:
        self.world.start_member()

    @some(living)
    @rule(pick=PICKS)
    def a_connection_breaks(self, pick: int) -> None:
        self.world.break_connection(one_of(living(self), pick))

    @precondition(lambda replicas: replicas.goes_on())
    @rule(old_record=st.booleans())
    def the_coordinator_dies(self, old_record: bool) -> None:
        self.world.kill_coordinator(old_record=old_record)

    @invariant()
    def the_states_are_right(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        """Once nobody dies any more, two more steps are committed and everybody who is well has joined."""
        if not hasattr(self, "world"):
            return
        world = self.world
        steps: list[int] = []

        def all_is_well() -> bool:
            view = world.state.view
            if world.state.over is not None:
                return True
            if view is None:
                return False
            steps.append(view.step)
            return view.step >= steps[0] + 2 and set(world.healthy()) <= set(view.full)

        world.run_fairly(all_is_well)


def run(examples: int, steps: int, *, derandomize: bool) -> None:
    run_state_machine_as_test(
        Replicas,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=derandomize,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(120)
def test_replicas_agree_whatever_happens():
    """Each rule alone is tested next door; replicas that differ come from losses that meet."""
    run(50, 25, derandomize=True)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_replicas_agree_whatever_happens_for_long():
    run(SOAK_EXAMPLES, 60, derandomize=False)
