"""How a demand for slices looks to Ray: what is asked of each node."""

from __future__ import annotations

from collections.abc import Iterator

from raytpu.gang.placement import HOST_CPUS, SLICE_NAME_LABEL, WORKER_ID_LABEL
from raytpu.plan import Inventory
from raytpu.plan.growth import Demand
from raytpu.topology import SliceShape


def in_words(demand: Demand) -> str:
    """The slices that are asked for."""
    return f"{demand.new} more {demand.shape} slice{'s' if demand.new > 1 else ''}"


def head_of(shape: SliceShape) -> str:
    """Name of the resource that Ray gives worker 0 of a slice."""
    return f"TPU-{shape.ray_pod_type}-head"


def bundles(demand: Demand, inventory: Inventory) -> Iterator[tuple[dict[str, float], dict[str, str]]]:
    """What is asked of one node each, and its labels."""
    host = {"CPU": HOST_CPUS, "TPU": float(demand.shape.chips_per_host)}
    head = {**host, head_of(demand.shape): 1.0}
    for name in demand.kept:
        state = inventory.slice(name)
        for each in state.hosts if state is not None else ():
            if each.alive and each.chips_free == each.chips:
                at = {SLICE_NAME_LABEL: name, WORKER_ID_LABEL: str(each.worker_id)}
                yield {**host, "TPU": float(each.chips)}, at
    new = {SLICE_NAME_LABEL: f"!in({','.join(sorted(demand.known))})"} if demand.known else {}
    for _ in range(demand.new):
        yield head, new
        for _ in range(demand.shape.hosts - 1):
            yield head if demand.asked else host, new
