"""Training state on storage: saved in the background, verified, and restored onto any mesh.

What only looks at storage needs neither JAX nor Orbax; ``CheckpointStore`` is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raytpu.checkpoint.durable import durable_steps as durable_steps
from raytpu.checkpoint.durable import newest_durable_step as newest_durable_step
from raytpu.checkpoint.ladder import Rung as Rung
from raytpu.checkpoint.ladder import rungs as rungs

if TYPE_CHECKING:
    from raytpu.checkpoint.orbax_store import CheckpointStore as CheckpointStore
    from raytpu.checkpoint.orbax_store import DurableSave as DurableSave
    from raytpu.checkpoint.orbax_store import SlowSave as SlowSave
    from raytpu.checkpoint.orbax_store import VerifiedSave as VerifiedSave
    from raytpu.checkpoint.restoring import Restored as Restored

__all__ = [
    "CheckpointStore",
    "DurableSave",
    "Restored",
    "Rung",
    "SlowSave",
    "VerifiedSave",
    "durable_steps",
    "newest_durable_step",
    "rungs",
]

_WITH_ORBAX = {"CheckpointStore", "DurableSave", "Restored", "SlowSave", "VerifiedSave"}


def __getattr__(name: str) -> Any:
    if name in _WITH_ORBAX:
        from raytpu.checkpoint import orbax_store

        return getattr(orbax_store, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
