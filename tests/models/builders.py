"""Valid small models and meshes for tests to change one thing of."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from raytpu.models import ModelConfig
from raytpu.models.layout import Layout


def tiny(**changes: Any) -> ModelConfig:
    """GPT-2's architecture, small enough to compile in a second or two."""
    values: dict[str, Any] = {
        "layers": 2, "width": 32, "heads": 4, "vocab_size": 257, "context_length": 32, **changes,
    }  # fmt: skip
    return ModelConfig(**values)


def mesh(**axes: int) -> Mesh:
    """A mesh over the first devices, its axes in written order."""
    devices = jax.devices()[: math.prod(axes.values())]
    return Mesh(np.array(devices).reshape(*axes.values()), tuple(axes))


def layout(**axes: int) -> Layout:
    return Layout.on(mesh(**axes))


def one_device() -> Layout:
    return layout(data=1)
