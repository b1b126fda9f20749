"""The program that the benchmarks run in every way: a small decoder's train step on tokens made from a seed.

No part of it knows who started it: Ray Train, raytpu, or a plain shell.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

CONFIG = {
    "model": "gpt-nano",
    "steps": 20,
    "global_batch": 32,
    "sequence_length": 128,
    "seed": 0,
}


def _note(path: str, name: str, **facts: Any) -> None:
    """One line: what happened, and when. Process 0 writes it."""
    import jax

    if jax.process_index() == 0:
        with Path(path).open("a") as file:
            file.write(json.dumps({"name": name, "time": time.time(), **facts}) + "\n")


def loop(config: Mapping[str, Any], mesh: Any, batch_axes: tuple[str, ...], jit: Callable[..., Any]) -> None:
    """Train ``config["steps"]`` steps and note in ``config["notes"]`` when each was done."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from raytpu.models.layout import Layout
    from raytpu.recipes import pretrain_step as steps
    from raytpu.recipes.pretrain_config import PretrainConfig
    from raytpu.train.programs import fused

    pretrain = PretrainConfig(**{key: config[key] for key in CONFIG})
    sharding = NamedSharding(mesh, PartitionSpec(batch_axes))
    layout = Layout.of(sharding)
    shape = (pretrain.global_batch, pretrain.sequence_length)
    tokens = np.random.default_rng(pretrain.seed).integers(0, 256, shape, dtype=np.int32)
    rows = jax.make_array_from_callback(shape, sharding, lambda index: tokens[index])
    batch = {"tokens": rows, "targets": rows}

    def initial_state() -> Any:
        return steps.initial_state(pretrain, layout)

    state = jit(initial_state, out_shardings=steps.state_shardings(pretrain, layout))()
    train_step = fused(steps.make_gradients(pretrain, layout), steps.make_apply(pretrain, layout))
    step = jit(train_step, donate_argnums=0)
    for number in range(1, pretrain.steps + 1):
        state, metrics = step(state, batch)
        loss = float(metrics["loss"])
        _note(config["notes"], "step", step=number, loss=loss)


def plain_loop(config: dict[str, Any]) -> None:
    """As a user of ``ray.train.v2.jax.JaxTrainer`` would write it; also run by hand."""
    import jax
    import numpy as np
    from jax.sharding import Mesh

    cache = config.get("cache")
    if cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    devices = np.array(sorted(jax.devices(), key=lambda device: device.id))
    mesh = Mesh(devices.reshape(config["replicas"], -1), ("replica", "fsdp"))
    loop(config, mesh, ("replica", "fsdp"), jax.jit)


def raytpu_loop(context: Any, config: dict[str, Any]) -> None:
    """The same under raytpu."""
    loop(config, context.mesh, ("replica", "fsdp"), context.jit)


def notes(path: Path) -> list[dict[str, Any]]:
    """What the program noted."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def step_seconds(path: Path, skip: int = 3) -> list[float]:
    """Seconds of each step but the first ``skip``, which compile and warm up."""
    times = [note["time"] for note in notes(path) if note["name"] == "step"]
    return [after - before for before, after in zip(times[skip:], times[skip + 1 :], strict=False)]


def by_hand() -> None:
    """``python -m tests.bench.programs``: one process of the plain program, placed by its environment."""
    config = json.loads(os.environ["BENCH_CONFIG"])
    import jax

    jax.config.update("jax_num_cpu_devices", int(os.environ["BENCH_DEVICES"]))
    jax.distributed.initialize(
        os.environ["BENCH_COORDINATOR"],
        int(os.environ["BENCH_PROCESSES"]),
        int(os.environ["BENCH_PROCESS"]),
        cluster_detection_method="deactivate",
    )
    plain_loop(config)


if __name__ == "__main__":
    by_hand()
