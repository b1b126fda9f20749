"""Averaging every 20 steps (DiLoCo) against averaging at every step: the loss that is reached, and the bytes.

The demo's model and corpus on two simulated slices of one host, all on this machine: the same recipe, seed,
rows and number of steps. The loss is that of documents that were held out. Goals: within 3 %, with 1/20 of
the bytes. No checkpoint is kept: one makes the inner optimizers meet, which costs three averages instead of
one, so of the bytes of a run as many are added as it is saved.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray.train import RunConfig

from raytpu import JaxTrainer, Mesh, Replicas, Slices, TextData, read_events, simulate
from raytpu.record import Averaged, Evaluated, StepFinished

EVERY = 20
GOAL_LOSS, GOAL_BYTES = 1.03, 1 / EVERY
SLICES = Slices(generation="v6e", topology="1x1", count=2)
OUTER = {"outer_learning_rate": 0.7, "outer_momentum": 0.6}
"""By trial, for a run of this length; the defaults are for longer ones."""


def trained(root: Path, name: str, steps: int, replicas: Replicas) -> dict[str, Any]:
    """Loss, bytes and step time of one run."""
    trainer = JaxTrainer(
        "raytpu.recipes.pretrain:train",
        train_loop_config={
            "model": "gpt-nano",
            "steps": steps,
            "global_batch": 32,
            "sequence_length": 128,
            "seed": 0,
            "eval_batches": 16,
            "sample_tokens": 0,
        },
        slices=SLICES,
        mesh=Mesh(dcn={"replica": 2}, ici={"fsdp": 1}),
        data={"train": TextData(source="python-stdlib", tokenizer="bytes", holdout=0.05)},
        run_config=RunConfig(name=name, storage_path=str(root)),
        across_slices="replicas",
        replicas=replicas,
    )
    trainer.fit()
    events = [each.event for each in read_events(trainer.directory)]
    losses = {each.metrics["loss"] for each in events if isinstance(each, Evaluated)}
    if len(losses) != 1:
        raise SystemExit(f"{name}: replicas end with different losses: {losses}")
    averaged = [each for each in events if isinstance(each, Averaged)]
    return {
        "loss": losses.pop(),
        "mb_a_host": statistics.mean(each.sent_bytes for each in averaged) / 1e6,
        "rounds": averaged[0].rounds,
        "step_s": statistics.median(each.seconds for each in events if isinstance(each, StepFinished)),
    }


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    kinds = {"every_step": Replicas(), "diloco": Replicas(every_steps=EVERY, **OUTER)}
    found = {}
    with tempfile.TemporaryDirectory() as folder, simulate(SLICES) as cluster:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        for name, replicas in kinds.items():
            found[name] = trained(Path(folder), name.replace("_", "-"), arguments.steps, replicas)
            print(f"{name}: {found[name]}", file=sys.stderr)
        ray.shutdown()
    result: dict[str, Any] = {
        "bench": f"DiLoCo, {EVERY} steps to an average (simulated slices)",
        "steps": arguments.steps,
        **{
            f"{fact}_{name}": round(facts[fact], 4)
            for name, facts in found.items()
            for fact in ("loss", "mb_a_host", "step_s")
        },
        "loss_ratio": round(found["diloco"]["loss"] / found["every_step"]["loss"], 4),
        "bytes_ratio": round(found["diloco"]["mb_a_host"] / found["every_step"]["mb_a_host"], 4),
        "goals": {"loss_ratio": GOAL_LOSS, "bytes_ratio": GOAL_BYTES},
        "outer": OUTER,
        "load_1min": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
