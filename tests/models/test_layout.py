"""Logical axes onto mesh axes."""

from __future__ import annotations

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from raytpu.models.layout import Layout
from tests.models.builders import layout, mesh


@pytest.mark.parametrize(
    ("axes", "names", "shape", "expected"),
    [
        ({"fsdp": 8}, ("embed", "mlp"), (32, 128), ("fsdp", None)),
        ({"tensor": 8}, ("embed", "mlp"), (32, 128), (None, "tensor")),
        ({"fsdp": 2, "tensor": 4}, ("embed", "mlp"), (32, 128), ("fsdp", "tensor")),
        ({"fsdp": 2, "tensor": 4}, ("mlp", "embed"), (128, 32), ("tensor", "fsdp")),
        ({"data": 2, "tensor": 4}, ("vocab", "embed"), (384, 32), ("tensor", None)),
        ({"data": 8}, ("embed", "mlp"), (32, 128), (None, None)),
        ({"fsdp": 8}, ("embed", "mlp"), (36, 128), (None, None)),  # 8 does not divide 36
        ({"fsdp": 2, "tensor": 4}, ("embed", "heads", "head"), (32, 2, 16), ("fsdp", None, None)),
        ({"tensor": 8}, ("mlp", "vocab"), (64, 64), ("tensor", None)),  # an axis is used once
        ({"fsdp": 8}, ("layers", "norm"), (2, 32), (None, None)),
        ({"fsdp": 8}, ("layers", "embed"), (2, 32), (None, "fsdp")),
        ({"fsdp": 8}, (None, "position"), (8, 8), (None, None)),
    ],
)
def test_a_dimension_is_split_when_the_mesh_has_its_axis_and_divides_it(
    axes: dict[str, int],
    names: tuple[str | None, ...],
    shape: tuple[int, ...],
    expected: tuple[str | None, ...],
) -> None:
    """A rule that fails on some mesh makes the model a model for one topology."""
    assert layout(**axes).parameter(names, shape).spec == PartitionSpec(*expected)


def test_in_use_a_weight_is_whole_over_fsdp_and_still_split_over_tensor() -> None:
    """Otherwise fsdp would be run as tensor parallelism, with activations sent instead of weights."""
    placed = layout(fsdp=2, tensor=4).gathered(("embed", "mlp"), (32, 128))

    assert placed.spec == PartitionSpec(None, "tensor")


def test_a_batch_lies_on_the_batch_axes_in_mesh_order() -> None:
    """Another order would give each device the rows of another one."""
    placed = layout(replica=2, tensor=2, fsdp=2)

    assert placed.batch_axes == ("replica", "fsdp")
    assert placed.batch_shards == 4
    assert placed.batch.spec == PartitionSpec(("replica", "fsdp"))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (PartitionSpec(("replica", "fsdp")), ("replica", "fsdp")),
        (PartitionSpec("fsdp"), ("fsdp",)),
        (PartitionSpec(None), ()),
        (PartitionSpec(), ()),
    ],
)
def test_a_layout_is_read_from_the_sharding_of_batches(
    spec: PartitionSpec, expected: tuple[str, ...]
) -> None:
    """The user's ``mesh.batch_axes`` must reach the model, whatever form the spec has."""
    assert Layout.of(NamedSharding(mesh(replica=2, fsdp=4), spec)).batch_axes == expected


def test_a_batch_of_one_row_is_computed_on_every_device() -> None:
    """A text sample has one row, which no mesh divides."""
    placed = layout(fsdp=8)

    row = jax.jit(lambda: placed.activation(jax.numpy.zeros((1, 4)), None))()

    assert row.sharding.is_fully_replicated


def test_names_and_dimensions_must_be_as_many() -> None:
    """A missing name would shift every rule by one dimension."""
    with pytest.raises(ValueError, match="1 axis names"):
        layout(fsdp=8).parameter(("embed",), (4, 4))
