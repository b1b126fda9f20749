"""What Ray shows of the cluster at a moment: slices, and where their raylets listen."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

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
    taken_s: float
    """By the monotonic clock."""

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.taken_s

    @classmethod
    def empty(cls) -> ClusterView:
        """Nothing, seen never: older than any limit."""
        return cls(inventory=Inventory(slices=()), raylets={}, heads={}, taken_s=float("-inf"))


def look() -> ClusterView:
    """The cluster as Ray sees it now."""
    began_s = time.monotonic()
    raylets, heads = {}, {}
    for node in ray.nodes():
        if node["Alive"]:
            raylets[node["NodeID"]] = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
            slice_name = node["Labels"].get(SLICE_NAME_LABEL)
            for resource in node["Resources"]:
                if slice_name and resource.startswith("TPU-") and resource.endswith("-head"):
                    heads[slice_name] = resource
    return ClusterView(inventory=ray_inventory(), raylets=raylets, heads=heads, taken_s=began_s)
