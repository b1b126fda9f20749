"""What a simulated host is told: environment, resources, and the plan's way to the keeper."""

from __future__ import annotations

import pytest

from raytpu.cluster import NodeOptions
from raytpu.cluster.simulated_cluster import slice_plan
from raytpu.cluster.simulation_plan import (
    INHERITED_PREFIXES_DROPPED,
    SimulationPlan,
    SlicePlan,
    head_plan,
    host_plan,
    plan_from_json,
    plan_to_json,
)
from raytpu.errors import WrongRequest
from raytpu.spec import Slices

SHAPES = [
    # generation, topology, chips per host → hosts, Ray's pod type, JAX devices of a host
    ("v4", "2x2x4", None, 4, "v4-32", 4),
    ("v5e", "4x4", None, 4, "v5litepod-16", 4),
    ("v5e", "2x4", 8, 1, "v5litepod-8", 8),
    ("v5p", "2x2x4", None, 4, "v5p-32", 4),
    ("v6e", "2x4", 4, 2, "v6e-8", 4),
    ("v6e", "2x4", 8, 1, "v6e-8", 8),
    ("v7x", "2x2x2", None, 2, "v7x-16", 8),
]


def simulation(options: NodeOptions | None = None, **changes: object) -> SimulationPlan:
    fields = {
        "sim_id": "00ff00ff",
        "name": None,
        "directory": "/tmp/raytpu-00ff00ff",
        "record_path": None,
        "detached": False,
        "slices": (named(Slices(generation="v6e", topology="4x4")),),
        "options": options or NodeOptions(),
    }
    return SimulationPlan(**(fields | changes))  # type: ignore[arg-type]


def named(slices: Slices, name: str = "slice-0") -> SlicePlan:
    plan = slice_plan(slices)
    return SlicePlan(**{field: getattr(plan, field) for field in plan.__slots__} | {"name": name})


def host(plan: SimulationPlan, worker_id: int = 2):
    return host_plan(
        plan, plan.slices[0], worker_id, address="127.77.1.4", serial=3, head_address="127.77.1.1:6379"
    )


@pytest.mark.parametrize(("generation", "topology", "chips", "hosts", "pod_type", "devices"), SHAPES)
def test_a_host_is_told_what_a_tpu_vm_would_be(generation, topology, chips, hosts, pod_type, devices):
    """Ray derives its labels and JAX its devices from exactly these."""
    wanted = named(Slices(generation=generation, topology=topology, chips_per_host=chips), "slice-3")
    node = host_plan(
        simulation(slices=(wanted,)),
        wanted,
        hosts - 1,
        address="127.77.1.9",
        serial=1,
        head_address="127.77.1.1:6379",
    )

    assert wanted.hosts == hosts
    assert node.environment["TPU_NAME"] == "slice-3"
    assert node.environment["TPU_WORKER_ID"] == str(hosts - 1)
    assert node.environment["TPU_TOPOLOGY"] == topology
    assert node.environment["TPU_ACCELERATOR_TYPE"] == pod_type
    assert f"--xla_force_host_platform_device_count={devices}" in node.environment["XLA_FLAGS"].split()
    assert node.environment["JAX_PLATFORMS"] == "cpu"
    assert node.environment["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] == "gloo"
    assert node.resources == {"TPU": wanted.chips_per_host}


def test_the_head_has_no_chips_and_no_slice():
    """A job placed on the head would find no peers there."""
    node = head_plan(simulation(), "127.77.1.1")

    assert node.resources == {}
    assert not any(name.startswith("TPU_") for name in node.environment)


def test_every_node_carries_a_marker_of_its_own():
    """A process is found, and killed with its host, by this marker alone."""
    plan = simulation()

    assert host(plan, 2).environment["RAYTPU_SIM_HOST"] == "00ff00ff/slice-0/2" == host(plan, 2).marker
    assert head_plan(plan, "127.77.1.1").environment["RAYTPU_SIM_HOST"] == "00ff00ff/head/0"


def test_a_marker_survives_the_renaming_of_a_process():
    """Ray renames its workers, and that overwrites what the kernel shows as their environment."""
    assert host(simulation()).environment["SPT_NOENV"] == "1"


def test_warm_hosts_preload_modules_and_the_head_does_not():
    """The head runs no training process: a warm worker there is 90 MB for nothing."""
    plan = simulation(NodeOptions(warm=True))

    assert host(plan).environment["RAY_preload_python_modules"] == "jax"
    assert "RAY_preload_python_modules" not in head_plan(plan, "127.77.1.1").environment


def test_the_owner_can_set_variables_of_the_nodes():
    """Everything of Ray's in the owner's own environment is dropped, so there must be a way."""
    plan = simulation(NodeOptions(environment={"RAY_health_check_period_ms": "1000"}))

    assert host(plan).environment["RAY_health_check_period_ms"] == "1000"
    assert "RAY_health_check_period_ms".startswith(INHERITED_PREFIXES_DROPPED)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host_cpus": 0}, "host_cpus is 0; expected 1 or more"),
        ({"object_store_bytes": 1000}, "object_store_bytes is 1000; expected 78643200 or more"),
        ({"environment": {"TPU_NAME": "mine"}}, "environment sets TPU_NAME"),
        ({"host_cpus": 0, "head_cpus": -1}, "head_cpus is -1.*host_cpus is 0"),
    ],
)
def test_impossible_nodes_are_refused_before_anything_starts(options, message):
    """Ray would say so half a minute later, in a log file of each host."""
    with pytest.raises(WrongRequest, match=message):
        NodeOptions(**options)


@pytest.mark.parametrize("warm", [(), True, ("jax", "flax.nnx")])
def test_a_plan_arrives_at_the_keeper_as_it_was_sent(warm):
    """The keeper is another process; a field lost on the way is a setting ignored."""
    plan = simulation(NodeOptions(warm=warm, dashboard=True, environment={"A": "1"}), name="x", detached=True)

    assert plan_from_json(plan_to_json(plan)) == plan
