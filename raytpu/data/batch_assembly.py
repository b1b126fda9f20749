"""A batch at any position of the order, put onto the devices of a mesh: whole, or one part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from raytpu.data.order import rows_at
from raytpu.data.stream_state import StreamPosition
from raytpu.data.token_rows import TokenRows

if TYPE_CHECKING:
    import jax
    from jax.sharding import NamedSharding

Batch = dict[str, "jax.Array"]


class BatchAssembler:
    """Builds this process's share of any global batch, or of one of the equal parts that it is divided into.

    Args:
        rows: what to read.
        sharding: of the arrays that are made, each ``[global_batch // parts, sequence_length]``.
        global_batch: rows of a step.
        parts: part ``p`` holds the rows from ``p * global_batch // parts`` on.

    Raises:
        ValueError: the batch does not divide into the parts, or a part over the mesh.
    """

    def __init__(self, rows: TokenRows, sharding: NamedSharding, global_batch: int, parts: int = 1) -> None:
        if global_batch % parts:
            raise ValueError(f"a batch of {global_batch} rows does not divide into {parts} parts")
        self._rows, self._sharding, self.global_batch = rows, sharding, global_batch
        self._count = global_batch // parts
        self._shape = (self._count, rows.sequence_length)
        sharding.shard_shape(self._shape)  # raises ValueError where the batch does not divide over the mesh
        indices = sharding.addressable_devices_indices_map(self._shape).values()
        needed = [np.arange(self._count)[index[0]] for index in indices if index is not None]
        # Places in the part that any device here needs, each once, in ascending order.
        self._places = np.unique(np.concatenate([np.arange(0), *needed]))

    def part_at(self, position: StreamPosition, part: int = 0) -> Batch:
        """Part ``part`` of the batch whose first row is at ``position``."""
        first = position.next_row + part * self._count
        numbers = rows_at(position.seed, position.row_count, first + self._places)
        # A fresh array for every batch: JAX on CPU keeps using an aligned one in place.
        packed = self._rows.rows(numbers)
        return {"tokens": self._on_devices(packed[:, :-1]), "targets": self._on_devices(packed[:, 1:])}

    def _on_devices(self, local: np.ndarray) -> jax.Array:
        """The global array whose rows at ``self._places`` are ``local``."""
        import jax

        def part(index: Any) -> np.ndarray:
            begin, end, _ = index[0].indices(self._count)
            low, high = np.searchsorted(self._places, (begin, end))
            return local[low:high, index[1]]

        # 0.3 ms for 8 devices, against 2.1 with device_put and make_array_from_single_device_arrays.
        return jax.make_array_from_callback(self._shape, self._sharding, part, dtype=np.int32)


class PartedBatch(Batch):
    """A global batch of which this replica computes some parts. As a dict it is the first of them.

    ``part(p)`` is any part of the same batch: those wanted when it was read ahead are ready; another
    one, which falls to this replica because a slice was lost, is made when asked for.
    """

    def __init__(self, make: Callable[[int], Batch], wanted: Iterable[int]) -> None:
        self.make = make
        """Any part, made anew and not kept."""
        self._parts = {part: make(part) for part in wanted}
        super().__init__(self.part(next(iter(self._parts), 0)))

    def part(self, number: int) -> Batch:
        """The arrays of one part."""
        if number not in self._parts:
            self._parts[number] = self.make(number)
        return self._parts[number]
