"""From the SIGKILL of a host to the next finished step of the run: stock JaxTrainer against raytpu.

The same train function on two of three simulated slices of two hosts, all on this machine. *warm*: a spare
slice is held, and standby processes wait on every host (``recovery``'s ``spares: 1``). *cold*: neither; the
third slice is idle. Stock begins anew from step 1, which costs it no restore. Goals: 15 s warm, 30 s cold.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.train import RunConfig

from raytpu import Checkpoint, JaxTrainer, Mesh, Recovery, Slices, read_events, simulate
from raytpu.record import PhaseTimed, StateChanged
from tests.bench.programs import notes
from tests.leftover_processes import find_leftovers, mark_this_session
from tests.waiting import await_true

SLICES = Slices(generation="v4", topology="2x2x2", count=2)
HOSTS = 4
GOALS_S = {"warm": 15.0, "cold": 30.0}
RECOVERY = {"warm": Recovery(spares=1), "cold": Recovery(standby=False)}
ENOUGH_STEPS = 20
"""Finished before the kill, and after it before the run is ended."""


def _train(config: Mapping[str, Any], mesh: Any, jit: Any, state_of: Any, report: Any) -> None:
    """Small steps on all devices; process 0 notes when each was done."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    first, state = state_of(jit(lambda: jnp.ones((1024, 64)), out_shardings=sharding)())
    step = jit(lambda x: (x - 0.1 * x / jnp.linalg.norm(x), jnp.sum(x**2)), donate_argnums=0)
    for number in itertools.count(first + 1):
        state, loss = step(state)
        value = float(loss)
        if jax.process_index() == 0:
            with Path(config["notes"]).open("a") as file:
                file.write(json.dumps({"name": "step", "step": number, "time": time.time()}) + "\n")
        report(number, {"loss": value}, state)
        time.sleep(0.1)
        if Path(config["stop"]).exists() and number % 10 == 0 and config["ends"]:
            return


def raytpu_loop(context: Any, config: dict[str, Any]) -> None:
    def state_of(state: Any) -> tuple[int, Any]:
        restored = context.restore(state)
        return context.start_step, restored

    _train(config, context.mesh, context.jit, state_of, context.report)


def stock_loop(config: dict[str, Any]) -> None:
    import jax

    mesh = jax.make_mesh((jax.device_count(),), ("fsdp",))
    _train(config, mesh, jax.jit, lambda state: (0, state), lambda *_: None)


def fit_stock(config: dict[str, Any], root: Path) -> None:
    """Stock Ray, told to try again."""
    from ray.train import FailureConfig, ScalingConfig
    from ray.train.v2.jax import JaxTrainer as StockTrainer

    StockTrainer(
        stock_loop,
        train_loop_config=config,
        scaling_config=ScalingConfig(
            use_tpu=True,
            topology=SLICES.topology,
            accelerator_type="TPU-V4",
            num_workers=HOSTS,
            resources_per_worker={"TPU": 4},
        ),
        run_config=RunConfig(
            name="stock", storage_path=str(root), failure_config=FailureConfig(max_failures=5)
        ),
    ).fit()


def raytpu_trainer(kind: str, config: dict[str, Any], root: Path) -> JaxTrainer:
    return JaxTrainer(
        raytpu_loop,
        train_loop_config=config,
        slices=SLICES,
        mesh=Mesh(dcn={"replica": 2}, ici={"fsdp": 8}),
        checkpoint=Checkpoint(path=str(root), every_steps=10),
        run_config=RunConfig(name=kind),
        recovery=RECOVERY[kind],
        compile_cache=str(root / "cache"),
        python_path=(str(Path(__file__).parents[2]),),
    )


def recovery_s(who: str, root: Path) -> tuple[float, dict[str, float]]:
    """Seconds from the kill to the next finished step, and to each event that the record has of the way."""
    config = {"notes": str(root / "notes.jsonl"), "stop": str(root / "stop"), "ends": True}
    killed: list[float] = []

    def done() -> int:
        return len(notes(Path(config["notes"]))) if Path(config["notes"]).exists() else 0

    def break_one() -> None:
        await_true("the run to train", lambda: done() >= ENOUGH_STEPS, 180)
        if who == "warm":
            await_true("standby processes", lambda: len(_host_processes()) >= HOSTS + 6, 60)
            time.sleep(STANDBY_IMPORTS_S)
        killed.append(time.time())
        cluster.lose_host(_slice_to_break(), 1)
        before = done()
        await_true("steps after the kill", lambda: done() >= before + ENOUGH_STEPS, 300)
        Path(config["stop"]).touch()

    with simulate([SLICES.model_copy(update={"count": 3})]) as cluster:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        try:
            thread = threading.Thread(target=break_one)
            thread.start()
            if who == "stock":
                fit_stock(config, root)
                seen: dict[str, float] = {}
            else:
                trainer = raytpu_trainer(who, config, root)
                trainer.fit()
                seen = _way(trainer, killed[0])
            thread.join()
        finally:
            ray.shutdown()
    times = [note["time"] for note in notes(Path(config["notes"]))]
    after = [(end - begin, end) for begin, end in itertools.pairwise(times) if end > killed[0]]
    return max(after)[1] - killed[0], seen


STANDBY_IMPORTS_S = 20.0
"""For six processes of the lowest priority to import JAX on two cores beside a run."""


def _host_processes() -> list[Any]:
    return [each for each in find_leftovers() if "ray::HostWorker" in " ".join(each.cmdline()[:1])]


def _slice_to_break() -> str:
    """One that is in use, and not that of process 0, whose notes are read: the last with a busy chip."""
    from raytpu.gang import ray_inventory

    states = ray_inventory().slices
    busy = [state.name for state in states if any(host.chips_free < host.chips for host in state.hosts)]
    return "slice-1" if "slice-1" in busy else busy[-1]


def _way(trainer: JaxTrainer, since_s: float) -> dict[str, float]:
    """When, after the kill, the driver changed its state and phases ended."""
    found: dict[str, float] = {}
    for each in read_events(trainer.directory):
        if each.time_s > since_s and isinstance(each.event, StateChanged | PhaseTimed):
            name = each.event.state if isinstance(each.event, StateChanged) else each.event.name
            found[f"{each.writer.partition('/')[0]}: {name}"] = round(each.time_s - since_s, 2)
    return found


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--who", nargs="*", default=["warm", "cold", "stock"])
    arguments = parser.parse_args()
    mark_this_session()
    result: dict[str, Any] = {"bench": "host SIGKILL to the next step, 2 of 3 slices of 2 hosts (simulated)"}
    for who in arguments.who:
        with tempfile.TemporaryDirectory() as folder:
            seconds, way = recovery_s(who, Path(folder))
        result[f"{who}_s"] = round(seconds, 2)
        for name, at_s in way.items():
            print(f"{who}: {at_s:6.2f} s {name}", file=sys.stderr)
    result["goals_s"] = GOALS_S
    result["load_1min"] = round(os.getloadavg()[0], 1)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
