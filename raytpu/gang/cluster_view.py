"""What Ray shows of the cluster at a moment: slices, and where their raylets listen."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ray

from raytpu.gang.placement import SLICE_NAME_LABEL
from raytpu.gang.ray_inventory import ray_inventory
from raytpu.plan import Inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """A snapshot."""

    inventory: Inventory
    raylets: Mapping[str, str]
    """``ip:port`` of each raylet that Ray counts alive, by node id."""
    heads: Mapping[str, str]
    """Name of the head resource of each slice that has one alive, such as ``TPU-v6e-16-head``."""
    contested: frozenset[str]
    """Node ids of hosts that claim the same place in a slice: one is lost, and Ray has not noticed."""
    taken_s: float
    """By the monotonic clock."""

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.taken_s

    @classmethod
    def empty(cls) -> ClusterView:
        """Nothing, seen never: older than any limit."""
        return cls(
            inventory=Inventory(slices=()), raylets={}, heads={}, contested=frozenset(), taken_s=float("-inf")
        )


def raylet_addresses() -> dict[str, str]:
    """``ip:port`` of each raylet that Ray counts alive, by node id."""
    return {node["NodeID"]: _raylet(node) for node in ray.nodes() if node["Alive"]}


def _raylet(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"


def look() -> ClusterView:
    """The cluster as Ray sees it now."""
    began_s = time.monotonic()
    raylets, heads = {}, {}
    for node in ray.nodes():
        if node["Alive"]:
            raylets[node["NodeID"]] = _raylet(node)
            slice_name = node["Labels"].get(SLICE_NAME_LABEL)
            for resource in node["Resources"]:
                if slice_name and resource.startswith("TPU-") and resource.endswith("-head"):
                    heads[slice_name] = resource
    inventory = ray_inventory()
    return ClusterView(
        inventory=inventory,
        raylets=raylets,
        heads=heads,
        contested=frozenset(_contested(inventory)),
        taken_s=began_s,
    )


def _contested(inventory: Inventory) -> Iterator[str]:
    for state in inventory.slices:
        alive = [host for host in state.hosts if host.alive]
        claims = Counter(host.worker_id for host in alive)
        yield from (host.node_id for host in alive if claims[host.worker_id] > 1)
