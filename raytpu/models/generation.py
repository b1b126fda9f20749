"""Text from a decoder, as one program: a loop of fixed length over a buffer of fixed size."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from raytpu.models.attention import KeyValueCache
from raytpu.models.config import ModelConfig
from raytpu.models.decoder import Parameters, decoder_of
from raytpu.models.layout import Layout
from raytpu.models.parameters import compute_dtype


def make_generate(
    config: ModelConfig, layout: Layout, *, window: int, allowed_ids: int
) -> Callable[[Parameters, jax.Array | np.ndarray, jax.Array | int, jax.Array | float, jax.Array], jax.Array]:
    """A function ``(parameters, buffer, prompt_length, temperature, key) -> tokens``, to be jitted.

    ``buffer`` is int32 ``[slots]`` with the prompt in its first ``prompt_length`` (≥ 1) places; the
    result is a copy whose other places are sampled, each from the logits divided by ``temperature``
    (0: the likeliest token). A token sees the last ``window`` tokens, so a model with rotary positions
    can write on beyond the length that it was trained with. Only ids below ``allowed_ids`` are chosen: a
    table may have more rows than the tokenizer has tokens.

    Collective: the parameters are gathered, once, in the compute type, and every device then writes the
    same text; every process must call it with the same arguments.
    """

    def generate(
        parameters: Parameters,
        buffer: jax.Array | np.ndarray,
        prompt_length: jax.Array | int,
        temperature: jax.Array | float,
        key: jax.Array,
    ) -> jax.Array:
        slots = buffer.shape[0]
        whole = gathered_parameters(config, layout, parameters)

        def write(
            position: jax.Array, carry: tuple[jax.Array, KeyValueCache]
        ) -> tuple[jax.Array, KeyValueCache]:
            tokens, cache = carry
            model = decoder_of(config, layout, whole)
            logits, cache = model.extend(tokens[position][None], position, cache, window)
            chosen = _choose(logits[0, :allowed_ids], temperature, jax.random.fold_in(key, position))
            following = position + 1
            token = jnp.where(following < prompt_length, tokens[following], chosen)
            return tokens.at[following].set(token), cache

        start = (buffer, KeyValueCache.empty(config, 1, slots))
        tokens, _ = jax.lax.fori_loop(0, slots - 1, write, start)
        return jax.lax.with_sharding_constraint(tokens, layout.replicated)

    return generate


def gathered_parameters(config: ModelConfig, layout: Layout, parameters: Parameters) -> Parameters:
    """Whole matrices in the compute type (split over ``tensor`` only); vectors as they are. Collective."""
    state = nnx.state(decoder_of(config, layout, parameters), nnx.Param)
    dtype = compute_dtype(config)
    return nnx.to_pure_dict(
        state,
        lambda variable: (
            variable[...] if variable.out_sharding[-1] == "norm" else layout.weight(variable, dtype)
        ),
    )


def _choose(logits: jax.Array, temperature: jax.Array | float, key: jax.Array) -> jax.Array:
    drawn = jax.random.categorical(key, logits / jnp.maximum(temperature, 1e-6))
    return jnp.where(temperature > 0, drawn, jnp.argmax(logits)).astype(jnp.int32)
