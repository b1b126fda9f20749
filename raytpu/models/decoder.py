"""The decoder: token table, a scanned stack of layers, final norm and logits.

The layers' parameters are stacked (leading dimension ``layers``) and run by one scan: the program is
compiled for one layer whatever the depth, and the state has a dozen arrays whatever the depth.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from raytpu.models.attention import Attention, KeyValueCache
from raytpu.models.config import ModelConfig
from raytpu.models.layout import Layout
from raytpu.models.parameters import NEVER, bias, compute_dtype, draw, kernel, project, scale

Parameters = dict[str, Any]
"""Nested names to arrays, free of Flax types, so that any optimizer and checkpoint code can hold them."""

_STACKED = {nnx.PARTITION_NAME: "layers"}


class Norm(nnx.Module):
    """Layernorm or rmsnorm over the last dimension, computed in fp32, returned in the type of its input."""

    def __init__(self, config: ModelConfig, layout: Layout) -> None:
        self.config, self.layout = config, layout
        self.scale = scale(config.width)
        self.bias = bias(config, (config.width,), ("norm",)) if config.norm == "layernorm" else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x.astype(jnp.float32)
        if self.config.norm == "layernorm":
            y = y - jnp.mean(y, axis=-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + self.config.norm_epsilon)
        y = y * self.scale[...]
        if self.bias is not None:
            y = y + self.bias[...]
        return y.astype(x.dtype)


class FeedForward(nnx.Module):
    """GELU: ``out(gelu(in x))``; SwiGLU: ``out(silu(gate x) · (in x))`` with gate and in as one array."""

    def __init__(self, config: ModelConfig, layout: Layout) -> None:
        self.config, self.layout = config, layout
        width, hidden = config.width, config.hidden_width
        branches = 2 if config.activation == "swiglu" else 1
        self.project_in = kernel((width, branches, hidden), ("embed", "branch", "mlp"))
        self.project_out = kernel((hidden, width), ("mlp", "embed"), residual_layers=config.layers)
        self.bias_in = bias(config, (branches, hidden), ("branch", "mlp"))
        self.bias_out = bias(config, (width,), ("norm",))

    def __call__(self, x: jax.Array) -> jax.Array:
        inner = project(x, self.layout.weight(self.project_in, x.dtype))
        if self.bias_in is not None:
            inner = inner + self.layout.weight(self.bias_in, x.dtype)
        if self.config.activation == "swiglu":
            hidden = jax.nn.silu(inner[:, :, 0]) * inner[:, :, 1]
        else:
            hidden = jax.nn.gelu(inner[:, :, 0], approximate=True)
        y = project(hidden, self.layout.weight(self.project_out, x.dtype))
        return y if self.bias_out is None else y + self.layout.weight(self.bias_out, x.dtype)


class Block(nnx.Module):
    """One layer: ``x + attention(norm x)``, then ``x + feed_forward(norm x)``."""

    def __init__(self, config: ModelConfig, layout: Layout) -> None:
        self.layout = layout
        self.attention_norm = Norm(config, layout)
        self.attention = Attention(config, layout)
        self.feed_forward_norm = Norm(config, layout)
        self.feed_forward = FeedForward(config, layout)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.attention_norm(x))
        x = x + self.feed_forward(self.feed_forward_norm(x))
        return self.layout.activation(x, None, None)

    def extend(
        self, x: jax.Array, position: jax.Array, cache: KeyValueCache, window: int
    ) -> tuple[jax.Array, KeyValueCache]:
        mixed, cache = self.attention.extend(self.attention_norm(x), position, cache, window)
        x = x + mixed
        return x + self.feed_forward(self.feed_forward_norm(x)), cache


class Decoder(nnx.Module):
    """Token ids to logits. The constructor declares the parameters; ``initial_parameters`` draws them."""

    def __init__(self, config: ModelConfig, layout: Layout) -> None:
        self.config, self.layout = config, layout
        table = (config.padded_vocab_size, config.width)
        self.tokens = kernel(table, ("vocab", "embed"))
        learned = config.positions == "learned"
        shape = (config.context_length, config.width)
        self.positions = kernel(shape, ("position", "embed")) if learned else None

        stack = nnx.vmap(
            lambda: Block(config, layout), in_axes=(), axis_size=config.layers, transform_metadata=_STACKED
        )
        self.blocks = stack()
        self.norm = Norm(config, layout)
        self.head = None if config.tied_embeddings else kernel(table, ("vocab", "embed"))

    def __call__(self, tokens: jax.Array | np.ndarray) -> jax.Array:
        """Logits, fp32 ``[batch, length, padded_vocab_size]``, of int32 ``[batch, length]``."""

        def layer(block: Block, x: jax.Array) -> jax.Array:
            return block(x)

        if self.config.remat:
            layer = nnx.remat(layer)
        run = nnx.scan(layer, in_axes=(0, nnx.Carry), out_axes=nnx.Carry, transform_metadata=_STACKED)
        return self._logits(run(self.blocks, self._embed(tokens, jnp.arange(tokens.shape[1]))))

    def extend(
        self, token: jax.Array, position: jax.Array, cache: KeyValueCache, window: int
    ) -> tuple[jax.Array, KeyValueCache]:
        """Logits ``[batch, padded_vocab_size]`` that follow ``token`` ``[batch]`` at ``position`` (scalar).

        ``cache`` holds every layer's keys and values (``KeyValueCache.empty``); the returned one holds
        this token's as well. The token sees the last ``window`` positions, itself included.
        """

        def layer(block: Block, x: jax.Array, cache: KeyValueCache) -> tuple[jax.Array, KeyValueCache]:
            return block.extend(x, position, cache, window)

        run = nnx.scan(layer, in_axes=(0, nnx.Carry, 0), out_axes=(nnx.Carry, 0), transform_metadata=_STACKED)
        x, cache = run(self.blocks, self._embed(token[:, None], position[None]), cache)
        return self._logits(x)[:, 0], cache

    def _embed(self, tokens: jax.Array | np.ndarray, positions: jax.Array) -> jax.Array:
        dtype = compute_dtype(self.config)
        x = jnp.take(self.layout.weight(self.tokens, dtype), tokens, axis=0)
        if self.positions is not None:
            x = x + jnp.take(self.layout.weight(self.positions, dtype), positions, axis=0)
        return self.layout.activation(x, None, None)

    def _logits(self, x: jax.Array) -> jax.Array:
        table = self.layout.weight(self.tokens if self.head is None else self.head, x.dtype)
        logits = jnp.einsum("ble,ve->blv", self.norm(x), table, preferred_element_type=jnp.float32)
        real = jnp.arange(self.config.padded_vocab_size) < self.config.vocab_size
        return self.layout.activation(jnp.where(real, logits, NEVER), None, "vocab")


def abstract_decoder(config: ModelConfig, layout: Layout) -> Decoder:
    """A decoder of ``jax.ShapeDtypeStruct``: shapes and logical axes, nothing computed."""
    return nnx.eval_shape(lambda: Decoder(config, layout))


def initial_parameters(config: ModelConfig, layout: Layout, seed: int) -> Parameters:
    """Fresh parameters, a function of ``seed`` alone, whatever the mesh. To be called inside ``jax.jit``."""
    return draw(nnx.state(abstract_decoder(config, layout), nnx.Param), layout, seed)


def decoder_of(config: ModelConfig, layout: Layout, parameters: Parameters) -> Decoder:
    """The decoder that computes with ``parameters``."""
    graph, state = nnx.split(abstract_decoder(config, layout))
    nnx.replace_by_pure_dict(state, parameters)
    return nnx.merge(graph, state)


def logical_axes(config: ModelConfig, layout: Layout) -> dict[tuple[str, ...], tuple[str | None, ...]]:
    """The names of the dimensions of every parameter, by the path of its nested name."""
    variables = nnx.to_flat_state(nnx.state(abstract_decoder(config, layout), nnx.Param))
    return {path: variable.out_sharding for path, variable in variables}
