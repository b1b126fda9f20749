"""What a cluster has now."""

from __future__ import annotations

from collections.abc import Mapping

from raytpu.launch.connect import connected
from raytpu.plan import Inventory


def live_inventory(on: str, *, home: str, environment: Mapping[str, str]) -> Inventory:
    """The slices of the running cluster that ``on`` means, with whoever holds them.

    Raises:
        WrongRequest: no such cluster.
        Refused: it or its book of slices does not answer.
    """
    with connected(on, None, home=home, environment=environment):
        from raytpu.launch.slices import look

        return look().view.inventory
