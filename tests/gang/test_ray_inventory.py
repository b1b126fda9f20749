"""Ray's answers become slices; what Ray leaves out is not guessed."""

from __future__ import annotations

from typing import Any

import pytest

from raytpu.errors import Unplaceable
from raytpu.gang.ray_inventory import inventory_of_nodes
from raytpu.plan import plan_gang
from raytpu.spec import Slices


def node(slice_name: str | None, worker_id: int | None, number: int, **changes: Any) -> dict[str, Any]:
    """A living host of a v6e 2x4 slice as ``ray.nodes()`` shows it."""
    labels = {"ray.io/accelerator-type": "TPU-V6E", "ray.io/tpu-topology": "2x4"}
    if slice_name is not None:
        labels["ray.io/tpu-slice-name"] = slice_name
    if worker_id is not None:
        labels["ray.io/tpu-worker-id"] = str(worker_id)
    return {
        "NodeID": f"node{number:04}",
        "NodeManagerAddress": f"10.0.0.{number}",
        "Alive": True,
        "Resources": {"TPU": 4.0, "CPU": 8.0},
        "Labels": labels,
    } | changes


def whole(slice_name: str, first: int = 0) -> list[dict[str, Any]]:
    return [node(slice_name, worker_id, first + worker_id) for worker_id in range(2)]


def idle(nodes: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    return {each["NodeID"]: dict(each["Resources"]) for each in nodes}


WANT = Slices(generation="v6e", topology="2x4", chips_per_host=4)
DEAD = {"Alive": False, "Resources": {}}
HEAD = {
    "NodeID": "head",
    "NodeManagerAddress": "10.0.1.1",
    "Alive": True,
    "Resources": {"CPU": 2},
    "Labels": {},
}


def test_an_idle_slice_can_be_planned_on():
    """The way from Ray to a plan, once through."""
    nodes = [HEAD, *reversed(whole("slice-0"))]

    plan = plan_gang(
        Slices(generation="v6e", topology="2x4", chips_per_host=4), inventory_of_nodes(nodes, idle(nodes))
    )

    assert [process.address for process in plan.processes] == ["10.0.0.0", "10.0.0.1"]


def test_a_slice_with_a_host_that_goes_away_is_given_to_nobody():
    """A run that hands over would get the very slice that it leaves; another one, half a minute."""
    nodes = whole("slice-0") + whole("slice-1", 2)

    plan = plan_gang(WANT, inventory_of_nodes(nodes, idle(nodes), {"node0001"}))

    assert {process.slice_name for process in plan.processes} == {"slice-1"}
    with pytest.raises(Unplaceable, match="slice-0: host 1: Ray drains its node: it goes away"):
        plan_gang(WANT, inventory_of_nodes(nodes[:2], idle(nodes), {"node0001"}))


def test_a_host_whose_cpus_are_all_taken_is_not_idle():
    """Data tasks fill every CPU of a cluster; a gang placed there waits for them, whatever else is idle."""
    nodes = whole("slice-0") + whole("slice-1", 2)
    available = idle(nodes)
    del available["node0001"]["CPU"]

    plan = plan_gang(WANT, inventory_of_nodes(nodes, available))
    assert {process.slice_name for process in plan.processes} == {"slice-1"}
    with pytest.raises(Unplaceable, match="slice-0: host 1 has no CPU free, and a process takes one"):
        plan_gang(WANT, inventory_of_nodes(nodes[:2], available))


def test_a_node_that_is_listed_without_tpu_has_none_free():
    """Ray drops keys whose value is zero; the total as default makes a busy slice look idle."""
    nodes = whole("slice-0")
    available = {"node0000": {"CPU": 7.0}, "node0001": {"TPU": 3.0}}

    (state,) = inventory_of_nodes(nodes, available).slices

    assert [(host.chips, host.chips_free) for host in state.hosts] == [(4, 0), (4, 3)]


def test_a_node_that_has_not_reported_has_nothing_free():
    """Not known is not free."""
    (state,) = inventory_of_nodes(whole("slice-0"), {}).slices

    assert [host.chips_free for host in state.hosts] == [0, 0]


def test_slices_come_in_natural_order_with_hosts_in_worker_order():
    """slice-10 after slice-2, whatever order nodes joined in."""
    nodes = [*whole("slice-10", 4), *reversed(whole("slice-2"))]

    inventory = inventory_of_nodes(nodes, idle(nodes))

    assert [state.name for state in inventory.slices] == ["slice-2", "slice-10"]
    assert [host.worker_id for host in inventory.slices[0].hosts] == [0, 1]


def test_a_dead_host_stays_in_its_slice():
    """Left out, the slice would look like a smaller one."""
    nodes = [node("slice-0", 0, 0), node("slice-0", 1, 1, **DEAD)]

    (state,) = inventory_of_nodes(nodes, idle(nodes[:1])).slices

    assert [(host.alive, host.chips) for host in state.hosts] == [(True, 4), (False, 0)]
    assert state.chips_per_host == 4


def test_a_wholly_lost_slice_is_broken_and_not_of_another_shape():
    """The reason that a user reads must be "0 of 2 hosts alive", not "wrong chips per host: 0"."""
    nodes = [node("slice-0", worker_id, worker_id, **DEAD) for worker_id in range(2)]

    inventory = inventory_of_nodes(nodes, {})

    assert inventory.slices[0].chips_per_host == 4
    with pytest.raises(Unplaceable, match="slice-0: 0 of 2 hosts alive"):
        plan_gang(Slices(generation="v6e", topology="2x4", chips_per_host=4), inventory)


def test_a_replaced_host_is_the_living_one():
    """Ray lists the dead node for ever."""
    nodes = [*whole("slice-0"), node("slice-0", 1, 7, **DEAD), node("slice-0", 1, 8, **DEAD)]

    (state,) = inventory_of_nodes(nodes, idle(nodes[:2])).slices

    assert [(host.worker_id, host.address) for host in state.hosts] == [(0, "10.0.0.0"), (1, "10.0.0.1")]


def test_two_living_hosts_of_one_worker_id_are_both_shown():
    """A host that is dead but not yet given up looks so; the plan must see that it cannot tell."""
    nodes = [*whole("slice-0"), node("slice-0", 1, 9)]

    (state,) = inventory_of_nodes(nodes, idle(nodes)).slices

    assert [host.worker_id for host in state.hosts] == [0, 1, 1]


def test_chips_without_a_slice_name_are_shown_as_what_they_are():
    """A forgotten label must not make a machine invisible."""
    nodes = [node(None, None, 5)]

    (state,) = inventory_of_nodes(nodes, idle(nodes)).slices

    assert state.name == "unlabelled-10.0.0.5-node0005"
    assert state.hosts[0].worker_id is None


def test_rays_v5litepod_is_v5e():
    """Ray knows v5e by its API name only."""
    labels = {**node("s", 0, 0)["Labels"], "ray.io/accelerator-type": "TPU-V5LITEPOD"}
    (state,) = inventory_of_nodes([node("s", 0, 0, Labels=labels)], {}).slices

    assert state.generation == "v5e"


def test_an_unknown_accelerator_has_no_generation():
    """Nothing is guessed about hardware that is not in the table."""
    labels = {**node("s", 0, 0)["Labels"], "ray.io/accelerator-type": "TPU-V9"}
    (state,) = inventory_of_nodes([node("s", 0, 0, Labels=labels)], {}).slices

    assert state.generation is None


def test_a_slice_is_simulated_only_when_it_says_so():
    """On a TPU a plan for CPU devices would train on the host's cores."""
    labels = {**node("s", 0, 0)["Labels"], "raytpu.dev/simulated": "true"}
    nodes = [node("s", 0, 0, Labels=labels), *whole("t", 1)]

    assert [state.simulated for state in inventory_of_nodes(nodes, {}).slices] == [True, False]


def test_the_zone_is_the_label_of_the_hosts():
    """Without it slices of one job end up far from each other, and each step waits for the network."""
    labels = {"ray.io/availability-zone": "us-east5-b"}
    nodes = [each | {"Labels": each["Labels"] | labels} for each in whole("slice-0")] + whole("slice-1", 2)

    assert [state.zone for state in inventory_of_nodes(nodes, idle(nodes)).slices] == ["us-east5-b", None]


def test_simulated_slices_are_in_one_zone():
    """They share a machine: a workload that asks for one zone must run there as well."""
    mark = {"raytpu.dev/simulated": "true"}
    nodes = [each | {"Labels": each["Labels"] | mark} for each in whole("slice-0") + whole("slice-1", 2)]

    assert {state.zone for state in inventory_of_nodes(nodes, idle(nodes)).slices} == {"simulated"}


def test_a_host_without_a_slice_name_is_shown_and_never_planned_on():
    """Ray would be asked for a slice of the name that was made up for it, and wait for ever."""
    nodes = [node(None, 0, 0)]
    nodes[0]["Labels"] |= {"ray.io/tpu-topology": "2x2"}
    inventory = inventory_of_nodes(nodes, idle(nodes))

    with pytest.raises(Unplaceable) as caught:
        plan_gang(Slices(generation="v6e", topology="2x2"), inventory)

    [verdict] = caught.value.slices
    assert (verdict.state, verdict.why) == ("unlabelled", "its host has no label ray.io/tpu-slice-name")
    assert "TPU_NAME" in verdict.fix
