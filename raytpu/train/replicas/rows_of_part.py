"""The batch of a step as the rows of its parts, each made by whoever computes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from raytpu.data import PartedBatch
from raytpu.errors import SpecError

RowsOfPart = Callable[[int], Any]


def _flatten(batch: Any) -> Any:
    return tuple(batch.values()), tuple(batch)


def _unflatten(names: Any, values: Any) -> Any:
    return dict(zip(names, values, strict=True))


# A loop's own programs may take a batch whole: it is the dict of its first part.
jax.tree_util.register_pytree_node(PartedBatch, _flatten, _unflatten)


def rows_of_part(batch: Any, number: int) -> Any:
    """One part of a batch, which may be ready.

    Raises:
        SpecError: the batch is not made of parts.
    """
    return batch.part(number) if isinstance(batch, PartedBatch) else rows_made_anew(batch)(number)


def rows_made_anew(batch: Any) -> RowsOfPart:
    """Makes any part of a batch when called, and keeps no rows meanwhile.

    Raises:
        SpecError: the batch is not made of parts.
    """
    if isinstance(batch, PartedBatch):
        return batch.make
    if callable(batch):
        return batch
    raise SpecError(
        "with across_slices: replicas, a step takes a batch of context.batches, or a function that gives the "
        f"rows of part p of the step; got a {type(batch).__qualname__}"
    )
