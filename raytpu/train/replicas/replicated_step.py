"""A train step on one replica: gradients of its parts here, their average from all, applied here."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np

from raytpu.checkpoint.state_leaves import flatten_state, restore_targets, unflatten_state
from raytpu.data import PartedBatch
from raytpu.errors import SpecError
from raytpu.record import CheckpointRestored, EventLog
from raytpu.train.programs import Program
from raytpu.train.replicas.host_shards import from_host_shards, host_shards, specs_of_host_shards
from raytpu.train.replicas.session import ReplicaSession


def _flatten(batch: Any) -> Any:
    return tuple(batch.values()), tuple(batch)


def _unflatten(names: Any, values: Any) -> Any:
    return dict(zip(names, values, strict=True))


# A loop's own programs may take a batch whole: it is the dict of its first part.
jax.tree_util.register_pytree_node(PartedBatch, _flatten, _unflatten)


class ReplicatedStep:
    """``(state, batch) -> (state, metrics)``, the same on every replica; see ``TrainContext.step``.

    Args:
        gradients: the compiled ``(state, batch) -> (gradients, metrics)``.
        apply: the compiled ``(state, gradients) -> (state, metrics)``, which may donate both.
        session: this host's part in the run.
    """

    def __init__(self, gradients: Program, apply: Program, session: ReplicaSession) -> None:
        self._gradients, self._apply, self._session = gradients, apply, session
        self._output: Any = None
        self.next_step = 1

    def prepare(self, state: Any, batch: Any) -> None:
        """Compile for arguments like these (arrays or ``ShapeDtypeStruct``), so that no step waits for it."""
        self._output = self._gradients.prepare(state, batch)
        self._apply.prepare(state, self._output[0])

    def __call__(self, state: Any, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
        session, step = self._session, self.next_step
        if self._output is None:
            with session.membership.phase("compiling"):
                self.prepare(state, _part(batch, 0))

        def contribution(part: int) -> list[np.ndarray]:
            return host_shards(self._gradients(state, _part(batch, part)))

        averages = session.commit(step, contribution, specs_of_host_shards(self._output))
        gradients, metrics = from_host_shards(self._output, averages)
        with session.state_changed:
            state, more = self._apply(state, gradients)
            hold_state(session, step, state)
        self.next_step = step + 1
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


def _part(batch: Any, number: int) -> Any:
    if isinstance(batch, PartedBatch):
        return batch.part(number)
    if callable(batch):
        return batch(number)
    raise SpecError(
        "with across_slices: replicas, a step takes a batch of context.batches, or a function that gives the "
        f"rows of part p of the step; got a {type(batch).__qualname__}"
    )
