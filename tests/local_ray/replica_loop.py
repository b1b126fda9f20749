"""A small train loop for replicas that writes down, at every step, what its host's state is."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTH, ROWS = 64, 8


def loop(context: Any, config: dict[str, Any]) -> None:
    """Linear regression with momentum, on sharded and replicated state."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from raytpu.train.replicas.host_shards import host_shards

    sharded = NamedSharding(context.mesh, PartitionSpec("fsdp"))
    whole = NamedSharding(context.mesh, PartitionSpec())
    target = np.linspace(-1, 1, WIDTH, dtype=np.float32)

    def gradients(state: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            return jnp.mean((batch @ (weights - target)) ** 2)

        value, slopes = jax.value_and_grad(loss)(state["weights"])
        return slopes, {"loss": value}

    def apply(state: Any, slopes: Any) -> Any:
        momentum = 0.9 * state["momentum"] + slopes
        new = {
            "weights": state["weights"] - 0.01 * momentum,
            "momentum": momentum,
            "steps": state["steps"] + 1,
        }
        new = jax.lax.with_sharding_constraint(new, {"weights": sharded, "momentum": sharded, "steps": whole})
        return new, {"norm": jnp.linalg.norm(slopes)}

    def first() -> Any:
        return {"weights": jnp.zeros(WIDTH), "momentum": jnp.zeros(WIDTH), "steps": jnp.zeros((), jnp.int32)}

    train_step = context.step(gradients, apply, parameters=lambda state: state["weights"])
    shardings = {"weights": sharded, "momentum": sharded, "steps": whole}
    state = context.restore(context.jit(first, out_shardings=shardings)())
    notes = Path(config["notes"]) / f"{os.environ['TPU_NAME']}-{os.environ['TPU_WORKER_ID']}.jsonl"
    end = Path(config["notes"]) / "end"
    with notes.open("a") as file:
        for step in range(context.start_step + 1, config["steps"] + 1):
            state, metrics = train_step(state, lambda part, step=step: rows(context, step, part))
            digest = hashlib.sha256(b"".join(each.tobytes() for each in host_shards(state))).hexdigest()
            note = {"step": step, "digest": digest, "pid": os.getpid(), "time": time.monotonic()}
            file.write(json.dumps(note | {"loss": float(metrics["loss"])}) + "\n")
            file.flush()
            context.report(step, metrics, state)
            if end.exists() and step >= int(end.read_text()):
                return  # at the same step on all hosts: it was far ahead when it was written


def rows(context: Any, step: int, part: int) -> Any:
    """Rows of one part of a step, the same for whoever computes it."""
    import jax
    import numpy as np

    content = np.random.default_rng((step, part)).normal(size=(ROWS, WIDTH)).astype(np.float32)
    return jax.make_array_from_callback(content.shape, context.batch_sharding, lambda index: content[index])


@dataclass(frozen=True)
class Note:
    """What one host wrote after one step."""

    host: str
    step: int
    digest: str
    pid: int
    time: float
    loss: float

    @property
    def host_name(self) -> str:
        """As raytpu names it, such as ``slice-0/1``."""
        return "/".join(self.host.rsplit("-", 1))

    @property
    def slice(self) -> str:
        return self.host.rsplit("-", 1)[0]


def read_notes(folder: Path) -> list[Note]:
    notes = []
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_text().splitlines()
        notes += [Note(host=path.stem, **json.loads(line)) for line in lines if line.endswith("}")]
    return notes


def digests(notes: list[Note]) -> dict[tuple[int, str], set[str]]:
    """By step and position in the slice: the states that hosts had, which must be one."""
    found: dict[tuple[int, str], set[str]] = defaultdict(set)
    for note in notes:
        found[note.step, note.host.rsplit("-", 1)[1]].add(note.digest)
    return found


def losses(notes: list[Note]) -> dict[int, set[float]]:
    found: dict[int, set[float]] = defaultdict(set)
    for note in notes:
        found[note.step].add(note.loss)
    return found
