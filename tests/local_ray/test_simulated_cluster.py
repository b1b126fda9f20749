"""Simulated slices are what they claim to be, break as told, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from raytpu.cluster import (
    NodeOptions,
    SimulatedCluster,
    find,
    named_simulations,
    simulate,
    start_detached,
    stop,
)
from raytpu.cluster.process_sweep import marked_processes
from raytpu.errors import DeadlineExceeded, HostLost, Refused, WrongRequest
from raytpu.gang import ray_inventory
from raytpu.plan import plan_gang
from raytpu.spec import Slices
from tests.waiting import await_true

pytestmark = pytest.mark.local_ray

TWO_SLICES = Slices(generation="v6e", topology="2x4", chips_per_host=4, count=2)
ONE_HOST = Slices(generation="v6e", topology="1x1")

NODE_DEATH_DEADLINE_S = 40  # Ray needs about 15 s to give a killed node up


@pytest.fixture(scope="module")
def cluster() -> Iterator[SimulatedCluster]:
    """Two slices of two hosts, with this process as their driver."""
    with simulate(TWO_SLICES) as simulation:
        ray.init(address=simulation.address, log_to_driver=False, logging_level="ERROR")
        yield simulation


@ray.remote(num_cpus=0, resources={"TPU": 4})
class Resident:
    """Takes a whole host and hides a child in a session of its own."""

    def pids(self) -> list[int]:
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        return [os.getpid(), child.pid]

    def devices(self) -> dict[str, Any]:
        import jax

        return {
            "platform": jax.default_backend(),
            "count": jax.device_count(),
            "slice": os.environ["TPU_NAME"],
        }


def resident_on(slice_name: str, worker_id: int) -> Any:
    labels = {"ray.io/tpu-slice-name": slice_name, "ray.io/tpu-worker-id": str(worker_id)}
    return Resident.options(label_selector=labels).remote()


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def await_nothing_left(sim_id: str, directory: str, keeper_pid: int) -> None:
    await_true(
        "every process and file of the simulation to be gone",
        lambda: not marked_processes(f"{sim_id}/") and not os.path.exists(directory) and not runs(keeper_pid),
    )


def identity(simulation: SimulatedCluster) -> tuple[str, str, int]:
    state = simulation.state()
    return state["sim_id"], state["directory"], state["keeper_pid"]


def test_hosts_carry_what_ray_and_gke_give_tpu_hosts(cluster: SimulatedCluster):
    """Ray's own derivation knows no v6e 2x4 of two hosts: a wrong label splits a job over two slices."""
    nodes = {node["NodeID"]: node for node in ray.nodes()}

    for each in cluster.slices:
        for host in each.hosts:
            node = nodes[host.node_id]
            labels, resources = node["Labels"], node["Resources"]
            assert node["Alive"]
            assert node["NodeManagerAddress"] == host.ip
            assert labels["ray.io/tpu-slice-name"] == each.name
            assert labels["ray.io/tpu-worker-id"] == str(host.worker_id)
            assert labels["ray.io/tpu-topology"] == "2x4"
            assert labels["ray.io/tpu-pod-type"] == "v6e-8"
            assert labels["ray.io/accelerator-type"] == "TPU-V6E"
            assert labels["raytpu.dev/simulated"] == "true"
            assert resources["TPU"] == 4
            assert resources[each.name] == 1
            assert resources["accelerator_type:TPU-V6E"] == 1
            assert resources.get("TPU-v6e-8-head", 0) == (1 if host.worker_id == 0 else 0)
    assert len({host.ip for each in cluster.slices for host in each.hosts}) == 4


@pytest.mark.usefixtures("cluster")
def test_jax_sees_the_chips_of_its_host_and_only_those():
    """A mesh is planned for so many devices."""
    resident = resident_on("slice-1", 0)

    assert ray.get(resident.devices.remote(), timeout=60) == {
        "platform": "cpu",
        "count": 4,
        "slice": "slice-1",
    }
    ray.kill(resident)


@pytest.mark.usefixtures("cluster")
def test_a_busy_slice_is_not_planned_on_again():
    """Ray leaves zero-valued resources out: read wrongly, a slice in use looks idle."""
    resident = resident_on("slice-0", 1)
    ray.get(resident.pids.remote(), timeout=60)

    await_true(
        "the inventory to show the busy host",
        lambda: [host.chips_free for host in ray_inventory().slices[0].hosts] == [4, 0],
    )
    assert [each.name for each in plan_gang(one_slice(), ray_inventory()).slices] == ["slice-1"]
    ray.kill(resident)
    await_true("the host to be idle again", lambda: ray_inventory().slices[0].hosts[1].chips_free == 4)


def one_slice() -> Slices:
    return TWO_SLICES.model_copy(update={"count": 1})


def test_a_lost_host_is_gone_at_once_and_can_be_replaced(cluster: SimulatedCluster):
    """A process that outlives its host would hold the gang's collective open, and the test would lie."""
    resident = resident_on("slice-1", 1)
    pids = ray.get(resident.pids.remote(), timeout=60)
    lost = cluster.host("slice-1", 1)

    cluster.lose_host("slice-1", 1)

    assert not any(runs(pid) for pid in [*pids, lost.pid])
    assert not cluster.host("slice-1", 1).alive
    cluster.lose_host("slice-1", 1)  # twice is not an error
    with pytest.raises(Refused, match="slice-1/1 is lost"):
        cluster.freeze_host("slice-1", 1)
    await_true(
        "Ray to give the node up",
        lambda: not ray_inventory().slices[1].hosts[1].alive,
        NODE_DEATH_DEADLINE_S,
    )
    added = cluster.add_host("slice-1", 1)
    assert added.ip != lost.ip
    assert added.node_id != lost.node_id
    await_true(
        "both slices to be whole again",
        lambda: all(host.chips_free == 4 for each in ray_inventory().slices for host in each.hosts),
    )
    assert plan_gang(TWO_SLICES, ray_inventory()).processes[3].address == added.ip


def test_a_frozen_host_is_silent_until_it_is_thawed(cluster: SimulatedCluster):
    """Connections stay open: this is what a watchdog must find, and a kill is not."""
    resident = resident_on("slice-0", 0)
    pids = ray.get(resident.pids.remote(), timeout=60)

    cluster.freeze_host("slice-0", 0)

    assert {psutil.Process(pid).status() for pid in pids} == {psutil.STATUS_STOPPED}
    assert cluster.host("slice-0", 0).state == "frozen"
    with pytest.raises(ray.exceptions.GetTimeoutError):
        ray.get(resident.pids.remote(), timeout=1)
    cluster.thaw_host("slice-0", 0)
    assert ray.get(resident.pids.remote(), timeout=30)[0] == pids[0]
    ray.kill(resident)


def test_a_preempted_host_is_drained_and_then_gone(cluster: SimulatedCluster):
    """A save on notice can only be tested against a notice that Ray gives."""
    name = cluster.add_slice()
    host = cluster.host(name, 1)
    resident = resident_on(name, 1)
    ray.get(resident.pids.remote(), timeout=60)
    began = time.monotonic()

    cluster.preempt_host(name, 1, deadline_s=3)

    await_true("Ray to drain the node", lambda: host.node_id in draining_nodes(), 2.5)
    assert cluster.host(name, 1).alive
    await_true("the host to go", lambda: not cluster.host(name, 1).alive, 10)
    assert time.monotonic() - began > 3
    assert ray.get(resident_on(name, 0).pids.remote(), timeout=60)  # its neighbour lives


def draining_nodes() -> dict[str, int]:
    return ray._private.state.state.get_draining_nodes()


def test_a_host_whose_raylet_is_killed_goes_with_it(cluster: SimulatedCluster):
    """A pod ends with its raylet; a half-dead host exists nowhere else."""
    name = cluster.add_slice()
    host = cluster.host(name, 0)
    raylet = next(each for each in psutil.Process(host.pid).children() if each.name() == "raylet")

    raylet.kill()

    await_true("the host to go", lambda: not cluster.host(name, 0).alive)
    assert "raylet" in str(cluster.host(name, 0).reason)
    assert not runs(int(host.pid or 0))


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (lambda c: c.lose_host("slice-77", 0), WrongRequest, "no slice 'slice-77'; there are: slice-0"),
        (lambda c: c.lose_host("slice-0", 2), WrongRequest, "no host 2 in slice-0: its hosts are 0 to 1"),
        (lambda c: c.add_host("slice-0", 0), Refused, "slice-0/0 is up; add_host replaces a lost host"),
        (lambda c: c.preempt_host("slice-0", 0, deadline_s=-1), WrongRequest, "deadline_s is -1"),
        (lambda c: c.add_slice(TWO_SLICES), WrongRequest, "adds one slice, not 2"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_in_words(cluster: SimulatedCluster, fault, error, message):
    """A fault that silently does nothing makes a test of recovery pass for nothing."""
    with pytest.raises(error, match=message):
        fault(cluster)


def driven(simulation: SimulatedCluster, code: str) -> str:
    """What a driver of its own prints; this process drives the module's cluster."""
    connect = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')\n"
    command = [sys.executable, "-c", connect + code, simulation.address]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


SHOW_SLICES = """
import json, os
from raytpu.gang import ray_inventory

@ray.remote(num_cpus=0)
def seen():
    import jax
    return jax.device_count(), os.environ["TPU_ACCELERATOR_TYPE"]

print(json.dumps([
    [each.name, each.generation, each.simulated, each.hosts[0].chips,
     ray.get(seen.options(resources={each.name: 1}).remote())]
    for each in ray_inventory().slices
]))
"""

SHOW_WORKER = """
import os
task = ray.remote(resources={"slice-0": 1}, num_cpus=0)(lambda: ("wave" in sys.modules, os.getpid()))
print(*ray.get(task.remote()))
"""


def test_simulations_live_side_by_side_with_other_shapes(cluster: SimulatedCluster):
    """Two terminals, two simulations; v7x has two devices a chip, Ray calls v5e v5litepod."""
    shapes = [
        Slices(generation="v5e", topology="2x4", chips_per_host=8),
        Slices(generation="v7x", topology="2x2x1"),
    ]
    with simulate(shapes) as other:
        shown = driven(other, SHOW_SLICES)
        assert other.address.split(":")[0] != cluster.address.split(":")[0]
        gone = identity(other)

    assert json.loads(shown) == [
        ["slice-0", "v5e", True, 8, [8, "v5litepod-8"]],
        ["slice-1", "v7x", True, 4, [8, "v7x-8"]],
    ]
    await_nothing_left(*gone)
    assert ray.cluster_resources()["TPU"] >= 16  # the first one was not touched


OWNER = """
import json, sys, time
from raytpu.cluster import simulate
from raytpu.spec import Slices
cluster = simulate(Slices(generation="v6e", topology="1x1", count=2))
state = cluster.state()
print(json.dumps([state["sim_id"], state["directory"], state["keeper_pid"]]), flush=True)
{then}
"""


@pytest.mark.parametrize(
    ("then", "signal_number"),
    [
        ("time.sleep(600)", signal.SIGKILL),
        ("time.sleep(600)", signal.SIGTERM),
        ("time.sleep(600)", signal.SIGINT),
        ("raise SystemExit(1)", None),
    ],
    ids=["killed", "terminated", "interrupted", "ended without stop"],
)
def test_nothing_is_left_when_the_owner_ends(then: str, signal_number: int | None):
    """Eight forgotten raylets an experiment fill a laptop in an afternoon."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(then=then)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    gone = json.loads(owner.stdout.readline())
    if signal_number is not None:
        owner.send_signal(signal_number)
    owner.communicate(timeout=30)

    await_nothing_left(*gone)


def test_nothing_is_left_when_the_keeper_is_killed(tmp_path: Path):
    """The one process that clears up may die as well."""
    simulation = simulate(ONE_HOST, name="doomed", home=tmp_path)
    gone = identity(simulation)

    os.kill(gone[2], signal.SIGKILL)

    await_nothing_left(*gone)
    with pytest.raises(Refused, match="has ended"):
        _ = simulation.slices
    simulation.stop()
    assert named_simulations(tmp_path) == ()


def test_hosts_that_are_late_are_named_and_nothing_is_left():
    """A deadline without names sends the user through eight logs."""
    before = {path.name for path in Path("/tmp").glob("raytpu-*")}
    with pytest.raises(DeadlineExceeded, match="late: the head"):
        simulate(ONE_HOST, start_deadline_s=0.01)
    assert {path.name for path in Path("/tmp").glob("raytpu-*")} <= before


def test_a_node_that_cannot_start_says_why():
    """Its log is deleted with the simulation, so the message must hold the end of it."""
    with pytest.raises(HostLost, match=r"the head .* ended while starting: JSONDecodeError"):
        simulate(ONE_HOST, options=NodeOptions(environment={"RAY_OVERRIDE_RESOURCES": "{"}))


def test_a_named_simulation_outlives_its_starter_and_takes_faults_from_others(tmp_path: Path):
    """One terminal trains, another breaks."""
    with start_detached(
        Slices(generation="v6e", topology="1x1", count=2), name="mine", home=tmp_path
    ) as starter:
        gone = identity(starter)
    with pytest.raises(Refused, match="simulation 'mine' is up already"):
        start_detached(ONE_HOST, name="mine", home=tmp_path)

    with find("mine", tmp_path) as simulation:
        simulation.lose_host("slice-1", 0)
    with find("mine", tmp_path) as again:
        assert [host.state for each in again.slices for host in each.hosts] == ["up", "lost"]

    stop("mine", tmp_path)
    await_nothing_left(*gone)
    with pytest.raises(WrongRequest, match="no simulation 'mine'"):
        stop("mine", tmp_path)


def test_a_warm_host_has_a_worker_that_imported_modules_before_any_task_came():
    """What "warm" promises; the start-up benchmark rests on it."""
    with simulate(ONE_HOST, options=NodeOptions(warm=("wave",))) as simulation:
        sim_id = simulation.state()["sim_id"]
        workers: list[int] = []

        def warm() -> bool:
            workers[:] = [
                each.pid
                for each in marked_processes(f"{sim_id}/slice-0/0")
                if "ray::IDLE" in each.cmdline()[0]
            ]
            return bool(workers)

        await_true("a worker to be started before any task", warm)
        shown = driven(simulation, SHOW_WORKER)
        preloaded, pid = shown.split()

    assert preloaded == "True"
    assert int(pid) in workers
