"""What a state consists of when its parameters are averaged and the rest of it is each replica's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from raytpu.checkpoint.state_leaves import flatten_state, restore_targets, unflatten_state
from raytpu.errors import SpecError
from raytpu.train.replicas.host_shards import host_shards, specs_of_host_shards

HostState = dict[str, list[np.ndarray]]
"""Path of a leaf of ``Whole`` → its shards on this host, in host memory."""


class Whole(NamedTuple):
    """All that a run needs to go on from an outer step."""

    state: Any
    """The user's."""
    outer_momentum: tuple[Any, ...]
    """One for each parameter, in the order in which they lie in ``state``."""


class StateLayout:
    """Paths, shapes and shardings of the leaves of ``Whole``; of random keys, of their raw data.

    Args:
        state: arrays or ``ShapeDtypeStruct``, with shardings.
        parameters: picks the parameters out of such a tree.

    Raises:
        SpecError: ``parameters`` picks nothing, or gives what is not a part of the state.
    """

    def __init__(self, state: Any, parameters: Callable[[Any], Any]) -> None:
        leaves, self._structure = jax.tree.flatten(state)
        picked = jax.tree.leaves(parameters(jax.tree.unflatten(self._structure, range(len(leaves)))))
        if not picked or not all(type(number) is int for number in picked):
            raise SpecError(
                "context.step: parameters must give a part of the state it is given, such as "
                f"parameters=lambda state: state.parameters; it picked {len(picked)} of {len(leaves)} leaves"
            )
        picked = sorted(set(picked))
        self._like = jax.tree.map(_abstract, state)
        momentum = tuple(_abstract(leaves[number]) for number in picked)
        self._targets, _ = restore_targets(Whole(self._like, momentum))
        paths = tuple(self._targets)
        self.state, self.momentum = paths[: len(leaves)], paths[len(leaves) :]
        self.parameters = tuple(self.state[number] for number in picked)
        self.inner = tuple(path for path in self.state if path not in self.parameters)
        """What the inner steps need beside parameters: the user's optimizer, counters, random keys."""
        self._own_paths = tuple(restore_targets(self._like)[0])

    def averaged(self, meets: bool) -> tuple[str, ...]:
        """Leaves beside the parameters that are averaged. Integers and keys go alike on all replicas."""
        if not meets:
            return ()
        return tuple(path for path in self.inner if jnp.issubdtype(self._targets[path].dtype, jnp.floating))

    def targets_of(self, paths: tuple[str, ...]) -> tuple[jax.ShapeDtypeStruct, ...]:
        return tuple(self._targets[path] for path in paths)

    def flat(self, paths: tuple[str, ...], here: Mapping[str, list[np.ndarray]]) -> list[np.ndarray]:
        """The shards of these leaves one after another, as ``from_host_shards(targets_of(paths), …)`` takes
        them."""
        return [array for path in paths for array in here[path]]

    def taken(self, paths: tuple[str, ...], arrays: Iterator[np.ndarray]) -> HostState:
        """The next of ``arrays`` as the shards of these leaves: the way back from ``flat``."""
        return {path: [next(arrays) for _ in self._shards(path)] for path in paths}

    def first_momentum(self) -> HostState:
        return {
            path: [np.zeros(spec.shape, spec.dtype) for spec in self._shards(path)] for path in self.momentum
        }

    def flatten(self, state: Any) -> dict[str, jax.Array]:
        """The leaves of the user's state by their paths in ``Whole``."""
        return dict(zip(self.state, flatten_state(state)[0].values(), strict=True))

    def unflatten(self, arrays: tuple[jax.Array, ...]) -> Any:
        """The user's state from the leaves ``state``."""
        own = dict(zip(self._own_paths, arrays, strict=True))
        return unflatten_state(own, self._like, self._structure)

    def check_same(self, after: Any) -> None:
        """Raises SpecError: the train step gives a state of another layout than it takes."""
        taken, given = (
            [(path, specs_of_host_shards(leaf)) for path, leaf in restore_targets(each)[0].items()]
            for each in (self._like, after)
        )
        if given != taken:
            raise SpecError(
                "with train.replicas.every_steps, apply must give a state with the leaves, shapes and "
                "shardings of the one it takes; constrain it with jax.lax.with_sharding_constraint"
            )

    def _shards(self, path: str) -> list[Any]:
        return specs_of_host_shards(self._targets[path])


def on_this_host(arrays: Mapping[str, jax.Array]) -> HostState:
    """Copies of this host's shards, which outlive the arrays."""
    for array in arrays.values():
        array.copy_to_host_async()
    return {path: [np.array(each) for each in host_shards(array)] for path, array in arrays.items()}


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
