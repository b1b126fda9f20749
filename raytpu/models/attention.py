"""Causal self-attention with learned or rotary positions and shared key/value heads."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from raytpu.models.config import ModelConfig
from raytpu.models.layout import Layout
from raytpu.models.parameters import NEVER, bias, compute_dtype, kernel, project


class KeyValueCache(NamedTuple):
    """Keys and values of the tokens seen so far, each ``[batch, kv_heads, slots, head_width]``."""

    keys: jax.Array
    values: jax.Array

    @classmethod
    def empty(cls, config: ModelConfig, batch: int, slots: int) -> KeyValueCache:
        """Of all layers: the arrays have a leading dimension ``layers``."""
        shape = (config.layers, batch, config.key_value_heads, slots, config.head_width)
        return cls(jnp.zeros(shape, compute_dtype(config)), jnp.zeros(shape, compute_dtype(config)))


class Attention(nnx.Module):
    """Queries, keys and values come from one projection, laid out by key/value head.

    ``[embed, kv_heads, queries per kv_head + 2, head_width]``: one array is one gather a layer, and
    splitting it over ``heads`` leaves each device with the keys and values of its own queries.
    """

    def __init__(self, config: ModelConfig, layout: Layout) -> None:
        self.config, self.layout = config, layout
        width, kv_heads, head = config.width, config.key_value_heads, config.head_width
        group = config.heads // kv_heads
        self.project_in = kernel((width, kv_heads, group + 2, head), ("embed", "heads", "group", "head"))
        self.project_out = kernel(
            (kv_heads, group, head, width), ("heads", "group", "head", "embed"), residual_layers=config.layers
        )
        self.bias_in = bias(config, (kv_heads, group + 2, head), ("heads", "group", "head"))
        self.bias_out = bias(config, (width,), ("norm",))

    def __call__(self, x: jax.Array) -> jax.Array:
        """``[batch, length, width]`` in and out; position i sees positions 0 to i."""
        positions = jnp.arange(x.shape[1])
        queries, keys, values = self._heads(x, positions)
        return self._out(attend(queries, keys, values, positions[:, None] >= positions))

    def extend(
        self, x: jax.Array, position: jax.Array, cache: KeyValueCache, window: int
    ) -> tuple[jax.Array, KeyValueCache]:
        """One token ``[batch, 1, width]`` at ``position``, which sees the last ``window`` positions."""
        queries, keys, values = self._heads(x, position[None])
        cache = KeyValueCache(
            jax.lax.dynamic_update_slice_in_dim(cache.keys, keys, position, axis=2),
            jax.lax.dynamic_update_slice_in_dim(cache.values, values, position, axis=2),
        )
        slots = jnp.arange(cache.keys.shape[2])
        seen = (slots <= position) & (slots > position - window)
        return self._out(attend(queries, cache.keys, cache.values, seen[None, :])), cache

    def _heads(self, x: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        fused = project(x, self.layout.weight(self.project_in, x.dtype))
        if self.bias_in is not None:
            fused = fused + self.layout.weight(self.bias_in, x.dtype)
        fused = jnp.moveaxis(fused, 1, 3)
        turned, values = fused[:, :, :-1], fused[:, :, -1]  # queries and keys; values
        if self.config.positions == "rotary":
            turned = rotate(turned, rotary_angles(positions, self.config.head_width, self.config.rotary_base))
        return turned[:, :, :-1], turned[:, :, -1], values

    def _out(self, mixed: jax.Array) -> jax.Array:
        y = project(jnp.moveaxis(mixed, 3, 1), self.layout.weight(self.project_out, mixed.dtype))
        return y if self.bias_out is None else y + self.layout.weight(self.bias_out, y.dtype)


def attend(queries: jax.Array, keys: jax.Array, values: jax.Array, seen: jax.Array) -> jax.Array:
    """Softmax attention, the softmax in fp32.

    Heads come before positions: on CPU this order runs 2.5 times as fast as ``jax.nn.dot_product_attention``
    (forward and backward, 32 × 128 tokens, 4 heads of 32).

    Args:
        queries: ``[batch, kv_heads, group, length, head_width]``
        keys: ``[batch, kv_heads, slots, head_width]``
        values: as ``keys``
        seen: bool ``[length, slots]``; each row must have at least one ``True``.
    """
    scores = jnp.einsum("bkgqh,bksh->bkgqs", queries, keys, preferred_element_type=jnp.float32)
    scores = jnp.where(seen, scores * queries.shape[-1] ** -0.5, NEVER)
    return jnp.einsum("bkgqs,bksh->bkgqh", jax.nn.softmax(scores, axis=-1).astype(values.dtype), values)


def rotary_angles(positions: jax.Array, head_width: int, base: float) -> jax.Array:
    """``[length, head_width / 2]`` in radians: position / base^(2i / head_width)."""
    exponents = jnp.arange(0, head_width, 2, dtype=jnp.float32) / head_width
    return positions.astype(jnp.float32)[:, None] / base**exponents


def rotate(heads: jax.Array, angles: jax.Array) -> jax.Array:
    """Rotate the pairs (i, i + head_width/2) of ``[..., length, head_width]``, as Llama in Transformers."""
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(heads.dtype)
