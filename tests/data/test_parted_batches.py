"""Parts of a global batch: together the batch of one world, whoever makes which."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from raytpu.data import BatchStream, PartedBatch, TokenRows
from tests.data.test_device_batches import some_rows


def one_device() -> Mesh:
    return Mesh(np.array(jax.devices()[:1]), ("data",))


def stream(parts: int, rows: TokenRows | None = None, **options: object) -> BatchStream:
    return BatchStream(
        rows or some_rows(), one_device(), PartitionSpec("data"), 12, 3, parts=parts, **options
    )


def whole(batch: dict[str, jax.Array]) -> np.ndarray:
    return np.asarray(batch["tokens"])


def parted(batch: dict[str, jax.Array], parts: int) -> np.ndarray:
    assert isinstance(batch, PartedBatch)
    return np.concatenate([np.asarray(batch.part(part)["tokens"]) for part in range(parts)])


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_the_parts_of_a_batch_are_the_batch_of_one_world(parts: int) -> None:
    with stream(1) as one, stream(parts, wanted=lambda: (parts - 1,)) as many:
        for _ in range(12):  # over the border of an epoch
            np.testing.assert_array_equal(parted(next(many), parts), whole(next(one)))


def test_as_a_dict_a_batch_is_the_first_part_that_was_wanted() -> None:
    with stream(2, wanted=lambda: (1,)) as many:
        batch = next(many)
    np.testing.assert_array_equal(whole(batch), np.asarray(batch.part(1)["tokens"]))  # type: ignore[attr-defined]


def test_a_replica_that_has_no_part_yet_sees_the_shapes_of_one() -> None:
    with stream(2, wanted=lambda: ()) as many:
        assert next(many)["tokens"].shape == (6, 8)


def test_a_stream_that_begins_ahead_goes_on_as_if_it_had_been_read_until_there() -> None:
    with stream(2) as read, stream(2, ahead=5 * 12) as ahead:
        for _ in range(5):
            next(read)
        assert ahead.position == read.position
        np.testing.assert_array_equal(parted(next(ahead), 2), parted(next(read), 2))


def test_rows_that_do_not_divide_into_the_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="12 rows does not divide into 5 parts"):
        stream(5)
