"""Replicas that average every few steps, without Ray: hosts are threads with a device each can share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from raytpu.record import EventLog
from raytpu.runtime import ProgramCache
from raytpu.train.programs import Program, fused
from raytpu.train.replicas.diloco_step import DilocoStep, outer_step
from raytpu.train.replicas.host_shards import host_shards
from raytpu.train.replicas.replicated_step import state_from_replica
from tests.train.replica_hosts import PARTS, Host

WIDTH, EVERY = 5, 4
RATE, MOMENTUM = 0.7, 0.6


@cache
def mesh() -> Mesh:
    """Of one device. Not made by importing this: the devices of a session are set up by its first test."""
    return Mesh(np.array(jax.devices()[:1]), ("fsdp",))


def where() -> NamedSharding:
    return NamedSharding(mesh(), PartitionSpec())


State = dict[str, Any]

PROGRAMS: dict[str, Program] = {}


def first_state() -> State:
    state = {
        "weights": {"matrix": jnp.zeros((WIDTH, 2)), "bias": jnp.zeros(())},
        "velocity": {"matrix": jnp.zeros((WIDTH, 2)), "bias": jnp.zeros(())},
        "key": jax.random.key(7),
        "count": jnp.zeros((), jnp.int32),
    }
    return jax.device_put(state, where())


def gradients(state: State, batch: jax.Array) -> Any:
    """Of a regression whose slopes are noisy, so that the order of steps shows."""
    noise = jax.random.normal(state["key"], (WIDTH, 2))

    def loss(weights: Any) -> jax.Array:
        return jnp.mean((batch @ weights["matrix"] + weights["bias"] - 1) ** 2) + 0.01 * jnp.sum(
            noise * weights["matrix"]
        )

    value, slopes = jax.value_and_grad(loss)(state["weights"])
    return slopes, {"loss": value}


def apply(state: State, slopes: Any) -> Any:
    """Momentum, a falling rate, and a random key that moves on."""
    velocity = jax.tree.map(lambda v, slope: 0.8 * v + slope, state["velocity"], slopes)
    rate = 0.1 / (1 + 0.1 * state["count"])
    new = {
        "weights": jax.tree.map(lambda w, v: w - rate * v, state["weights"], velocity),
        "velocity": velocity,
        "key": jax.random.split(state["key"])[0],
        "count": state["count"] + 1,
    }
    return new, {"rate": jnp.asarray(rate, jnp.float32)}


INNER, OUTER = jax.jit(fused(gradients, apply)), jax.jit(outer_step(RATE, MOMENTUM))


def rows(step: int, part: int, position: int) -> jax.Array:
    content = np.random.default_rng((step, part, position)).normal(size=(3, WIDTH)).astype(np.float32)
    return jax.device_put(content, where())


def numbers(tree: Any) -> list[np.ndarray]:
    """The arrays of a state, keys as their data, to be compared bit for bit."""
    leaves = [
        jax.random.key_data(leaf) if leaf.dtype == jax.random.key(0).dtype else leaf
        for leaf in jax.tree.leaves(tree)
    ]
    return [np.array(each) for each in host_shards(leaves)]


@dataclass
class DilocoHost(Host):
    """One host in a thread; it counts inner steps."""

    log: EventLog = None  # type: ignore[assignment]
    meets: Callable[[int], bool] = lambda _: True
    parameters: Callable[[Any], Any] = lambda state: state["weights"]
    saved_whole: Mapping[int, Any] = field(default_factory=dict)
    """By the step to begin after; ``begin_after`` says which."""
    begin_after: int = 0
    parts_read: set[int] = field(default_factory=set)
    states: dict[int, list[np.ndarray]] = field(default_factory=dict)
    """After each outer step."""

    def _train(self) -> None:
        session = self.session
        self.made = step = DilocoStep(
            gradients, apply, self.parameters, session=session, jit=self._jit, meets=self.meets
        )
        whole = step.whole(first_state())
        if self.joining:
            outer, whole = state_from_replica(session, whole, self.log)
            self.done = outer * EVERY
        else:
            self.done = self.begin_after
            if self.begin_after:
                whole = jax.tree.map(jnp.copy, self.saved_whole[self.position])
            session.begin(self.done // EVERY, {})
        state = step.begin(whole, self.done)
        while self.done < self.steps:
            number = self.done + 1

            def part(index: int, number: int = number) -> jax.Array:
                self.before_step(number)
                self.parts_read.add(index)
                return rows(number, index, self.position)

            state, _ = step(state, part)
            if number % EVERY == 0:
                self.states[number] = numbers(state)
                self.last_whole = step.whole(state)
            self.done = number
        session.finish(self._save)

    def _jit(self, function: Callable[..., Any], **options: Any) -> Program:
        """Compiled once for all hosts of all tests."""
        programs = ProgramCache(None, mesh())
        program = Program(
            function, options, cache=programs, log=self.log, pause=nullcontext, waiting=nullcontext
        )
        return PROGRAMS.setdefault(program.name, program)


def reference(
    steps: int,
    position: int,
    meets: Callable[[int], bool],
    heir_of: Mapping[int, Mapping[int, int]] | None = None,
    replica: int = 0,
) -> list[np.ndarray]:
    """State after ``steps`` on the replica of part ``replica``, computed in one thread.

    ``heir_of[outer][part]``: in this outer step the part begins with the optimizer of that other one.
    """
    states = [first_state() for _ in range(PARTS)]
    velocity = jax.tree.map(jnp.zeros_like, states[0]["weights"])
    for number in range(1, steps // EVERY + 1):
        for part, other in ((heir_of or {}).get(number) or {}).items():
            states[part] = states[other]
        before = states[0]["weights"]
        ended = []
        for part in range(PARTS):
            state = states[part]
            for step in range((number - 1) * EVERY + 1, number * EVERY + 1):
                state, _ = INNER(state, rows(step, part, position))
            ended.append(state)
        deltas = [jax.tree.map(lambda old, new: old - new, before, each["weights"]) for each in ended]
        after, velocity = OUTER(before, velocity, _mean(deltas))
        states = [each | {"weights": after} for each in ended]
        if meets(number * EVERY):
            common = _mean([each["velocity"] for each in ended])
            states = [each | {"velocity": common} for each in states]
    return numbers(states[replica])


def _mean(trees: list[Any]) -> Any:
    return jax.tree.map(lambda a, b: (a + b) / PARTS, *trees)


def assert_same(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
