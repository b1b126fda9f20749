"""``JaxTrainer``: a step up from Ray's, with the same loop."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.train import RunConfig, ScalingConfig

from raytpu import Checkpoint, JaxTrainer, Mesh, Replicas, Slices, hold, read_events, simulate
from raytpu.errors import RunStopped
from raytpu.record import Averaged, StepFinished
from tests.local_ray.replica_killer import trainer
from tests.local_ray.replica_loop import digests, read_notes
from tests.waiting import await_true

SLICES = Slices(generation="v6e", topology="2x4", chips_per_host=4, count=2)


@pytest.fixture(scope="module", autouse=True)
def slices() -> Iterator[None]:
    """Two slices of two hosts, and this process a driver on them."""
    with simulate(SLICES) as cluster:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield
        ray.shutdown()


def stock_loop(config: dict[str, Any]) -> list[Any]:
    """As for ``ray.train.v2.jax.JaxTrainer``: it knows nothing of raytpu."""
    import jax
    import jax.numpy as jnp

    devices = jax.device_count()
    context = ray.train.get_context()
    here = (
        context.get_world_rank(),
        jax.process_index(),
        os.environ["TPU_NAME"],
        os.environ["TPU_WORKER_ID"],
    )
    total = float(jax.jit(jnp.sum)(jnp.arange(config["count"])))
    ray.train.report({"devices": devices, "total": total})
    return [*here]


@pytest.mark.local_ray
def test_a_loop_written_for_rays_trainer_runs_unchanged(tmp_path: Path):
    """Trying raytpu must not cost a rewrite."""
    result = JaxTrainer(
        stock_loop,
        train_loop_config={"count": 5},
        scaling_config=ScalingConfig(
            use_tpu=True,
            topology="2x4",
            accelerator_type="TPU-V6E",
            num_workers=4,
            resources_per_worker={"TPU": 4},
        ),
        run_config=RunConfig(name="stock-loop", storage_path=str(tmp_path)),
    ).fit()
    assert result.error is None
    assert result.return_value == [0, 0, "slice-0", "0"]


def slow_loop(context: Any, config: dict[str, Any]) -> None:
    import time

    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    sharding = NamedSharding(context.mesh, PartitionSpec(("replica", "fsdp")))
    state = context.restore(context.jit(lambda: jnp.zeros(16), out_shardings=sharding)())
    add = context.jit(lambda state: (state + 1, state.sum()), donate_argnums=0)
    for step in range(context.start_step + 1, config["steps"] + 1):
        state, total = add(state)
        time.sleep(0.02)
        context.report(step, {"total": total}, state)


@pytest.mark.thorough
def test_a_preempted_run_saves_its_last_step_and_goes_on_from_there(tmp_path: Path):
    """Without it, everything since the last checkpoint is done again."""

    def trainer(steps: int) -> JaxTrainer:
        return JaxTrainer(
            slow_loop,
            train_loop_config={"steps": steps},
            slices=SLICES,
            mesh=Mesh(dcn={"replica": 2}, ici={"fsdp": 8}),
            checkpoint=Checkpoint(path=str(tmp_path), every_steps=100_000, keep=1),
            run_config=RunConfig(name="batch"),
        )

    first = trainer(100_000)

    def steps_done() -> int:
        return max(
            (
                each.event.step
                for each in read_events(first.directory)
                if isinstance(each.event, StepFinished)
            ),
            default=0,
        )

    def preempt() -> None:
        await_true("the run to train", lambda: steps_done() > 3, 60)
        with hold(SLICES, owner="urgent", priority=1, timeout_s=60):
            held.set()

    held = threading.Event()
    thread = threading.Thread(target=preempt)
    thread.start()
    with pytest.raises(RunStopped, match=r"its slices go to urgent; step \d+ is saved") as ending:
        first.fit()
    thread.join(60)
    assert held.is_set()
    saved = int(str(ending.value).split("step ")[1].split()[0])
    assert saved > 3

    trainer(saved + 1).fit()  # with it, the first checkpoint is deleted, which Ray Train knew of
    second = trainer(saved + 2).fit()

    assert second.metrics["total"] == 16 * (saved + 1)
    assert second.metrics["step"] == saved + 2
    assert second.checkpoint.path.endswith(f"checkpoints/{saved + 2}"), "Ray's dashboards live on its Result"


@pytest.mark.local_ray
def test_replicas_that_average_every_few_steps_are_one_again_where_they_are_saved(tmp_path: Path):
    """Between two averages each goes its own way."""
    run = trainer(tmp_path, "diloco", steps=20, replicas=Replicas(every_steps=5), save_every=10)
    result = run.fit()

    found = digests(read_notes(tmp_path / "diloco"))
    states = {step: len(different) for (step, _), different in found.items()}
    assert states == {step: 1 if step in (10, 20) else 2 for step in range(1, 21)}
    assert (result.metrics or {})["step"] == 20
    averaged = [each.event for each in read_events(run.directory) if isinstance(each.event, Averaged)]
    assert [each.rounds for each in averaged] == [4] * 4
