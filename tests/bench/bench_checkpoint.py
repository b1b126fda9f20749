"""What checkpoints cost the train step, against synchronous Orbax and none; the cost of manifest and restore.

The demo's program in four processes of 4 devices, without Ray, one save every 50 steps. Blocks of 50 steps
take turns: no save, raytpu's, synchronous Orbax. Goal: the loop stands still for less than 3 % of a block's
step time. Throughput is measured apart, on a state of ``--megabytes``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.programs import CONFIG

GOAL = 0.03
DEADLINE_S = 300
KINDS = ("none", "raytpu", "sync")


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50, help="steps between two saves")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=256)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        answer = run_by_hand({**vars(arguments), "folder": folder})
    print(json.dumps(summary_of(answer, arguments.steps)))


def run_by_hand(given: dict[str, Any]) -> dict[str, Any]:
    """Four plain processes on loopback; what process 0 measured."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "BENCH_GIVEN": json.dumps({**given, "coordinator": f"127.0.0.1:{port}"}),
    }
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [sys.executable, "-c", "from tests.bench.bench_checkpoint import process; process()"]
    processes = [
        subprocess.Popen(command, env=environment | {"BENCH_PROCESS": str(index)}, **quiet)
        for index in range(4)
    ]
    try:
        for process_ in processes:
            if process_.wait(timeout=1200) != 0:
                raise SystemExit(f"a process ended with {process_.returncode}")
    finally:
        for process_ in processes:
            process_.kill()
    answer: dict[str, Any] = json.loads((Path(given["folder"]) / "answer.json").read_text())
    return answer


def summary_of(answer: dict[str, Any], steps: int) -> dict[str, Any]:
    """Medians; ``stall`` is the blocked time over the step time of a block without saves."""
    block_s = statistics.median(answer["block_s"]["none"])
    blocked = {kind: statistics.median(answer["blocked_s"][kind]) for kind in KINDS if kind != "none"}
    return {
        "bench": "checkpoint (simulated hosts, no Ray)",
        "steps_between_saves": steps,
        "step_s": round(block_s / steps, 4),
        "blocked_s": {kind: round(seconds, 4) for kind, seconds in blocked.items()},
        "stall": {kind: round(seconds / block_s, 4) for kind, seconds in blocked.items()},
        "goal": GOAL,
        # Of blocks, saves included: what background work takes from the step as well, on shared cores.
        "slowdown": {
            kind: round(statistics.median(answer["block_s"][kind]) / block_s - 1, 4) for kind in blocked
        },
        **answer["large"],
    }


def process() -> None:
    """One host of the gang."""
    given = json.loads(os.environ["BENCH_GIVEN"])
    import jax

    jax.config.update("jax_num_cpu_devices", 4)
    jax.distributed.initialize(
        given["coordinator"], 4, int(os.environ["BENCH_PROCESS"]), cluster_detection_method="deactivate"
    )
    import numpy as np
    from jax.sharding import Mesh

    devices = np.array(sorted(jax.devices(), key=lambda device: device.id))
    mesh = Mesh(devices.reshape(2, -1), ("replica", "fsdp"))
    answer = {**train_blocks(given, mesh), "large": large_state(given, mesh)}
    if jax.process_index() == 0:
        (Path(given["folder"]) / "answer.json").write_text(json.dumps(answer))
    jax.distributed.shutdown()


def train_blocks(given: dict[str, Any], mesh: Any) -> dict[str, Any]:
    """Blocks of steps, each begun by a save of its kind: seconds per block, and blocked by the save."""
    from raytpu.checkpoint import CheckpointStore

    state, step = train_program(mesh)
    store = CheckpointStore(f"{given['folder']}/raytpu", keep=1)
    sync = synchronous_save(f"{given['folder']}/sync")
    block_s: dict[str, list[float]] = {kind: [] for kind in KINDS}
    blocked_s: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(given["rounds"] + 1):  # the first warms up
        for kind in KINDS:
            began = time.perf_counter()
            if kind == "raytpu":
                store.save(number, state, {})
            elif kind == "sync":
                sync(number, state)
            blocked = time.perf_counter() - began
            for _ in range(given["steps"]):
                state, metrics = step(state)
                float(metrics["loss"])
            ended = time.perf_counter()
            store.wait(DEADLINE_S)
            if number:
                block_s[kind].append(ended - began)
                blocked_s[kind].append(blocked)
    store.close(DEADLINE_S)
    return {"block_s": block_s, "blocked_s": blocked_s}


def train_program(mesh: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The demo's state and compiled step on this mesh."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from raytpu.models.layout import Layout
    from raytpu.recipes import pretrain_step as steps
    from raytpu.recipes.pretrain_config import PretrainConfig
    from raytpu.train.programs import fused

    pretrain = PretrainConfig(**CONFIG)
    sharding = NamedSharding(mesh, PartitionSpec(("replica", "fsdp")))
    layout = Layout.of(sharding)
    shape = (pretrain.global_batch, pretrain.sequence_length)
    tokens = np.random.default_rng(0).integers(0, 256, shape, dtype=np.int32)
    rows = jax.make_array_from_callback(shape, sharding, lambda index: tokens[index])
    batch = {"tokens": rows, "targets": rows}
    shardings = steps.state_shardings(pretrain, layout)
    state = jax.jit(lambda: steps.initial_state(pretrain, layout), out_shardings=shardings)()
    train_step = fused(steps.make_gradients(pretrain, layout), steps.make_apply(pretrain, layout))
    step = jax.jit(train_step, donate_argnums=0)
    return state, lambda state: step(state, batch)


def synchronous_save(directory: str) -> Callable[[int, Any], None]:
    """Orbax as it is without its background."""
    import orbax.checkpoint as ocp
    from etils import epath

    from raytpu.checkpoint.state_leaves import flatten_state

    writer = ocp.Checkpointer(ocp.StandardCheckpointHandler())
    epath.Path(directory).mkdir(parents=True, exist_ok=True)

    def save(number: int, state: Any) -> None:
        arrays, _ = flatten_state(state)
        writer.save(epath.Path(directory) / str(number), args=ocp.args.StandardSave(arrays))

    return save


def large_state(given: dict[str, Any], mesh: Any) -> dict[str, Any]:
    """Seconds of the manifest and of a restore, with and without verifying, against a plain read."""
    import jax
    from jax.experimental import multihost_utils
    from jax.sharding import NamedSharding, PartitionSpec

    from raytpu.checkpoint import CheckpointStore, VerifiedSave

    rows = NamedSharding(mesh, PartitionSpec("fsdp"))
    shape = (given["megabytes"] << 18,)
    state = {
        "x": jax.jit(lambda: jax.random.normal(jax.random.key(0), shape), out_shardings=rows)(),
    }
    directory = f"{given['folder']}/large"
    store = CheckpointStore(directory, keep=1)
    store.save(1, state, {})
    store.wait(DEADLINE_S)
    [verified] = [report for report in store.save_reports() if isinstance(report, VerifiedSave)]

    def seconds_of(work: Callable[[], Any]) -> float:
        multihost_utils.sync_global_devices("bench")
        began = time.perf_counter()
        work()
        multihost_utils.sync_global_devices("bench")
        return time.perf_counter() - began

    files = [path for path in Path(directory, "1").rglob("*") if path.is_file()]
    mine = files if jax.process_index() == 0 else []
    read_s = min(seconds_of(lambda: [path.read_bytes() for path in mine]) for _ in range(2))
    with_manifest_s = min(seconds_of(lambda: store.restore_newest(state)) for _ in range(2))
    multihost_utils.sync_global_devices("bench")
    if jax.process_index() == 0:
        Path(directory, "1", "manifest.json").unlink()
    without_s = min(seconds_of(lambda: store.restore_newest(state)) for _ in range(2))
    store.close(DEADLINE_S)
    multihost_utils.sync_global_devices("bench")
    if jax.process_index() == 0:
        shutil.rmtree(directory)
    return {
        "large_bytes": verified.size,
        "manifest_s": round(verified.seconds, 3),
        "read_once_s": round(read_s, 3),
        "restore_verified_s": round(with_manifest_s, 3),
        "restore_unverified_s": round(without_s, 3),
    }


if __name__ == "__main__":
    main()
