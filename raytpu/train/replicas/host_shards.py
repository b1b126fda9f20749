"""The part of a tree of global arrays that lies on this host, as plain arrays; and back.

Hosts at the same position of slices with the same mesh hold the same shards, so these lists are what such
hosts exchange. A shard that several devices of the host hold is taken once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from raytpu.train.replicas.array_layout import ArraySpec

Index = tuple[tuple[int, int], ...]


def host_shards(tree: Any) -> list[np.ndarray]:
    """The distinct shards of each leaf on this host, by leaf and then by place.

    They are views where the backend allows it: valid as long as the arrays are neither deleted nor donated.
    """
    return [np.asarray(shard) for shard in shards_to_fetch(tree)]


def shards_to_fetch(tree: Any) -> list[jax.Array]:
    """As ``host_shards``, but still on their way from the devices; ``np.asarray`` waits for one."""
    leaves = jax.tree.leaves(tree)
    shards = [shard.data for leaf in leaves for _, shard in sorted(_distinct(leaf).items())]
    for shard in shards:
        shard.copy_to_host_async()
    return shards


def specs_of_host_shards(tree: Any) -> list[ArraySpec]:
    """What ``host_shards`` gives for a tree of this kind (of arrays, or of ``ShapeDtypeStruct``)."""
    shapes = []
    for leaf in jax.tree.leaves(tree):
        for index in sorted(_indices(leaf.sharding, leaf.shape)):
            shapes.append(ArraySpec(tuple(end - begin for begin, end in index), np.dtype(leaf.dtype)))
    return shapes


def from_host_shards(like: Any, arrays: Sequence[np.ndarray]) -> Any:
    """A tree with the shapes and shardings of ``like`` (arrays or ``ShapeDtypeStruct``) and these contents.

    The arrays must not be written to afterwards: JAX on CPU goes on using them in place.
    """
    leaves, structure = jax.tree.flatten(like)
    rest = iter(arrays)
    made = []
    for leaf in leaves:
        places = _indices(leaf.sharding, leaf.shape)
        content = {index: next(rest) for index in sorted(places)}
        on_devices = [
            jax.device_put(content[index], device) for index, devices in places.items() for device in devices
        ]
        made.append(jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, on_devices))
    return jax.tree.unflatten(structure, made)


def _distinct(leaf: jax.Array) -> dict[Index, Any]:
    found: dict[Index, Any] = {}
    for shard in leaf.addressable_shards:
        found.setdefault(_bounds(shard.index, leaf.shape), shard)
    return found


def _indices(sharding: jax.sharding.Sharding, shape: tuple[int, ...]) -> dict[Index, list[jax.Device]]:
    places: dict[Index, list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        if index is not None:
            places.setdefault(_bounds(index, shape), []).append(device)
    return places


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> Index:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
