"""Steps that replicas make alone, and an outer step every ``every_steps`` that they make together (DiLoCo).

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023,
https://arxiv.org/abs/2311.08105, algorithm 1. A worker of the paper is a part of the batch here: from the
same parameters, each part takes H inner steps on its own rows with the user's optimizer; how far the
parameters came is averaged over the parts, in their order; and the outer optimizer, Nesterov momentum, takes
the average for a gradient. An outer step is what replicas commit, by the same votes as an averaged gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax

from raytpu.checkpoint.state_leaves import flatten_state
from raytpu.errors import SpecError
from raytpu.train.programs import Program, fused
from raytpu.train.replicas.array_layout import ArraySpec
from raytpu.train.replicas.host_shards import from_host_shards, host_shards, specs_of_host_shards
from raytpu.train.replicas.rows_of_part import RowsOfPart, rows_made_anew, rows_of_part
from raytpu.train.replicas.session import ReplicaSession
from raytpu.train.replicas.state_layout import HostState, StateLayout, Whole, on_this_host


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """What one part has made of the inner steps of a round, on this host."""

    deltas: list[np.ndarray]
    """Of each parameter: what it was before, less what it is now."""
    inner: HostState
    """Every other leaf of the state."""
    metrics: list[np.ndarray]
    """Of the last inner step."""


class DilocoStep:
    """``(state, batch) -> (state, metrics)``; see ``TrainContext.step`` and ``spec.Replicas.every_steps``.

    At an outer step everything is taken to host memory, and the devices are free for the outer optimizer.
    What is committed stays there until the next one, for three that need it: the deltas, a part that is made
    again because its replica was lost, and replicas that join.

    Args:
        gradients, apply: as for ``ReplicatedStep``; one program here.
        parameters: picks the parameters out of a state.
        session: this host's part in the run; its steps are the outer ones.
        jit: ``TrainContext.jit``.
        meets: whether the optimizers meet at this step, counted in inner ones: their floating-point leaves
            are averaged as well, and all replicas have the same state.
    """

    def __init__(
        self,
        gradients: Callable[..., Any],
        apply: Callable[..., Any],
        parameters: Callable[[Any], Any],
        *,
        session: ReplicaSession,
        jit: Callable[..., Program],
        meets: Callable[[int], bool],
    ) -> None:
        self.every = session.place.settings.every_steps
        self._inner = jit(fused(gradients, apply), donate_argnums=0)
        self._jit, self._parameters, self._session, self._meets = jit, parameters, session, meets
        self._layout: StateLayout | None = None
        self._metrics: Any = None
        self._committed: HostState = {}
        self._rows: list[RowsOfPart] = []
        """Of the inner steps of this round."""
        self._done = 0

    def prepare(self, state: Any, batch: Any) -> None:
        """Compile for arguments like these (arrays or ``ShapeDtypeStruct``), so that no step waits for it."""
        layout = self._lay_out(state)
        after, self._metrics = self._inner.prepare(state, batch)
        layout.check_same(after)
        parameters = layout.targets_of(layout.parameters)
        self._outer.prepare(parameters, parameters, parameters)

    def whole(self, state: Any) -> Whole:
        """``state`` with the outer momentum: what a checkpoint has, and what a replica that joins takes."""
        layout = self._lay_out(state)
        momentum = [array for path in layout.momentum for array in self._committed[path]]
        return Whole(state, from_host_shards(layout.targets_of(layout.momentum), momentum))

    def begin(self, whole: Whole, step: int) -> Any:
        """Go on from ``whole``, which is that after ``step`` inner steps; gives the user's part of it."""
        if step % self.every:
            raise SpecError(
                f"the checkpoint is of step {step}, and train.replicas.every_steps is {self.every}: with "
                "every_steps only states of its multiples are the same on all replicas; give the run the "
                "every_steps that it began with"
            )
        self._done = step
        self._hold(on_this_host(flatten_state(whole)[0]))
        return whole.state

    def __call__(self, state: Any, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
        # Who has no part yet goes along on the first, to have counters and optimizer where they should be.
        part = next(iter(self._session.parts), 0)
        if self._metrics is None:
            with self._session.membership.phase("compiling"):
                self.prepare(state, rows_of_part(batch, part))
        self._rows.append(rows_made_anew(batch))
        self._done += 1
        self._session.membership.at(self._done)
        state, metrics = self._inner(state, rows_of_part(batch, part))
        if len(self._rows) < self.every:
            return state, metrics
        return self._end_round(part, self._taken(state, metrics))

    def _end_round(self, part: int, mine: _Round) -> tuple[Any, dict[str, jax.Array]]:
        layout, session = self._known_layout, self._session
        meeting = layout.averaged(self._meets(self._done))
        rounds = {part: mine}

        def contribution(number: int) -> list[np.ndarray]:
            made = rounds[number] if number in rounds else rounds.setdefault(number, self._again(number))
            return [*made.deltas, *layout.flat(meeting, made.inner), *made.metrics]

        averages = iter(session.commit(self._done // self.every, contribution, self._contributed(meeting)))
        deltas = layout.taken(layout.parameters, averages)
        inner = mine.inner | layout.taken(meeting, averages)
        metrics = from_host_shards(self._metrics, list(averages))
        parameters, momentum = self._outer(
            *(
                from_host_shards(layout.targets_of(layout.parameters), arrays)
                for arrays in (
                    layout.flat(layout.parameters, self._committed),
                    layout.flat(layout.momentum, self._committed),
                    layout.flat(layout.parameters, deltas),
                )
            )
        )
        moved = zip((*layout.parameters, *layout.momentum), (*parameters, *momentum), strict=True)
        self._hold(inner | on_this_host(dict(moved)))
        self._rows = []
        return self._on_devices(), metrics

    def _again(self, part: int) -> _Round:
        """The round of a part that is not this replica's, from the state that was committed last."""
        state, metrics = self._on_devices(), None
        for number, rows in enumerate(self._rows, start=self._done - self.every + 1):
            self._session.membership.at(number)
            state, metrics = self._inner(state, rows(part))
        return self._taken(state, metrics)

    def _taken(self, state: Any, metrics: Any) -> _Round:
        """What a part came to, in host memory; the devices are freed of ``state``."""
        layout = self._known_layout
        here = on_this_host(layout.flatten(state))
        for leaf in jax.tree.leaves(state):
            leaf.delete()
        before = layout.flat(layout.parameters, self._committed)
        after = layout.flat(layout.parameters, here)
        return _Round(
            deltas=[np.asarray(old - new) for old, new in zip(before, after, strict=True)],
            inner={path: here[path] for path in layout.inner},
            metrics=[np.array(each) for each in host_shards(metrics)],
        )

    def _hold(self, committed: HostState) -> None:
        """From now on this is the state that is made again from, and that replicas that join can have."""
        with self._session.state_changed:
            self._committed = committed
            flat = [array for path in sorted(committed) for array in committed[path]]
            self._session.applied(self._done // self.every, lambda: flat)

    def _on_devices(self) -> Any:
        """The user's state as it was committed. Copied: on CPU JAX goes on using arrays in place, and the
        inner step takes over the memory of its state."""
        layout = self._known_layout
        copies = [np.array(each) for each in layout.flat(layout.state, self._committed)]
        return layout.unflatten(from_host_shards(layout.targets_of(layout.state), copies))

    def _contributed(self, meeting: tuple[str, ...]) -> list[ArraySpec]:
        layout = self._known_layout
        return specs_of_host_shards([layout.targets_of((*layout.parameters, *meeting)), self._metrics])

    def _lay_out(self, state: Any) -> StateLayout:
        if self._layout is None:
            self._layout = layout = StateLayout(state, self._parameters)
            self._committed = layout.first_momentum()
            places = tuple(target.sharding for target in layout.targets_of(layout.parameters))
            settings = self._session.place.settings
            self._outer = self._jit(
                outer_step(settings.outer_learning_rate, settings.outer_momentum),
                out_shardings=(places, places),
            )
        return self._layout

    @property
    def _known_layout(self) -> StateLayout:
        assert self._layout is not None, "begin comes first"
        return self._layout


def outer_step(learning_rate: float, momentum: float) -> Callable[..., Any]:
    """``(parameters, momentum, deltas) -> (parameters, momentum)``, each a tuple of arrays alike."""
    nesterov = optax.trace(decay=momentum, nesterov=True)

    def outer(parameters: Any, velocity: Any, deltas: Any) -> Any:
        updates, after = nesterov.update(deltas, optax.TraceState(trace=velocity))
        moved = jax.tree.map(lambda value, update: value - learning_rate * update, parameters, updates)
        return moved, after.trace

    return outer
