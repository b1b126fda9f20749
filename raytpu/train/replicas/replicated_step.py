"""A train step on one replica: gradients of its parts here, their average from all, applied here."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np

from raytpu.checkpoint.state_leaves import flatten_state, restore_targets, unflatten_state
from raytpu.record import CheckpointRestored, EventLog
from raytpu.train.programs import Program
from raytpu.train.replicas.host_shards import (
    from_host_shards,
    host_shards,
    shards_to_fetch,
    specs_of_host_shards,
)
from raytpu.train.replicas.rows_of_part import rows_of_part
from raytpu.train.replicas.session import ReplicaSession


class ReplicatedStep:
    """``(state, batch) -> (state, metrics)``, the same on every replica; see ``TrainContext.step``.

    Args:
        gradients: the compiled ``(state, batch) -> (gradients, metrics)``.
        apply: the compiled ``(state, gradients) -> (state, metrics)``, which may donate both.
        session: this host's part in the run.
    """

    every = 1
    """Steps of the loop for one of the session's."""

    def __init__(self, gradients: Program, apply: Program, session: ReplicaSession) -> None:
        self._gradients, self._apply, self._session = gradients, apply, session
        self._output: Any = None
        self._done = 0

    def prepare(self, state: Any, batch: Any) -> None:
        """Compile for arguments like these (arrays or ``ShapeDtypeStruct``), so that no step waits for it."""
        self._output = self._gradients.prepare(state, batch)
        self._apply.prepare(state, self._output[0])

    def whole(self, state: Any) -> Any:
        """What a checkpoint has, and what a replica that joins takes: the state, since all have the same."""
        return state

    def begin(self, whole: Any, step: int) -> Any:
        """Go on from ``whole``, which is that after ``step``; gives the user's part of it."""
        self._done = step
        with self._session.state_changed:
            hold_state(self._session, step, whole)
        return whole

    def __call__(self, state: Any, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
        session, step = self._session, self._done + 1
        session.membership.at(step)
        if self._output is None:
            with session.membership.phase("compiling"):
                self.prepare(state, rows_of_part(batch, 0))

        def contribution(part: int) -> list[jax.Array]:
            computed = self._gradients(state, rows_of_part(batch, part))
            # Computing is waited for here, where it does not look like waiting for peers; fetching is not.
            return shards_to_fetch(jax.block_until_ready(computed))

        averages = session.commit(step, contribution, specs_of_host_shards(self._output))
        gradients, metrics = from_host_shards(self._output, averages)
        with session.state_changed:
            state, more = self._apply(state, gradients)
            hold_state(session, step, state)
        self._done = step
        return state, {**metrics, **more}


def hold_state(session: ReplicaSession, step: int, state: Any) -> None:
    """From now on a replica that joins can have this state. ``session.state_changed`` is held."""

    def copy() -> list[np.ndarray]:
        arrays, _ = flatten_state(state)
        return [np.array(each) for each in host_shards(arrays)]

    session.applied(step, copy)


def state_from_replica(session: ReplicaSession, like: Any, log: EventLog) -> tuple[int, Any]:
    """The state that the living replicas have, laid out as ``like``, and the step that it is after."""
    targets, structure = restore_targets(like)
    began = time.perf_counter()
    step, arrays = session.join(specs_of_host_shards(targets))
    state = unflatten_state(from_host_shards(targets, arrays), like, structure)
    log.write(CheckpointRestored(step=step, seconds=time.perf_counter() - began, path="a living replica"))
    return step, state
