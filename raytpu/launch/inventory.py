"""What a cluster has now."""

from __future__ import annotations

from collections.abc import Mapping

from raytpu.launch.connect import connected
from raytpu.plan import Inventory


def live_inventory(on: str, *, home: str, environment: Mapping[str, str]) -> Inventory:
    """A snapshot of the slices of the running cluster that ``on`` means.

    Raises:
        WrongRequest: no such cluster.
    """
    with connected(on, None, home=home, environment=environment):
        from raytpu.gang import ray_inventory

        return ray_inventory()
