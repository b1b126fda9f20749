"""Step time under raytpu against the same program started by hand, without Ray, in interleaved pairs.

Goal: at most 1.05 times. Simulated slices: 2 slices of 2 hosts of 4 chips, all on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.programs import CONFIG, raytpu_loop, step_seconds

GOAL = 1.05


def run_by_hand(notes: Path, steps: int) -> list[float]:
    """Four plain processes on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = CONFIG | {"steps": steps, "notes": str(notes), "replicas": 2}
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "BENCH_CONFIG": json.dumps(config),
        "BENCH_COORDINATOR": f"127.0.0.1:{port}",
        "BENCH_PROCESSES": "4",
        "BENCH_DEVICES": "4",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.bench.programs"],
            env=environment | {"BENCH_PROCESS": str(index)},
            stderr=subprocess.DEVNULL,
        )
        for index in range(4)
    ]
    for process in processes:
        if process.wait(timeout=300) != 0:
            raise SystemExit(f"by hand: a process ended with {process.returncode}")
    return step_seconds(notes)


def run_on_raytpu(notes: Path, root: Path, steps: int) -> list[float]:
    """The same on the slices that this process is connected to."""
    from ray.train import RunConfig

    from raytpu import JaxTrainer, Mesh, Slices

    JaxTrainer(
        raytpu_loop,
        train_loop_config=CONFIG | {"steps": steps, "notes": str(notes)},
        slices=Slices(generation="v6e", topology="2x4", chips_per_host=4, count=2),
        mesh=Mesh(dcn={"replica": 2}, ici={"fsdp": 8}),
        run_config=RunConfig(name=notes.stem, storage_path=str(root)),
        python_path=(str(Path(__file__).parents[2]),),
    ).fit()
    return step_seconds(notes)


def main() -> None:
    """Print one JSON object with medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()

    import ray

    from raytpu import Slices, simulate

    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for pair in range(arguments.pairs):
            # The slices are down while the program runs by hand: idle raylets cost a few percent of a core,
            # and what is compared is a machine with Ray against one without.
            hand = run_by_hand(root / f"hand-{pair}.jsonl", arguments.steps)
            with simulate(Slices(generation="v6e", topology="2x4", chips_per_host=4, count=2)) as cluster:
                ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
                ours = run_on_raytpu(root / f"raytpu-{pair}.jsonl", root / "runs", arguments.steps)
                ray.shutdown()
            pairs.append((statistics.median(hand), statistics.median(ours)))
            print(f"pair {pair}: by hand {pairs[-1][0]:.4f} s, raytpu {pairs[-1][1]:.4f} s", file=sys.stderr)
    ratio = statistics.median(ours / hand for hand, ours in pairs)
    print(
        json.dumps(
            {
                "bench": "step_time (simulated slices)",
                "by_hand_s": statistics.median(hand for hand, _ in pairs),
                "raytpu_s": statistics.median(ours for _, ours in pairs),
                "ratio": round(ratio, 3),
                "goal": GOAL,
            }
        )
    )


if __name__ == "__main__":
    main()
