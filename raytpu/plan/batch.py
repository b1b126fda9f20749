"""Which rows of a global batch which process must feed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from raytpu.errors import SpecError
from raytpu.plan.gang import GangPlan
from raytpu.plan.mesh import MeshPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSpan:
    """Rows ``first`` to ``last`` of a global batch, both included."""

    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How a global batch is divided.

    Where rows fall inside a slice depends on the order that the runtime gives to the devices. On simulated
    slices that order is known (see ``plan_batch``), so the rows of every process are too. On TPU the
    compiler's view of the torus decides, so ``rows_by_process`` is ``None`` unless every order gives the
    same rows; at run time a process takes its rows from the sharding.
    """

    global_batch: int
    shards: int
    rows_per_shard: int
    rows_by_slice: tuple[tuple[RowSpan, ...], ...]
    """Rows that each slice needs, by slice index. Slices that hold copies of a shard need the same rows."""
    rows_by_process: tuple[tuple[RowSpan, ...], ...] | None
    """Rows that each process must feed, by process index; ``None`` when only the runtime can tell which."""
    rows_per_process: tuple[int, ...] | None
    """How many rows each process must feed; ``None`` when only the runtime can tell even that."""

    @property
    def rows_per_slice(self) -> int:
        """The same for every slice."""
        return sum(span.count for span in self.rows_by_slice[0])


def plan_batch(global_batch: int, mesh: MeshPlan, gang: GangPlan) -> BatchPlan:
    """Rows of a global batch by slice and by process.

    A row belongs to shard ``row // rows_per_shard``; shards are numbered over ``mesh.batch_axes`` with the
    last axis fastest, as ``PartitionSpec(batch_axes)`` on the first dimension does. A slice sits at
    its index, unravelled over the DCN sizes. Inside a slice the devices of a simulated host follow those of
    the host before it, unravelled over the ICI sizes: the order of ``create_hybrid_device_mesh`` on CPU.

    Raises:
        SpecError: ``global_batch`` does not divide into the shards.
    """
    shards = mesh.batch_shards
    if global_batch < 1 or global_batch % shards:
        below = global_batch // shards * shards
        near = f"{below} or {below + shards}" if below > 0 else str(shards)
        raise SpecError(
            f"global_batch {global_batch} does not divide into the {shards} shards of "
            f"{' × '.join(mesh.batch_axes)}; {near} does"
        )
    rows_per_shard = global_batch // shards
    layout = _ShardLayout(mesh)
    devices = range(math.prod(mesh.ici_shape))
    rows_by_slice = tuple(
        _spans((layout.shard(planned.index, device) for device in devices), rows_per_shard)
        for planned in gang.slices
    )
    rows_by_process = _rows_by_process(layout, gang, rows_per_shard)
    shards_in_slice = math.prod(mesh.ici[axis] for axis in mesh.batch_axes if axis in mesh.ici)
    order_matters = shards_in_slice > 1 and len(gang.slices[0].processes) > 1
    known = gang.simulated or not order_matters
    rows_per_process = None
    if known or shards_in_slice == len(devices):  # in any order, no two devices of a slice share a row
        rows_per_process = tuple(sum(span.count for span in spans) for spans in rows_by_process)
    return BatchPlan(
        global_batch=global_batch,
        shards=shards,
        rows_per_shard=rows_per_shard,
        rows_by_slice=rows_by_slice,
        rows_by_process=rows_by_process if known else None,
        rows_per_process=rows_per_process,
    )


def _rows_by_process(
    layout: _ShardLayout, gang: GangPlan, rows_per_shard: int
) -> tuple[tuple[RowSpan, ...], ...]:
    """Rows of each process when its devices follow those of the process before it."""
    return tuple(
        _spans(
            (
                layout.shard(process.slice_index, process.position * process.local_devices + local)
                for local in range(process.local_devices)
            ),
            rows_per_shard,
        )
        for process in gang.processes
    )


class _ShardLayout:
    """Shard of each device, from its slice index and its number inside the slice."""

    def __init__(self, mesh: MeshPlan) -> None:
        self._mesh = mesh
        self._batch_positions = [mesh.axes.index(axis) for axis in mesh.batch_axes]

    def shard(self, slice_index: int, device: int) -> int:
        outer = _unravel(slice_index, self._mesh.dcn_shape)
        inner = _unravel(device, self._mesh.ici_shape)
        shard = 0
        for position in self._batch_positions:
            size = self._mesh.ici_shape[position]
            coordinate = outer[position] * size + inner[position]
            shard = shard * self._mesh.shape[position] + coordinate
        return shard


def _unravel(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Coordinates of ``index`` in an array of ``shape``, last axis fastest."""
    coordinates = []
    for size in reversed(shape):
        index, coordinate = divmod(index, size)
        coordinates.append(coordinate)
    return tuple(reversed(coordinates))


def _spans(shards: Iterable[int], rows_per_shard: int) -> tuple[RowSpan, ...]:
    return tuple(
        RowSpan(first=first * rows_per_shard, last=(last + 1) * rows_per_shard - 1)
        for first, last in _joined(sorted(set(shards)))
    )


def _joined(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Runs of neighbours in ascending numbers, as (first, last)."""
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last
