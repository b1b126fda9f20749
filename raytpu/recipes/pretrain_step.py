"""One step of pretraining as pure functions: state, loss, gradients, AdamW, evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from raytpu.errors import SpecError
from raytpu.models.decoder import Parameters, decoder_of, initial_parameters, logical_axes
from raytpu.models.layout import Layout
from raytpu.recipes.pretrain_config import PretrainConfig

Batch = Mapping[str, jax.Array]
"""``tokens`` and ``targets``, int32 ``[global_batch, sequence_length]``; optionally ``mask`` of the same
shape: the weight of each target in the loss (1 without it)."""

Metrics = dict[str, jax.Array]


class TrainState(NamedTuple):
    """Everything a resumed run needs besides its place in the data; every leaf is a global array."""

    step: jax.Array
    """Finished steps, int32 scalar."""
    parameters: Parameters
    optimizer: Any
    """Optax state of Adam: two arrays like each parameter, and a count."""


def initial_state(config: PretrainConfig, layout: Layout) -> TrainState:
    """A fresh state. Call it inside ``jax.jit`` with ``state_shardings``: host-local arrays cannot be saved.

    The values are a function of ``config.seed`` alone, whatever the mesh.
    """
    parameters = initial_parameters(config.architecture, layout, config.seed)
    return TrainState(jnp.zeros((), jnp.int32), parameters, _adam(config).init(parameters))


def abstract_state(config: PretrainConfig, layout: Layout | Mesh) -> TrainState:
    """Shape, type and sharding of each leaf; computes nothing, so the devices need not be there."""
    if isinstance(layout, Mesh):
        layout = Layout.on(layout)
    axes = logical_axes(config.architecture, layout)

    def place(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        names = tuple(key.key for key in path if isinstance(key, jax.tree_util.DictKey))
        sharding = layout.replicated
        if names in axes:  # a parameter, or Adam's mean or square of one
            sharding = layout.parameter(axes[names], leaf.shape)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map_with_path(place, jax.eval_shape(lambda: initial_state(config, layout)))


def state_shardings(config: PretrainConfig, layout: Layout) -> TrainState:
    """The sharding of each leaf of the state, for ``out_shardings``."""
    return jax.tree.map(lambda leaf: leaf.sharding, abstract_state(config, layout))


def make_gradients(
    config: PretrainConfig, layout: Layout
) -> Callable[[TrainState, Batch], tuple[Parameters, Metrics]]:
    """A function ``(state, batch) -> (gradients, metrics)``, for ``TrainContext.step``.

    The metric is ``loss``: mean nats per token of the batch, before the update.

    Raises:
        SpecError: the microbatches of ``accumulate`` do not divide over the batch shards.
    """
    _check_microbatch(config, layout, config.global_batch)
    shardings = state_shardings(config, layout)

    def gradients_of(state: TrainState, batch: Batch) -> tuple[Parameters, Metrics]:
        _check_microbatch(config, layout, batch["tokens"].shape[0])  # of replicas: their part of the batch
        loss, gradients = loss_and_gradients(config, layout, state.parameters, batch)
        return jax.lax.with_sharding_constraint(
            (gradients, {"loss": loss}), (shardings.parameters, layout.replicated)
        )

    return gradients_of


def make_apply(
    config: PretrainConfig, layout: Layout
) -> Callable[[TrainState, Parameters], tuple[TrainState, Metrics]]:
    """A function ``(state, gradients) -> (state, metrics)``, for ``TrainContext.step``.

    Metrics are fp32 scalars: ``grad_norm`` (before clipping) and ``learning_rate`` (the one this step used).
    """
    adam, schedule = _adam(config), learning_rate_schedule(config)
    shardings = state_shardings(config, layout)

    def apply(state: TrainState, gradients: Parameters) -> tuple[TrainState, Metrics]:
        norm = optax.tree.norm(gradients)
        if config.grad_clip is not None:
            shrink = jnp.minimum(1.0, config.grad_clip / (norm + 1e-6))
            gradients = jax.tree.map(lambda gradient: gradient * shrink, gradients)
        rate = schedule(state.step)
        updates, optimizer = adam.update(gradients, state.optimizer, state.parameters)
        parameters = jax.tree.map(lambda value, update: value - rate * update, state.parameters, updates)
        new = TrainState(state.step + 1, parameters, optimizer)
        metrics = {"grad_norm": norm, "learning_rate": jnp.asarray(rate, jnp.float32)}
        return jax.lax.with_sharding_constraint((new, metrics), (shardings, layout.replicated))

    return apply


def make_evaluate(config: PretrainConfig, layout: Layout) -> Callable[[Parameters, Batch], jax.Array]:
    """A function ``(parameters, batch) -> mean nats per token``, fp32, replicated."""

    def evaluate(parameters: Parameters, batch: Batch) -> jax.Array:
        weight = _weights(batch)
        loss = _summed_loss(config, layout, parameters, batch, weight) / jnp.sum(weight)
        return jax.lax.with_sharding_constraint(loss, layout.replicated)

    return evaluate


def loss_and_gradients(
    config: PretrainConfig, layout: Layout, parameters: Parameters, batch: Batch
) -> tuple[jax.Array, Parameters]:
    """Mean loss of the batch and its gradients, in ``config.accumulate`` parts.

    Each part's loss is divided by the weight of the whole batch, so that the sum over the parts is the
    gradient of the whole batch, also when a mask weighs the parts unequally.
    """
    weight = _weights(batch)
    parts = dict(batch, mask=weight / jnp.maximum(jnp.sum(weight), 1e-9))

    def of_part(parameters: Parameters, part: Batch) -> jax.Array:
        return _summed_loss(config, layout, parameters, part, part["mask"])

    if config.accumulate == 1:
        return jax.value_and_grad(of_part)(parameters, parts)

    def add(total: tuple[jax.Array, Parameters], part: Batch) -> tuple[tuple[jax.Array, Parameters], None]:
        return jax.tree.map(jnp.add, total, jax.value_and_grad(of_part)(parameters, part)), None

    zero = (jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, parameters))
    total, _ = jax.lax.scan(add, zero, _split(parts, config.accumulate, layout))
    return total


def learning_rate_schedule(config: PretrainConfig) -> optax.Schedule:
    """Linear rise to the peak, then half a cosine down to ``final_learning_rate`` × peak at the last step."""
    peak = config.peak_learning_rate
    # Counted from 1, so that the first of N warm-up steps moves by peak / N and not by nothing.
    rising = optax.linear_schedule(peak / max(1, config.warmup), peak, max(1, config.warmup - 1))
    falling = optax.cosine_decay_schedule(
        peak, max(1, config.steps - config.warmup), alpha=config.final_learning_rate
    )
    return optax.join_schedules([rising, falling], [config.warmup])


def _adam(config: PretrainConfig) -> optax.GradientTransformation:
    """AdamW without the learning rate, which the step applies, so that the metric is what was used."""

    def decayed(parameters: Parameters) -> Parameters:
        return jax.tree.map_with_path(lambda path, _: not _is_vector(path), parameters)

    return optax.chain(
        optax.scale_by_adam(*config.betas), optax.add_decayed_weights(config.weight_decay, mask=decayed)
    )


def _is_vector(path: tuple[Any, ...]) -> bool:
    return path[-1].key == "scale" or path[-1].key.startswith("bias")


def _summed_loss(
    config: PretrainConfig, layout: Layout, parameters: Parameters, batch: Batch, weight: jax.Array
) -> jax.Array:
    logits = decoder_of(config.architecture, layout, parameters)(batch["tokens"])
    # Selected by comparison: indexing would gather logits that are split over the vocabulary.
    chosen = jnp.arange(logits.shape[-1]) == batch["targets"][..., None]
    losses = jax.nn.logsumexp(logits, axis=-1) - jnp.sum(logits, axis=-1, where=chosen)
    return jnp.sum(losses * weight)


def _weights(batch: Batch) -> jax.Array:
    if "mask" in batch:
        return batch["mask"].astype(jnp.float32)
    return jnp.ones(batch["targets"].shape, jnp.float32)


def _split(batch: Batch, parts: int, layout: Layout) -> dict[str, jax.Array]:
    """``[batch, length]`` → ``[parts, batch / parts, length]``, where part p has the rows i × parts + p.

    Interleaved, because each device holds a block of neighbouring rows: every part takes an equal share
    of each block and no row moves between devices.
    """

    def cut(rows: jax.Array) -> jax.Array:
        cut_rows = jnp.swapaxes(rows.reshape(rows.shape[0] // parts, parts, *rows.shape[1:]), 0, 1)
        return jax.lax.with_sharding_constraint(cut_rows, layout.microbatches)

    return {name: cut(rows) for name, rows in batch.items()}


def _check_microbatch(config: PretrainConfig, layout: Layout, rows: int) -> None:
    if rows % (config.accumulate * layout.batch_shards):
        axes = " × ".join(layout.batch_axes)
        raise SpecError(
            f"global_batch {rows} is not divisible by accumulate {config.accumulate} × "
            f"{layout.batch_shards} batch shards ({axes}): every part needs the same rows on each shard"
        )
