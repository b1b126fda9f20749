"""The workload's data, as the streams that a loop can ask for, prepared by an actor of its own.

Ray Data runs where it is called, and cannot be told to stop. In an actor it starts while the hosts do, and
``ray.kill`` ends it with the attempt, whatever it is doing. The actor owns the blocks: it lives as long as
the attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raytpu.spec import TextData


def stream_names(data: Mapping[str, TextData]) -> tuple[str, ...]:
    """Names of the streams: one a section, and ``eval`` where ``train`` holds documents back."""
    names = list(data)
    if "train" in data and data["train"].holdout > 0 and "eval" not in data:
        names.append("eval")
    return tuple(names)


class DataPreparer:
    """Has Ray Data read, tokenise and pack."""

    def prepare(
        self, data: Mapping[str, TextData], sequence_length: int, global_batch: int
    ) -> dict[str, Any]:
        """Packed rows of each stream.

        Raises:
            DataError: a source cannot be read, or holds less than one batch.
        """
        from raytpu.data import prepare_text

        streams: dict[str, Any] = {}
        for name, source in data.items():
            prepared = prepare_text(source, sequence_length=sequence_length, global_batch=global_batch)
            streams[name] = prepared["train"]
            if "eval" in prepared and "eval" not in data:
                streams["eval"] = prepared["eval"]
        return streams


def start_preparer() -> ray.actor.ActorHandle:
    """A ``DataPreparer`` on this driver's node, which outlives every host that may be lost."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(DataPreparer).options(num_cpus=0, scheduling_strategy=here).remote()
