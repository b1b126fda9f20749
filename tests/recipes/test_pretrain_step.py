"""The training step: the same numbers on every mesh, in one part or several, with or without a mask."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from raytpu.errors import SpecError
from raytpu.models.layout import Layout
from raytpu.recipes import pretrain_step as steps
from raytpu.recipes.pretrain_config import PretrainConfig
from tests.recipes.builders import layout, pretraining, random_batch, train_step


def started(config: PretrainConfig, placed: Layout) -> steps.TrainState:
    shardings = steps.state_shardings(config, placed)
    return jax.jit(lambda: steps.initial_state(config, placed), out_shardings=shardings)()


def trained(config: PretrainConfig, placed: Layout) -> tuple[list[float], steps.TrainState]:
    state = started(config, placed)
    step = jax.jit(train_step(config, placed), donate_argnums=0)
    losses = []
    for number in range(config.steps):
        state, metrics = step(state, random_batch(placed, config, seed=number % 4))
        losses.append(float(metrics["loss"]))
    return losses, state


@pytest.fixture(scope="module")
def on_one_device() -> list[float]:
    return trained(pretraining(), layout(data=1))[0]


@pytest.mark.parametrize(
    "axes",
    [{"replica": 2, "fsdp": 4}, {"fsdp": 8}, {"data": 2, "tensor": 4}, {"data": 2, "fsdp": 2, "tensor": 2}],
    ids=lambda axes: "x".join(axes),
)
def test_the_losses_do_not_depend_on_the_mesh(axes: dict[str, int], on_one_device: list[float]) -> None:
    """A mean taken per device, or a gradient summed twice, trains another model on other slices."""
    losses, _ = trained(pretraining(), layout(**axes))

    assert losses[-1] < losses[0] - 0.5
    np.testing.assert_allclose(losses, on_one_device, rtol=1e-4)


def test_the_parts_of_an_accumulated_step_sum_to_the_whole(on_one_device: list[float]) -> None:
    """Accumulation is for memory; it must not change what is learned."""
    losses, _ = trained(pretraining(accumulate=2), layout(replica=2, fsdp=4))

    np.testing.assert_allclose(losses, on_one_device, rtol=1e-4)


def gradients(config: PretrainConfig, batch: dict[str, Any]) -> tuple[float, Any]:
    placed = layout(data=2)
    parameters = started(config, placed).parameters
    loss, gradient = jax.jit(lambda p, b: steps.loss_and_gradients(config, placed, p, b))(parameters, batch)
    return float(loss), gradient


@pytest.mark.thorough
def test_an_accumulated_gradient_is_the_gradient_also_when_a_mask_weighs_the_parts_unequally() -> None:
    """A mean of the parts' means gives every part the same weight, however little of it counts."""
    one, several = pretraining(), pretraining(accumulate=4)
    mask = np.zeros((16, 16), np.float32)
    mask[0], mask[5, :3] = 1, 1
    batch = {**random_batch(layout(data=2), one), "mask": jnp.asarray(mask)}

    loss, gradient = gradients(one, batch)
    loss_in_parts, gradient_in_parts = gradients(several, batch)

    assert loss_in_parts == pytest.approx(loss, rel=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7), gradient, gradient_in_parts
    )


def test_masked_targets_do_not_count() -> None:
    """Padding and prompts would be learned as if they were text."""
    config = pretraining()
    batch = random_batch(layout(data=2), config)
    mask = np.ones((16, 16), np.float32)
    mask[:, 8:] = 0
    other = np.array(batch["targets"])
    other[:, 8:] = 0

    masked, _ = gradients(config, {**batch, "mask": jnp.asarray(mask)})
    changed, _ = gradients(config, {**batch, "targets": jnp.asarray(other), "mask": jnp.asarray(mask)})

    assert masked == changed
    assert masked != gradients(config, batch)[0]


def test_every_leaf_of_the_state_is_a_global_array_laid_out_as_announced() -> None:
    """A host-local leaf cannot be saved from several processes; a wrong sharding moves data each step."""
    config, placed = pretraining(steps=1), layout(replica=2, fsdp=4)
    announced = steps.abstract_state(config, placed)

    _, state = trained(config, placed)

    def check(leaf: Any, expected: jax.ShapeDtypeStruct) -> None:
        assert isinstance(leaf, jax.Array)
        assert (leaf.shape, leaf.dtype) == (expected.shape, expected.dtype)
        assert leaf.sharding.is_equivalent_to(expected.sharding, leaf.ndim)
        assert leaf.sharding.device_set == set(placed.mesh.devices.flat)

    jax.tree.map(check, state, announced)
    assert int(state.step) == 1


def test_adam_keeps_its_moments_where_the_parameters_are() -> None:
    """Replicated moments need twice the memory of the model on every device."""
    state = steps.abstract_state(pretraining(), layout(fsdp=8))

    split = [leaf for leaf in jax.tree.leaves(state) if not leaf.sharding.is_fully_replicated]
    matrices = [leaf for leaf in jax.tree.leaves(state.parameters) if not leaf.sharding.is_fully_replicated]
    assert len(matrices) == 5
    assert len(split) == 3 * len(matrices)


def test_the_abstract_state_needs_a_mesh_and_nothing_else() -> None:
    """The compiler check runs it on devices that are not there."""
    config = PretrainConfig(model="gpt2-124m", steps=1, global_batch=8, sequence_length=1024)

    state = steps.abstract_state(config, layout(fsdp=8).mesh)

    sizes = [leaf.size for leaf in jax.tree.leaves(state.parameters)]
    assert sum(sizes) == 124_475_904  # with 47 padding rows
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(state))


def test_the_learning_rate_rises_then_falls_to_its_fraction() -> None:
    """A first step at rate 0 is a wasted step, and a rate that never falls ends at a higher loss."""
    config = pretraining(steps=100, learning_rate=1.0, warmup_steps=10, final_learning_rate=0.1)
    schedule = steps.learning_rate_schedule(config)
    rates = [float(schedule(step)) for step in range(101)]

    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0)
    assert rates[10] == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.1)
    assert all(later < earlier for earlier, later in pairwise(rates[10:]))


def test_long_gradients_are_shortened_and_reported_at_full_length() -> None:
    """One bad batch must not undo the training; the metric must still show it."""
    config = pretraining(learning_rate=1.0, warmup_steps=0, weight_decay=0.0)
    placed = layout(data=1)
    batch = random_batch(placed, config)

    def after(clip: float | None) -> tuple[float, Any]:
        changed = config.model_copy(update={"grad_clip": clip})
        state, metrics = jax.jit(train_step(changed, placed))(started(changed, placed), batch)
        return float(metrics["grad_norm"]), state.optimizer[0].mu

    norm, whole = after(None)
    clipped_norm, short = after(norm / 10)

    assert clipped_norm == pytest.approx(norm)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a / 10, b, rtol=1e-3, atol=1e-9), whole, short)


def test_vectors_are_not_decayed() -> None:
    """Decaying norm scales towards 0 shrinks every layer's input."""
    config = pretraining(learning_rate=1.0, warmup_steps=0, weight_decay=0.5)
    placed = layout(data=1)
    state = started(config, placed)
    nothing = {**random_batch(placed, config), "mask": jnp.zeros((16, 16))}

    new, _ = jax.jit(train_step(config, placed))(state, nothing)

    np.testing.assert_allclose(
        new.parameters["tokens"], np.asarray(state.parameters["tokens"]) * 0.5, rtol=1e-6
    )
    np.testing.assert_array_equal(new.parameters["norm"]["scale"], np.ones(32))


def test_parts_that_do_not_divide_over_the_batch_shards_are_refused() -> None:
    """The compiler would pad them, or say something about dimension 1."""
    with pytest.raises(SpecError, match="global_batch 16 is not divisible by accumulate 4 × 8 batch shards"):
        train_step(pretraining(accumulate=4), layout(replica=2, fsdp=4))
