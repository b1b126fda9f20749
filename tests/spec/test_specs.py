"""The same rules for workloads that are built in Python."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from raytpu.errors import WorkloadInvalid
from raytpu.spec import Checkpoint, Deadlines, Mesh, Slices, TextData, Train, Workload, default_mesh


def workload(**changes: Any) -> Workload:
    values: dict[str, Any] = {
        "name": "tiny",
        "slices": Slices(generation="v6e", topology="4x4"),
        "train": Train(entrypoint="my.module:train"),
        "checkpoint": Checkpoint(path="/runs", every_steps=10),
    }
    return Workload(**(values | changes))


def paths(caught: pytest.ExceptionInfo[WorkloadInvalid]) -> list[str]:
    return [problem.path for problem in caught.value.problems]


def test_python_objects_and_plain_mappings_make_the_same_workload() -> None:
    """Notebooks mix both."""
    slices = {"generation": "v6e", "topology": "4x4"}

    assert workload(slices=slices) == workload()


def test_a_wrong_value_raises_our_error_from_every_spec() -> None:
    """One ``except WorkloadInvalid`` must be enough, whoever builds the spec."""
    with pytest.raises(
        WorkloadInvalid, match=r"Slices: 1 problem\n  topology: topology '3x3' does not exist"
    ):
        Slices(generation="v6e", topology="3x3")
    with pytest.raises(WorkloadInvalid, match="keep: expected at least 1"):
        Checkpoint(path="/runs", every_steps=1, keep=0)
    with pytest.raises(WorkloadInvalid, match="heartbeats_s: unknown key; did you mean heartbeat_s"):
        Deadlines(heartbeats_s=3)  # type: ignore[call-arg]


def test_wrong_values_of_nested_mappings_are_all_reported() -> None:
    """Fails too when pydantic calls ``__init__`` of nested specs, which would report the first only."""
    with pytest.raises(WorkloadInvalid) as caught:
        workload(
            name="X",
            train={"entrypoint": 3, "mesh": {"ici": {"a": 0}}},
            checkpoint={"path": "", "every_steps": 0},
        )

    assert sorted(paths(caught)) == [
        "checkpoint.every_steps",
        "checkpoint.path",
        "name",
        "train.entrypoint",
        "train.mesh.ici.a",
    ]


def test_rules_of_the_whole_hold_for_valid_parts() -> None:
    """A mesh is right or wrong only beside its slices."""
    with pytest.raises(WorkloadInvalid) as caught:
        workload(train=Train(entrypoint="a:b", mesh=Mesh(ici={"fsdp": 8}), config={"global_batch": 7}))

    assert paths(caught) == ["train.mesh.ici", "train.config.global_batch"]


def test_specs_do_not_change_and_travel_between_processes() -> None:
    """A plan made from a spec must stay true, also on the host that gets it."""
    built = workload(data={"train": TextData(source="text", path=("a", "b"))}, train=_train_with_data())

    assert pickle.loads(pickle.dumps(built)) == built
    with pytest.raises(ValidationError):
        built.name = "other"


def _train_with_data() -> Train:
    return Train(entrypoint="a:b", config={"steps": 1, "global_batch": 16, "sequence_length": 8})


@pytest.mark.parametrize(
    ("slices", "axes"),
    [
        ({"generation": "v6e", "topology": "4x4"}, {"fsdp": 16}),
        ({"generation": "v6e", "topology": "4x4", "count": 3}, {"replica": 3, "fsdp": 16}),
        ({"generation": "v7x", "topology": "2x2x2", "count": 2}, {"replica": 2, "fsdp": 16}),
    ],
)
def test_without_a_mesh_a_slice_is_sharded_and_slices_are_replicas(
    slices: dict[str, Any], axes: dict[str, int]
) -> None:
    """The default must fit every slice that exists, two devices a chip included."""
    mesh = default_mesh(Slices(**slices))

    assert mesh.axes == axes
    assert mesh.dividing_axes == tuple(axes)


def test_an_axis_in_both_parts_has_the_product_as_its_size() -> None:
    """data over slices and inside them is one axis to the program."""
    mesh = Mesh(dcn={"data": 2}, ici={"tensor": 4, "data": 2})

    assert mesh.axes == {"data": 4, "tensor": 4}
    assert mesh.dividing_axes == ("data",)
    assert Mesh(ici={"x": 4, "y": 2}, batch_axes=("y", "x")).dividing_axes == ("y", "x")
