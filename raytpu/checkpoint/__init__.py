"""Training state on storage: saved in the background, durable or not there, restored onto any mesh.

``durable_steps`` and ``newest_durable_step`` need neither JAX nor Orbax; ``CheckpointStore`` is loaded on
first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raytpu.checkpoint.durable import durable_steps as durable_steps
from raytpu.checkpoint.durable import newest_durable_step as newest_durable_step

if TYPE_CHECKING:
    from raytpu.checkpoint.orbax_store import CheckpointStore as CheckpointStore
    from raytpu.checkpoint.orbax_store import DurableSave as DurableSave

__all__ = ["CheckpointStore", "DurableSave", "durable_steps", "newest_durable_step"]


def __getattr__(name: str) -> Any:
    if name in {"CheckpointStore", "DurableSave"}:
        from raytpu.checkpoint import orbax_store

        return getattr(orbax_store, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
