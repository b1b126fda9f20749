"""Parameters: declared by the modules with their logical axes, all drawn at once from one seed."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from raytpu.models.config import ModelConfig
from raytpu.models.layout import Layout

Axes = tuple[str | None, ...]

# GPT-2's released code (src/model.py, conv1d) draws matrices with deviation 0.02, at width 768. Scaled as
# 1/√width, which keeps the size of products: at width 64 a plain 0.02 left gpt-nano at 2.1 to 2.5 nats a
# byte after 200 steps, depending on the seed; scaled it is 1.80 and 1.81 (seeds 0 and 1).
_DEVIATION, _AT_WIDTH = 0.02, 768

NEVER = -1e9
"""A logit that exp() takes to 0, yet far enough from overflow to do arithmetic on."""


def compute_dtype(config: ModelConfig) -> jnp.dtype:
    """Of activations; parameters are fp32 whatever this is."""
    match config.dtype:
        case "bf16":
            return jnp.dtype(jnp.bfloat16)
        case "fp32":
            return jnp.dtype(jnp.float32)


def kernel(shape: tuple[int, ...], axes: Axes, *, residual_layers: int = 0) -> nnx.Param:
    """A matrix or table, fp32; exactly one of its axes is ``embed``. Normally distributed when drawn.

    ``residual_layers`` above 0 scales it by 1/√(2 × layers): each layer adds twice to the residual
    stream, whose variance then does not grow with depth (GPT-2 paper, section 2.3).
    """
    deviation = _DEVIATION * math.sqrt(_AT_WIDTH / shape[axes.index("embed")])
    if residual_layers:
        deviation /= math.sqrt(2 * residual_layers)
    return _declare(jnp.zeros(shape, jnp.float32), axes, deviation)


def bias(config: ModelConfig, shape: tuple[int, ...], axes: Axes) -> nnx.Param | None:
    """Zeros, or ``None`` when the model has no biases."""
    return _declare(jnp.zeros(shape, jnp.float32), axes, 0.0) if config.bias else None


def scale(width: int) -> nnx.Param:
    """Ones, one for each number of the residual stream."""
    return _declare(jnp.ones((width,), jnp.float32), ("norm",), 0.0)


def project(x: jax.Array, weight: jax.Array) -> jax.Array:
    """``x`` ``[batch, length, *in]`` times ``weight`` ``[*in, *out]``: ``[batch, length, *out]``.

    Spelled as one product of two matrices: XLA on CPU takes half as long to compile it as the same
    contraction of arrays with more dimensions, and runs it no slower.
    """
    inner = x.ndim - 2
    size = math.prod(x.shape[2:])
    y = x.reshape(-1, size) @ weight.reshape(size, -1)
    return y.reshape(*x.shape[:2], *weight.shape[inner:])


def draw(declared: nnx.State, layout: Layout, seed: int) -> dict[str, Any]:
    """Fresh values of all declared parameters, by nested name; a function of ``seed``, not of the mesh.

    All matrices are cut from one draw ``[rows, width]``, split over the mesh along ``embed`` as they
    will be: compiling a draw takes 0.5 s on a CPU core, and one for each matrix took 5 s.
    """
    matrices = {path: leaf for path, leaf in nnx.to_flat_state(declared) if leaf.deviation}
    rows = {path: _rows(leaf) for path, leaf in matrices.items()}
    width = next(iter(matrices.values())).shape[_embed(next(iter(matrices.values())))]
    pool = jax.random.normal(jax.random.key(seed), (sum(rows.values()), width), jnp.float32)
    pool = jax.lax.with_sharding_constraint(pool, layout.parameter((None, "embed"), pool.shape))
    starts = dict(zip(rows, _starts(list(rows.values())), strict=True))

    def value(path: tuple[str, ...], leaf: nnx.Param) -> jax.Array:
        if path not in matrices:
            fill = 1.0 if path[-1] == "scale" else 0.0
            return jnp.full(leaf.shape, fill, jnp.float32)
        embed = _embed(leaf)
        others = leaf.shape[:embed] + leaf.shape[embed + 1 :]
        taken = pool[starts[path] : starts[path] + rows[path]].reshape(*others, width)
        return leaf.deviation * jnp.moveaxis(taken, -1, embed)

    values = [(path, leaf.replace(value(path, leaf))) for path, leaf in nnx.to_flat_state(declared)]
    return nnx.to_pure_dict(nnx.from_flat_state(values))


def _embed(leaf: nnx.Param) -> int:
    return leaf.out_sharding.index("embed")


def _rows(leaf: nnx.Param) -> int:
    return math.prod(leaf.shape) // leaf.shape[_embed(leaf)]


def _starts(sizes: list[int]) -> list[int]:
    return [sum(sizes[:index]) for index in range(len(sizes))]


def _declare(value: jax.Array, axes: Axes, deviation: float) -> nnx.Param:
    # Not eager: Flax would read the names as mesh axes at once; raytpu.models.layout maps them.
    return nnx.Param(value, out_sharding=axes, eager_sharding=False, deviation=deviation)
