"""Global batches of tokens on a mesh, read ahead by one thread, with a position that a checkpoint keeps."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from raytpu.data.batch_assembly import Batch, BatchAssembler, PartedBatch
from raytpu.data.stream_state import StreamPosition, first_position, position_from
from raytpu.data.token_rows import TokenRows
from raytpu.errors import DataError, DeadlineExceeded

if TYPE_CHECKING:
    from jax.sharding import Mesh, PartitionSpec

# A batch takes milliseconds; only a block whose node died may keep its reader for ever.
_JOIN_S = 10.0


class BatchStream:
    """Endless global batches ``{"tokens", "targets"}``, int32 ``[global_batch, sequence_length]``.

    ``targets`` are the tokens one place later. Batch ``k`` after position ``p`` holds the rows that
    ``order`` puts at ``p + k * global_batch`` and after, whatever the mesh: each process reads only the rows
    that its own devices need, each of them once. Nothing here is collective.

    A thread keeps ``prefetch`` batches ready on the devices. It ends with ``close``, with the ``with``
    block, when the stream is garbage, or with the error that it then raises in the consumer.

    Args:
        rows: what to read.
        mesh: devices to put batches on; may span processes.
        spec: how the two dimensions of a batch lie over the axes of the mesh.
        global_batch: rows of a batch over all processes.
        seed: chooses the order.
        position: ``position`` of an earlier stream over the same rows, perhaps on another mesh, to go on
            with its very next row. ``None`` or empty: the beginning.
        ahead: begin this many rows after ``position``.
        prefetch: batches to keep ready.
        deadline_s: for one batch; a lost block that Ray cannot make again is the likely cause.
        parts: with more than one, batches are ``PartedBatch``, and ``mesh`` is that of one part.
        wanted: says which parts to read ahead; asked for every batch.

    Raises:
        DataError: the position belongs to other rows or another seed, or the rows do not fill one batch.
        ValueError: the batch does not divide over the mesh.
        DeadlineExceeded: from ``next``, when a batch does not come in time.
    """

    def __init__(
        self,
        rows: TokenRows,
        mesh: Mesh,
        spec: PartitionSpec,
        global_batch: int,
        seed: int,
        position: Mapping[str, Any] | None = None,
        ahead: int = 0,
        prefetch: int = 2,
        deadline_s: float = 300.0,
        parts: int = 1,
        wanted: Callable[[], Sequence[int]] = lambda: (0,),
    ) -> None:
        from jax.sharding import NamedSharding

        if global_batch < 1 or prefetch < 1:
            raise ValueError(f"need global_batch >= 1 and prefetch >= 1, got {global_batch} and {prefetch}")
        if rows.row_count < global_batch:
            raise DataError(
                f"one batch needs {global_batch} rows of {rows.sequence_length} tokens, the data has "
                f"{rows.row_count}; give more text, or lower global_batch or sequence_length"
            )
        self._position = (
            position_from(position, seed, rows.fingerprint)
            if position
            else first_position(seed, rows.fingerprint)
        ).advanced(ahead)
        self._global_batch = global_batch
        assembler = BatchAssembler(rows, NamedSharding(mesh, spec), global_batch, parts)

        def parted(position: StreamPosition) -> Batch:
            return PartedBatch(partial(assembler.part_at, position), wanted())

        make = assembler.part_at if parts == 1 else parted
        self._ready = _ReadAhead(make, self._position, global_batch, prefetch)
        self._deadline_s = deadline_s
        # Holds no reference to self: dropping the stream ends its thread.
        self._finalizer = weakref.finalize(self, self._ready.close)
        self.last_wait_s = 0.0
        """Seconds that the last ``next`` waited for its batch."""

    @property
    def position(self) -> dict[str, Any]:
        """Where the next batch to be consumed begins; batches that are only read ahead do not count."""
        return self._position.as_dict()

    @property
    def ready(self) -> int:
        """Batches that are read ahead."""
        return self._ready.count

    def __iter__(self) -> BatchStream:
        return self

    def __next__(self) -> Batch:
        began = time.perf_counter()
        batch = self._ready.take(self._deadline_s)
        self.last_wait_s = time.perf_counter() - began
        self._position = self._position.advanced(self._global_batch)
        return batch

    def close(self) -> None:
        """End the thread and drop what it has read ahead. Twice is not an error."""
        self._finalizer()

    def __enter__(self) -> BatchStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ReadAhead:
    """A bounded queue of batches that a thread fills from a position on."""

    def __init__(
        self, make: Callable[[StreamPosition], Batch], position: StreamPosition, rows: int, depth: int
    ) -> None:
        self._make, self._next, self._rows, self._depth = make, position, rows, depth
        self._batches: deque[Batch] = deque()
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        # A daemon: an abandoned stream must not keep a process from exiting.
        self._thread = threading.Thread(target=self._fill, name="raytpu-batches", daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        return len(self._batches)

    def take(self, deadline_s: float) -> Batch:
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._batches or self._error or self._closed, timeout=deadline_s
            ):
                raise DeadlineExceeded(f"the batch at row {self._next.next_row} of the order", deadline_s)
            if self._batches:
                batch = self._batches.popleft()
                self._changed.notify_all()
                return batch
            if self._error is not None:
                raise self._error
            raise ValueError("the stream of batches is closed")

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._batches.clear()
            self._changed.notify_all()
        # The thread itself closes when it drops the last reference to a stream.
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)

    def _fill(self) -> None:
        try:
            while self._wait_for_room():
                batch = self._make(self._next)
                self._next = self._next.advanced(self._rows)
                with self._changed:
                    if not self._closed:
                        self._batches.append(batch)
                        self._changed.notify_all()
        except BaseException as error:  # the thread's boundary: raised again in the consumer
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: len(self._batches) < self._depth or self._closed)
            return not self._closed
