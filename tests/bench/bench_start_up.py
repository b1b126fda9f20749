"""From the start of a driver to the first step, on slices that are up: stock JaxTrainer against raytpu.

Both run the same train function in fresh driver processes, in interleaved pairs. *cold*: no compile cache,
no warm process. *warm*: every host keeps a process that has imported JAX, and the compile cache is filled.
Goals: at most 0.8 of stock's time cold, 0.5 warm. Simulated slices, all on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.programs import CONFIG, notes, plain_loop, raytpu_loop

REPOSITORY = Path(__file__).parents[2]
SLICE = {"generation": "v6e", "topology": "4x4", "chips_per_host": 4}
GOALS = {"cold": 0.8, "warm": 0.5}


def drive_stock(address: str, config: dict[str, Any], root: str, slices: int) -> None:
    """The driver of stock Ray."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.v2.jax import JaxTrainer

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    JaxTrainer(
        plain_loop,
        train_loop_config=config,
        scaling_config=ScalingConfig(
            use_tpu=True,
            topology="4x4",
            accelerator_type="TPU-V6E",
            num_workers=4 * slices,
            resources_per_worker={"TPU": 4},
        ),
        run_config=RunConfig(name=f"stock-{time.time()}", storage_path=root),
    ).fit()


def drive_raytpu(address: str, config: dict[str, Any], root: str, slices: int) -> None:
    """The driver of raytpu, through the same class and arguments."""
    import ray
    from ray.train import RunConfig

    from raytpu import JaxTrainer, Mesh, Slices

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    JaxTrainer(
        raytpu_loop,
        train_loop_config=config,
        slices=Slices(**SLICE, count=slices),
        mesh=Mesh(dcn={"replica": slices}, ici={"fsdp": 16}),
        run_config=RunConfig(name=f"raytpu-{time.time()}".replace(".", "-"), storage_path=root),
        python_path=(str(REPOSITORY),),
        compile_cache=config["cache"],
    ).fit()


def first_step_s(who: str, address: str, config: dict[str, Any], root: Path, slices: int) -> float:
    """Seconds from the start of a fresh driver process to the end of its first step."""
    began = time.time()
    subprocess.run(
        [
            *(sys.executable, "-m", "tests.bench.bench_start_up", "--drive"),
            *(who, address, json.dumps(config), str(root), str(slices)),
        ],
        check=True,
        timeout=300,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL,
    )
    return next(note["time"] for note in notes(Path(config["notes"])) if note["name"] == "step") - began


def measure(kind: str, pairs: int, slices: int) -> dict[str, Any]:
    """Interleaved pairs on one set of slices; warm runs are preceded by one uncounted pair."""
    from raytpu import Slices, simulate
    from raytpu.cluster import NodeOptions

    options = NodeOptions(warm=WARM_MODULES) if kind == "warm" else NodeOptions()
    seconds: dict[str, list[float]] = {"stock": [], "raytpu": []}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for pair in range(-1 if kind == "warm" else 0, pairs):
            for who in ("stock", "raytpu"):
                # New slices for each: warm processes are used up by the run that takes them.
                with simulate([Slices(**SLICE, count=slices)], options=options) as cluster:
                    cache = root / (f"cache-{who}" if kind == "warm" else f"cache-{who}-{pair}")
                    config = CONFIG | {
                        "steps": 2,
                        "notes": str(root / f"{who}-{pair}.jsonl"),
                        "replicas": slices,
                        "cache": str(cache),
                    }
                    if kind == "warm":
                        time.sleep(WARM_UP_S)
                    took = first_step_s(who, cluster.address, config, root, slices)
                print(f"{kind} pair {pair}: {who} {took:.1f} s", file=sys.stderr)
                if pair >= 0:
                    seconds[who].append(took)
    stock, ours = (statistics.median(seconds[who]) for who in ("stock", "raytpu"))
    return {
        "bench": f"start_up {kind}, {4 * slices} hosts (simulated slices)",
        "stock_s": round(stock, 2),
        "raytpu_s": round(ours, 2),
        "ratio": round(ours / stock, 3),
        "goal": GOALS[kind],
    }


WARM_MODULES = ("jax", "flax.nnx", "optax", "raytpu.train.ray_train_seam")
WARM_UP_S = 15.0
"""For four processes to import JAX on two cores, before the clock starts."""


def main() -> None:
    """Print one JSON object for each kind."""
    if sys.argv[1:2] == ["--drive"]:
        who, address, config, root, slices = sys.argv[2:]
        drive = {"stock": drive_stock, "raytpu": drive_raytpu}[who]
        drive(address, json.loads(config), root, int(slices))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--slices", type=int, default=1, help="slices of four hosts each")
    parser.add_argument("--kind", choices=("cold", "warm"), default=None)
    arguments = parser.parse_args()
    for kind in [arguments.kind] if arguments.kind else ["cold", "warm"]:
        print(json.dumps(measure(kind, arguments.pairs, arguments.slices)), flush=True)


if __name__ == "__main__":
    main()
