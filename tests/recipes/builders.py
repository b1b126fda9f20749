"""A small valid pretraining for tests to change one thing of."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from raytpu.models.layout import Layout
from raytpu.recipes import pretrain_step as steps
from raytpu.recipes.pretrain_config import PretrainConfig
from raytpu.train.programs import fused


def pretraining(**changes: Any) -> PretrainConfig:
    values: dict[str, Any] = {
        "model": "gpt-nano",
        "overrides": {"width": 32, "heads": 4},
        "steps": 20,
        "global_batch": 16,
        "sequence_length": 16,
        **changes,
    }
    return PretrainConfig(**values)


def layout(**axes: int) -> Layout:
    devices = jax.devices()[: math.prod(axes.values())]
    return Layout.on(Mesh(np.array(devices).reshape(*axes.values()), tuple(axes)))


def train_step(config: PretrainConfig, placed: Layout) -> Any:
    """``(state, batch) -> (state, metrics)``, as a run in lockstep makes it."""
    return fused(steps.make_gradients(config, placed), steps.make_apply(config, placed))


def random_batch(placed: Layout, config: PretrainConfig, seed: int = 0) -> dict[str, jax.Array]:
    rng = np.random.default_rng(seed)
    shape = (config.global_batch, config.sequence_length)
    return {
        name: jax.device_put(rng.integers(0, 257, shape, dtype=np.int32), placed.batch)
        for name in ("tokens", "targets")
    }
