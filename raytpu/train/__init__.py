"""Training on whole slices: the trainer, and what a train function sees.

Both are imported when first asked for: the trainer loads Ray, the context loads JAX, and the driver of a
run needs only the first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raytpu.train.context import TrainContext as TrainContext
    from raytpu.train.trainer import JaxTrainer as JaxTrainer

__all__ = ["JaxTrainer", "TrainContext"]

_HOME = {"JaxTrainer": "raytpu.train.trainer", "TrainContext": "raytpu.train.context"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
