"""The step of a train function is taken without running it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from raytpu.errors import EntrypointError
from raytpu.plan import plan_mesh
from raytpu.recipes.pretrain import train as pretrain
from raytpu.spec import Mesh as MeshSpec
from raytpu.spec import Slices
from raytpu.train.step_capture import capture_step

CONFIG = {"model": "gpt-nano", "steps": 3, "global_batch": 8, "sequence_length": 16, "seed": 0}
SLICES = Slices(generation="v6e", topology="2x4", chips_per_host=8)
PLAN = plan_mesh(MeshSpec(ici={"replica": 2, "fsdp": 4}), SLICES)


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("replica", "fsdp"))


def test_the_recipes_step_is_taken_with_its_shardings_and_compiles():
    """Whoever checks a step for the real compiler must check the one that would run."""
    step = capture_step(pretrain, CONFIG, mesh=mesh(), plan=PLAN, streams=("train",))
    assert step.name == "train_step"
    state, batch = step.arguments
    assert batch["tokens"].shape == (8, 16)
    assert batch["tokens"].sharding.spec == PartitionSpec(("replica", "fsdp"))
    assert all(leaf.sharding is not None for leaf in jax.tree.leaves(state))
    assert step.lower().compile().cost_analysis()["flops"] > 0


def looks_inside(context: Any) -> None:
    total = context.jit(lambda batch: batch["tokens"].sum())(next(context.batches()))
    if total > 3:
        context.report(1, {"total": total})


def reports_nothing(context: Any) -> None:
    next(context.batches())


@pytest.mark.parametrize("function", [looks_inside, reports_nothing])
def test_a_function_that_cannot_be_taken_apart_says_why(function: Any):
    """A wrong step would be checked in silence."""
    with pytest.raises(EntrypointError):
        capture_step(function, CONFIG, mesh=mesh(), plan=PLAN, streams=("train",))
