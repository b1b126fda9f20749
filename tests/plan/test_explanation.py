from __future__ import annotations

import json
from pathlib import Path

import pytest

from raytpu.errors import Unplaceable
from raytpu.plan import (
    Inventory,
    WorkloadPlan,
    explain_plan,
    imagined_inventory,
    plan_document,
    plan_workload,
)
from tests.plan.builders import host, slice_state, workload

GOLDEN = Path(__file__).parent / "golden"


def simulated(*overrides: str) -> WorkloadPlan:
    document = workload(*overrides)
    return plan_workload(document, imagined_inventory(document.slices))


def on_tpu(*overrides: str) -> WorkloadPlan:
    names = ("pool-a", "pool-b")
    return plan_workload(workload(*overrides), Inventory(slices=tuple(slice_state(name) for name in names)))


def on_parts() -> WorkloadPlan:
    """One half of a slice whose other half is held, and a whole slice."""
    hosts = (host(0, held_by="x"), host(1), host(2, held_by="x"), host(3))
    divided = slice_state("pool-a", topology="4x4", host_states=hosts)
    inventory = Inventory(slices=(divided, slice_state("pool-b")))
    return plan_workload(workload("slices.sub_slice=true"), inventory)


CASES = {
    "tpu_parts": on_parts(),
    "simulated": simulated(),
    "tpu_tensor_axis": on_tpu("train.mesh={dcn: {fsdp: 2}, ici: {fsdp: 4, tensor: 2}}"),
    "tpu_one_slice": on_tpu("slices.count=1", "train.mesh=null"),
    "no_batch": simulated("train.config={steps: 5}", "data={}", "checkpoint.every_steps=1"),
}


@pytest.mark.parametrize(("name", "plan"), CASES.items(), ids=CASES.keys())
def test_the_explanation_reads_as_agreed(name: str, plan: WorkloadPlan) -> None:
    """It is shown before every change: what it leaves out or garbles, nobody checks."""
    assert explain_plan(plan) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_a_large_gang_is_cut_in_the_middle() -> None:
    """A thousand lines of hosts push the mesh and the batch off the screen."""
    plan = simulated(
        "slices={generation: v5p, topology: 8x8x8, count: 4}",
        "train.mesh=null",
        "train.config.global_batch=2048",
    )

    text = explain_plan(plan)

    assert "… 448 more …" in text
    assert len(text.splitlines()) < 100


def test_the_document_is_json_with_every_number_of_the_explanation() -> None:
    """A controller that reads the plan must not have to parse prose."""
    document = json.loads(json.dumps(plan_document(simulated())))

    assert document["workload"]["name"] == "stdlib-gpt"
    assert [each["name"] for each in document["slices"]] == ["slice-0", "slice-1"]
    assert document["slices"][1]["processes"][1]["process_index"] == 3
    assert document["slices"][1]["processes"][1]["host"] == "slice-1/1"
    assert document["mesh"] == {
        "axes": ["replica", "fsdp"],
        "sizes": {"replica": 2, "fsdp": 8},
        "dcn": {"replica": 2},
        "ici": {"fsdp": 8},
        "batch_axes": ["replica", "fsdp"],
    }
    assert document["batch"]["rows_by_process"] == [[[0, 7]], [[8, 15]], [[16, 23]], [[24, 31]]]
    assert document["steps"] == {
        "steps": 200,
        "sequence_length": 128,
        "tokens_per_step": 4096,
        "tokens": 819200,
    }
    assert document["checkpoint"] == {"run_path": "~/raytpu-runs/stdlib-gpt", "every_steps": 50, "keep": 3}


def test_the_document_tells_a_part_from_a_whole_slice() -> None:
    slices = plan_document(CASES["tpu_parts"])["slices"]

    assert [(each["name"], each["topology"], each["part_of"]) for each in slices] == [
        ("pool-a", "2x4", "4x4"),
        ("pool-b", "2x4", None),
    ]
    assert [each["worker_id"] for each in slices[0]["processes"]] == [1, 3]
    assert slices[0]["processes"][1]["environment"]["TPU_WORKER_ID"] == "1"


def test_the_document_tells_unknown_rows_from_none() -> None:
    """An empty list would read as: this host feeds nothing."""
    batch = plan_document(CASES["tpu_tensor_axis"])["batch"]

    assert batch["rows_by_process"] is None
    assert batch["rows_per_process"] is None
    assert batch["rows_by_slice"] == [[[0, 15]], [[16, 31]]]


def test_a_workload_that_does_not_fit_is_refused_before_anything_else() -> None:
    with pytest.raises(Unplaceable, match="the cluster has 1 such slice, 2 are wanted"):
        plan_workload(workload(), Inventory(slices=(slice_state("a"),)))


def test_a_workload_can_be_planned_around_excluded_slices() -> None:
    states = tuple(slice_state(name) for name in ("a", "b", "c"))

    plan = plan_workload(workload(), Inventory(slices=states), frozenset({"a"}))

    assert [planned.name for planned in plan.gang.slices] == ["b", "c"]


def test_replicas_are_told_and_what_a_loss_means_to_them():
    text = explain_plan(simulated("train.across_slices=replicas", "train.replicas.least=2"))
    assert "when one is lost the others go on, and wait while fewer than 2 live" in text
    assert "replica with the whole state" not in explain_plan(simulated())
