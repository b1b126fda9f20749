"""What the connected Ray cluster has, as an inventory of slices.

Labels and resources are those that Ray 2.60 gives TPU nodes (``ray/_private/accelerators/tpu.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import ray

from raytpu.errors import Refused
from raytpu.gang import ray_internals
from raytpu.gang.placement import HOST_CPUS
from raytpu.plan import SIMULATED_LABEL, SIMULATED_ZONE, HostState, Inventory, SliceState, natural_order
from raytpu.topology import GENERATIONS, slice_shapes

_SLICE_NAME = "ray.io/tpu-slice-name"
_WORKER_ID = "ray.io/tpu-worker-id"
_TOPOLOGY = "ray.io/tpu-topology"
_ACCELERATOR_TYPE = "ray.io/accelerator-type"
_ZONE = "ray.io/availability-zone"

_GENERATION_OF = {fact.ray_accelerator_type: fact.name for fact in GENERATIONS.values()}


def ray_inventory() -> Inventory:
    """The slices of the Ray cluster that this process is connected to.

    A host whose node died stays in its slice, as not alive, until a new node takes its place.

    Raises:
        Refused: this process is not connected to Ray.
    """
    if not ray.is_initialized():
        raise Refused("not connected to a Ray cluster; call ray.init(address=…) first")
    return inventory_of_nodes(
        ray.nodes(), ray_internals.free_resources(), ray_internals.draining_nodes().keys()
    )


def inventory_of_nodes(
    nodes: Sequence[Mapping[str, Any]],
    available: Mapping[str, Mapping[str, float]],
    draining: Set[str] = frozenset(),
) -> Inventory:
    """The inventory behind Ray's answers.

    Args:
        nodes: as ``ray.nodes()`` gives them, in that order.
        available: free resources by node id. Ray leaves out what is zero, so a node that is listed without
            ``TPU`` has none free; a node that is not listed has not reported yet and has none free either.
        draining: ids of nodes that go away.
    """
    by_slice: dict[str, list[Mapping[str, Any]]] = {}
    for node in nodes:
        name = _slice_name(node)
        if name is not None:
            by_slice.setdefault(name, []).append(node)
    slices = [
        _slice_state(name, by_slice[name], available, draining)
        for name in sorted(by_slice, key=natural_order)
    ]
    return Inventory(slices=tuple(slices))


def _slice_name(node: Mapping[str, Any]) -> str | None:
    """``None`` for a node that is no TPU host."""
    if name := node["Labels"].get(_SLICE_NAME):
        return str(name)
    if node["Alive"] and node["Resources"].get("TPU", 0) > 0:
        # Chips without a label: shown, so that the plan can say what is missing, under a name of its own.
        return f"unlabelled-{node['NodeManagerAddress']}-{node['NodeID'][:8]}"
    return None


def _slice_state(
    name: str,
    nodes: Sequence[Mapping[str, Any]],
    available: Mapping[str, Mapping[str, float]],
    draining: Set[str],
) -> SliceState:
    hosts = [_host_state(node, available, draining) for node in nodes]
    living = {host.worker_id for host in hosts if host.alive}
    # Of a worker id, the living nodes count, else the node that died last: ray.nodes() is in that order
    # for nodes of one address at least, and dead nodes differ in nothing that matters here.
    last_dead = {host.worker_id: host for host in hosts if not host.alive and host.worker_id not in living}
    kept = [host for host in hosts if host.alive] + list(last_dead.values())
    current = [node for node in nodes if node["Alive"]] or list(nodes)
    labels = current[-1]["Labels"]
    generation, topology = _GENERATION_OF.get(labels.get(_ACCELERATOR_TYPE, "")), labels.get(_TOPOLOGY)
    simulated = all(node["Labels"].get(SIMULATED_LABEL) == "true" for node in current)
    return SliceState(
        name=name,
        named=_SLICE_NAME in labels,
        generation=generation,
        topology=topology,
        chips_per_host=max(host.chips for host in kept)
        or _chips_when_all_are_dead(generation, topology, len(kept)),
        hosts=tuple(sorted(kept, key=_worker_order)),
        simulated=simulated,
        zone=labels.get(_ZONE) or (SIMULATED_ZONE if simulated else None),
    )


def _chips_when_all_are_dead(generation: str | None, topology: str | None, hosts: int) -> int:
    """Chips per host of the one shape with that many hosts; 0 when the labels and hosts do not tell.

    Dead nodes report no resources, and a slice that is wholly lost is not one of another shape.
    """
    if generation is None:
        return 0
    fitting = {
        shape.chips_per_host
        for shape in slice_shapes(generation)
        if shape.topology == topology and shape.hosts == hosts
    }
    return fitting.pop() if len(fitting) == 1 else 0


def _host_state(
    node: Mapping[str, Any], available: Mapping[str, Mapping[str, float]], draining: Set[str]
) -> HostState:
    worker_id = node["Labels"].get(_WORKER_ID, "")
    node_id, alive = node["NodeID"], bool(node["Alive"])
    free = available.get(node_id, {}) if alive else {}
    return HostState(
        worker_id=int(worker_id) if worker_id.isdecimal() else None,
        node_id=node_id,
        address=node["NodeManagerAddress"],
        alive=alive,
        chips=int(node["Resources"].get("TPU", 0)) if alive else 0,
        chips_free=int(free.get("TPU", 0.0)),
        crowded=alive and free.get("CPU", 0.0) < HOST_CPUS,
        suspect="Ray drains its node: it goes away" if alive and node_id in draining else None,
    )


def _worker_order(host: HostState) -> tuple[bool, int, str]:
    return (host.worker_id is None, host.worker_id or 0, host.node_id)
