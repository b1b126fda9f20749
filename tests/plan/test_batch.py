from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest

from raytpu.errors import SpecError
from raytpu.plan import (
    BatchPlan,
    GangPlan,
    Inventory,
    RowSpan,
    imagined_inventory,
    plan_batch,
    plan_gang,
    plan_mesh,
)
from raytpu.spec import Mesh
from tests.plan.builders import host, mesh, slice_state, slices


def gang(count: int, *, simulated: bool = True) -> GangPlan:
    if simulated:
        return plan_gang(slices(count), imagined_inventory(slices(count)))
    return plan_gang(slices(count), Inventory(slices=tuple(slice_state(f"s{n}") for n in range(count))))


def batch(rows: int, axes: Mesh, count: int = 1, *, simulated: bool = True) -> BatchPlan:
    return plan_batch(rows, plan_mesh(axes, slices(count)), gang(count, simulated=simulated))


def rows(*spans: tuple[int, int]) -> tuple[RowSpan, ...]:
    return tuple(RowSpan(first=first, last=last) for first, last in spans)


LAYOUTS = {
    "all devices divide": (
        mesh({"fsdp": 8}, {"replica": 2}),
        [rows((0, 7)), rows((8, 15)), rows((16, 23)), rows((24, 31))],
    ),
    "a tensor axis inside a host": (
        mesh({"fsdp": 2, "tensor": 4}, {"replica": 2}),
        [rows((0, 7)), rows((8, 15)), rows((16, 23)), rows((24, 31))],
    ),
    "a tensor axis over the hosts: both feed the same rows": (
        mesh({"tensor": 8}, {"replica": 2}),
        [rows((0, 15)), rows((0, 15)), rows((16, 31)), rows((16, 31))],
    ),
    "an outer tensor axis: hosts differ in tensor only": (
        mesh({"tensor": 2, "fsdp": 4}, {"replica": 2}),
        [rows((0, 15)), rows((0, 15)), rows((16, 31)), rows((16, 31))],
    ),
    "one axis in both places: the slice is the outer part": (
        mesh({"fsdp": 8}, {"fsdp": 2}),
        [rows((0, 7)), rows((8, 15)), rows((16, 23)), rows((24, 31))],
    ),
    "tensor between slices: both slices feed all rows": (
        mesh({"fsdp": 8}, {"tensor": 2}),
        [rows((0, 15)), rows((16, 31)), rows((0, 15)), rows((16, 31))],
    ),
    "batch axes in another order than the mesh: rows of a host are scattered": (
        mesh({"fsdp": 8}, {"replica": 2}, batch_axes=("fsdp", "replica")),
        [
            rows((0, 1), (4, 5), (8, 9), (12, 13)),
            rows((16, 17), (20, 21), (24, 25), (28, 29)),
            rows((2, 3), (6, 7), (10, 11), (14, 15)),
            rows((18, 19), (22, 23), (26, 27), (30, 31)),
        ],
    ),
    "nothing divides": (
        mesh({"tensor": 8}, {"model": 2}),
        [rows((0, 31))] * 4,
    ),
}


@pytest.mark.parametrize(("axes", "expected"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_each_process_feeds_the_rows_of_its_devices(axes: Mesh, expected: list[tuple[RowSpan, ...]]) -> None:
    """A wrong row on one host trains on another batch than the loss curve says."""
    plan = batch(32, axes, count=2)

    assert plan.rows_by_process == tuple(expected)
    assert plan.rows_per_process == tuple(sum(span.count for span in spans) for spans in expected)


@pytest.mark.parametrize(("axes", "expected"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_slice_needs_the_rows_of_its_processes(axes: Mesh, expected: list[tuple[RowSpan, ...]]) -> None:
    plan = batch(32, axes, count=2)

    for index, spans in enumerate(plan.rows_by_slice):
        of_slice = {row for span in spans for row in range(span.first, span.last + 1)}
        of_hosts = {
            row
            for process in expected[2 * index : 2 * index + 2]
            for span in process
            for row in range(span.first, span.last + 1)
        }
        assert of_slice == of_hosts
        assert plan.rows_per_slice == len(of_slice)


def test_on_a_part_of_a_slice_rows_follow_the_position_in_the_part() -> None:
    """Its worker ids, 1 and 3, are those of the whole slice; rows 8 to 15 would go to nobody."""
    hosts = (host(0, held_by="x"), host(1), host(2, held_by="x"), host(3))
    state = slice_state("a", topology="4x4", host_states=hosts, simulated=True)
    want = slices(sub_slice=True)

    plan = plan_batch(16, plan_mesh(None, want), plan_gang(want, Inventory(slices=(state,))))

    assert plan.rows_by_process == (rows((0, 7)), rows((8, 15)))


def test_the_arithmetic_is_stated() -> None:
    plan = batch(64, mesh({"fsdp": 4, "tensor": 2}, {"replica": 2}), count=2)

    assert (plan.shards, plan.rows_per_shard, plan.rows_per_slice) == (8, 8, 32)


def test_on_tpu_rows_of_a_host_are_not_claimed_when_the_runtime_orders_the_devices() -> None:
    """A plan that guesses the torus order feeds rows to the wrong host."""
    plan = batch(32, mesh({"fsdp": 4, "tensor": 2}), simulated=False)

    assert plan.rows_by_process is None
    assert plan.rows_per_process is None
    assert plan.rows_by_slice == (rows((0, 31)),)


def test_on_tpu_the_number_of_rows_is_known_when_no_two_devices_share_one() -> None:
    """Fully sharded data is the usual case, and its host load is the same in any device order."""
    plan = batch(32, mesh({"fsdp": 8}), simulated=False)

    assert plan.rows_by_process is None
    assert plan.rows_per_process == (16, 16)


def test_on_tpu_the_rows_are_known_when_the_slice_is_one_shard() -> None:
    plan = batch(32, mesh({"tensor": 8}, {"replica": 2}), count=2, simulated=False)

    assert plan.rows_by_process == (rows((0, 15)), rows((0, 15)), rows((16, 31)), rows((16, 31)))


@pytest.mark.parametrize(
    ("global_batch", "advice"), [(20, "16 or 24 does"), (3, "8 does"), (0, "8 does"), (-8, "8 does")]
)
def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_that_do(
    global_batch: int, advice: str
) -> None:
    """Uneven shards fail inside JAX, on every host, after the gang was started."""
    with pytest.raises(SpecError, match=f"global_batch {global_batch} does not divide .* fsdp; {advice}"):
        batch(global_batch, mesh({"fsdp": 8}))


JAX_SAYS = """
import json, sys
import jax
import numpy as np
from jax.experimental.mesh_utils import create_hybrid_device_mesh
from jax.sharding import Mesh, NamedSharding, PartitionSpec

HOSTS, LOCAL = 4, 4


class Device:  # what create_hybrid_device_mesh reads of a device: its slice is two of the hosts
    platform = device_kind = "cpu"

    def __init__(self, number):
        self.number, self.slice_index = number, number // (2 * LOCAL)


answers = []
for mesh in json.load(sys.stdin):
    shapes = [[mesh[part].get(axis, 1) for axis in mesh["axes"]] for part in ("ici", "dcn")]
    layout = create_hybrid_device_mesh(*shapes, [Device(number) for number in range(HOSTS * LOCAL)])
    devices = np.vectorize(lambda device: jax.devices()[device.number])(layout)
    spec = PartitionSpec(tuple(mesh["batch_axes"]))
    where = NamedSharding(Mesh(devices, mesh["axes"]), spec).devices_indices_map((32,))
    rows = [set() for _ in range(HOSTS)]
    for number, device in enumerate(jax.devices()):
        rows[number // LOCAL] |= set(range(32)[where[device][0]])
    answers.append([sorted(of_host) for of_host in rows])
print(json.dumps(answers))
"""


@pytest.mark.timeout(60)  # starts a Python that imports JAX
def test_the_rows_are_those_of_the_sharding_that_jax_makes() -> None:
    """The plan and the program must agree on who feeds what, or the printed plan is a story."""
    plans = [plan_mesh(axes, slices(2)) for axes, _ in LAYOUTS.values()]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "16"}
    answer = subprocess.run(
        [sys.executable, "-c", JAX_SAYS],
        input=json.dumps([asdict(plan) for plan in plans]),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr

    for (name, (_, expected)), of_jax in zip(LAYOUTS.items(), json.loads(answer.stdout), strict=True):
        planned = [[row for span in spans for row in range(span.first, span.last + 1)] for spans in expected]
        assert planned == of_jax, name
