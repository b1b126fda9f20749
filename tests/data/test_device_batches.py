"""Batches on the mesh: the right rows, a position that tells the truth, and a thread that ends."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from raytpu.data import BatchStream, TokenRows, rows_for_step
from raytpu.errors import DataError

LENGTH = 8
TOKENS = np.arange(100 * LENGTH + 1, dtype=np.int32)


def some_rows(kind: type[TokenRows] = TokenRows) -> Any:
    return kind.from_tokens(TOKENS, sequence_length=LENGTH)


def stream(
    rows: TokenRows | None = None, *, global_batch: int = 4, seed: int = 0, **options: Any
) -> BatchStream:
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    return BatchStream(rows or some_rows(), mesh, PartitionSpec("data"), global_batch, seed, **options)


def first_tokens(batch: dict[str, jax.Array]) -> list[int]:
    """Row numbers: row i of the test's stream begins with token i * LENGTH."""
    return (np.asarray(batch["tokens"])[:, 0] // LENGTH).tolist()


def until(condition: Callable[[], bool], deadline_s: float = 10.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the deadline passed"
        time.sleep(0.001)


def reading_threads() -> int:
    return sum(thread.name == "raytpu-batches" for thread in threading.enumerate())


class SlowRows(TokenRows):
    """Gives a batch only when the test says so."""

    gate: threading.Semaphore

    def rows(self, indices: np.ndarray) -> np.ndarray:
        self.gate.acquire()
        return super().rows(indices)


class BrokenRows(TokenRows):
    """Fails at the third batch."""

    calls = 0

    def rows(self, indices: np.ndarray) -> np.ndarray:
        self.calls += 1
        if self.calls == 3:
            raise OSError("disk on fire")
        return super().rows(indices)


def test_batches_follow_the_order_and_targets_follow_tokens() -> None:
    """Targets shifted by two would train, and never learn."""
    with stream() as batches:
        for step in range(60):
            batch = next(batches)
            assert first_tokens(batch) == rows_for_step(0, 100, 4, step).tolist()
            assert batch["tokens"].dtype == batch["targets"].dtype == np.int32
            assert batch["tokens"].shape == batch["targets"].shape == (4, LENGTH)
            assert (np.asarray(batch["targets"]) == np.asarray(batch["tokens"]) + 1).all()


def test_batches_that_are_kept_do_not_change() -> None:
    """device_put on CPU uses an aligned array in place: a reused buffer would rewrite old batches."""
    with stream() as batches:
        kept = [next(batches) for _ in range(20)]

    for step, batch in enumerate(kept):
        assert first_tokens(batch) == rows_for_step(0, 100, 4, step).tolist()


def test_the_position_is_that_of_the_consumer_not_of_the_reader() -> None:
    """Counting batches that were read ahead would lose them on resume."""
    with stream(prefetch=5) as batches:
        assert batches.position["next_row"] == 0
        next(batches)
        next(batches)
        saved = json.loads(json.dumps(batches.position))
        third = first_tokens(next(batches))

    assert saved["next_row"] == 8
    with stream(position=saved) as resumed:
        assert first_tokens(next(resumed)) == third


def test_a_resumed_stream_may_use_another_global_batch() -> None:
    """Rows, not batches, are counted: a smaller slice goes on with the very next row."""
    with stream(global_batch=4) as batches:
        next(batches)
        saved = batches.position
    with stream(global_batch=6, position=saved) as resumed:
        expected = np.concatenate([rows_for_step(0, 100, 2, step) for step in range(2, 5)])

        assert first_tokens(next(resumed)) == expected.tolist()


def test_other_rows_or_another_seed_are_refused_with_everything_that_differs() -> None:
    """Going on silently would repeat some rows and lose others."""
    with stream() as batches:
        saved = batches.position

    other = TokenRows.from_tokens(TOKENS[:-LENGTH], sequence_length=LENGTH)
    with pytest.raises(DataError, match=r"seed was 0, is 3; row count was 100, is 99; content was .*--fresh"):
        stream(other, seed=3, position=saved)
    with pytest.raises(DataError, match="a stream position has the fields"):
        stream(position={"step": 3})
    assert reading_threads() == 0


def test_too_few_rows_for_a_batch_are_refused() -> None:
    """A batch that holds a row twice is not the batch that was asked for."""
    with pytest.raises(DataError, match="one batch needs 101 rows of 8 tokens, the data has 100"):
        stream(global_batch=101)


def test_an_error_of_the_reader_reaches_the_consumer_after_the_good_batches() -> None:
    """A thread that dies in silence leaves the slice waiting for ever."""
    batches = stream(some_rows(BrokenRows))
    next(batches)
    next(batches)

    for _ in range(2):
        with pytest.raises(OSError, match="disk on fire"):
            next(batches)
    until(lambda: reading_threads() == 0)
    assert batches.position["next_row"] == 8


def test_closing_ends_the_thread_and_the_stream() -> None:
    """Each evaluation opens a stream: a thread left by each would end the run in a day."""
    for _ in range(50):
        batches = stream()
        next(batches)
        batches.close()
        batches.close()

    assert reading_threads() == 0
    with pytest.raises(ValueError, match="closed"):
        next(batches)


def test_a_stream_that_is_dropped_ends_its_thread() -> None:
    """`for batch in stream: break` is how people take one batch."""
    for _ in stream():
        break
    gc.collect()

    until(lambda: reading_threads() == 0)


def test_a_consumer_that_waits_says_how_long() -> None:
    """Data wait is booked from this; without it a starved slice looks busy."""
    rows = some_rows(SlowRows)
    rows.gate = threading.Semaphore(0)
    batches = stream(rows, prefetch=1)
    threading.Timer(0.1, rows.gate.release).start()
    next(batches)
    waited = batches.last_wait_s
    rows.gate.release()
    until(lambda: batches.ready == 1)
    next(batches)

    assert waited >= 0.05
    assert batches.last_wait_s < waited
    rows.gate.release(10)
    batches.close()


def test_closing_wakes_a_consumer_in_another_thread() -> None:
    """Shutdown must not wait for a batch that will never come."""
    rows = some_rows(SlowRows)
    rows.gate = threading.Semaphore(0)
    batches = stream(rows)
    outcome: list[str] = []

    def consume() -> None:
        try:
            next(batches)
        except ValueError as error:
            outcome.append(str(error))

    consumer = threading.Thread(target=consume)
    consumer.start()
    threading.Timer(0.05, rows.gate.release, [10]).start()
    batches.close()
    consumer.join(10)

    assert outcome == ["the stream of batches is closed"]


# (axes and sizes, spec, shape of a shard of a batch of 16 rows of 8): batch over one axis, over two, beside a
# model axis, beside a sequence axis, and over none.
LAYOUTS: dict[str, tuple[dict[str, int], PartitionSpec, tuple[int, int]]] = {
    "one device": ({"data": 1}, PartitionSpec("data"), (16, 8)),
    "fsdp 8": ({"fsdp": 8}, PartitionSpec(("fsdp",)), (2, 8)),
    "replica 2, fsdp 4": ({"replica": 2, "fsdp": 4}, PartitionSpec(("replica", "fsdp")), (2, 8)),
    "data 2, model 4": ({"data": 2, "model": 4}, PartitionSpec(("data",)), (8, 8)),
    "data 4, sequence 2": ({"data": 4, "sequence": 2}, PartitionSpec("data", "sequence"), (4, 4)),
    "replicated": ({"model": 8}, PartitionSpec(()), (16, 8)),
}


class CountingRows(TokenRows):
    """Counts the rows that are read."""

    read = 0

    def rows(self, indices: np.ndarray) -> np.ndarray:
        self.read += len(indices)
        return super().rows(indices)


def mesh_of(layout: str) -> Mesh:
    sizes = LAYOUTS[layout][0]
    shape = tuple(sizes.values())
    return Mesh(np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape), tuple(sizes))


def laid_out(layout: str, rows: TokenRows, position: dict[str, Any] | None = None) -> BatchStream:
    return BatchStream(rows, mesh_of(layout), LAYOUTS[layout][1], 16, 5, position=position)


def expected_tokens(step: int) -> np.ndarray:
    return np.stack([TOKENS[row * LENGTH :][:LENGTH] for row in rows_for_step(5, 100, 16, step)])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_global_batches_are_the_same_on_every_mesh(layout: str) -> None:
    """Losses can be compared, and a run can be moved, only if the batches are those of one device."""
    with laid_out(layout, some_rows()) as batches:
        for step in range(8):  # 128 rows of 100: crosses an epoch
            batch = next(batches)
            assert (np.asarray(batch["tokens"]) == expected_tokens(step)).all()
            assert (np.asarray(batch["targets"]) == expected_tokens(step) + 1).all()
            assert batch["tokens"].sharding == NamedSharding(mesh_of(layout), LAYOUTS[layout][1])


def test_a_stream_that_moves_from_mesh_to_mesh_goes_on_with_the_very_next_batch() -> None:
    """A checkpoint of two slices is resumed on one."""
    position = None
    for step, layout in enumerate([*LAYOUTS, "fsdp 8", "one device"]):
        with laid_out(layout, some_rows(), position) as batches:
            assert (np.asarray(next(batches)["tokens"]) == expected_tokens(step)).all()
            position = json.loads(json.dumps(batches.position))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_devices_hold_their_part_and_shared_rows_are_read_once(layout: str) -> None:
    """Four model-parallel devices that each read the same rows would need four times the bandwidth."""
    rows = some_rows(CountingRows)
    with laid_out(layout, rows) as batches:
        taken = [next(batches) for _ in range(4)]

    shards = taken[0]["tokens"].addressable_shards
    assert {shard.data.shape for shard in shards} == {LAYOUTS[layout][2]}
    # Four taken, at most two ready and one in the making.
    assert 4 * 16 <= rows.read <= 7 * 16


def test_a_batch_that_does_not_divide_over_the_mesh_is_refused_before_any_thread_starts() -> None:
    """JAX's own message would come from the thread, one batch later."""
    with pytest.raises(ValueError, match="evenly divide"):
        BatchStream(some_rows(), Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"), 12, 0)
    assert reading_threads() == 0
