"""Slices that the cluster does not have yet, asked of Ray's autoscaler.

Ray's autoscaler (v2, and the KubeRay one) brings up nodes for placement groups that wait. A node group of
TPU hosts offers the head resource of its slices, ``TPU-<pod type>-head``, once a slice; KubeRay derives it
from the GKE node selectors and adds a whole slice (one replica of ``numOfHosts`` pods) for it. So one waiting
group with a head is the demand for one slice. It is withdrawn as soon as the request is served, refused or
gone, and when the demand itself is placed: the slice is there, and the queue takes it by name.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from raytpu.gang import ray_internals
from raytpu.plan.ledger import Request
from raytpu.topology import SliceShape

CONFIG_AGE_S = 15.0
"""How long the autoscaler's account of what it can add is believed. It changes when a cluster is edited."""

SERVED_S = 30.0
"""After a wish was fulfilled, until it is made again: the other hosts of the slice come up in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One more slice of a shape, for a request that waits."""

    request_id: str
    owner: str
    shape: SliceShape
    number: int

    @property
    def head(self) -> str:
        return f"TPU-{self.shape.ray_pod_type}-head"


class Growth:
    """The demand that stands now, and the means to change it."""

    def __init__(self) -> None:
        self._standing: dict[Wish, PlacementGroup] = {}
        self._served: dict[Wish, float] = {}
        self._groups: tuple[ray_internals.NodeGroup, ...] = ()
        self._known_s = float("-inf")

    @property
    def standing(self) -> tuple[Wish, ...]:
        return tuple(self._standing)

    def possible(self, shape: SliceShape) -> bool:
        """Whether the autoscaler has a kind of node for slices of this shape."""
        if time.monotonic() - self._known_s > CONFIG_AGE_S:
            self._groups, self._known_s = ray_internals.node_groups(), time.monotonic()
        head = f"TPU-{shape.ray_pod_type}-head"
        return any(group.resources.get(head, 0) > 0 and group.max_count != 0 for group in self._groups)

    def want(self, wishes: Sequence[Wish]) -> None:
        """Let exactly these wishes stand, as far as the autoscaler can fulfil them."""
        wanted = {wish for wish in wishes if self.possible(wish.shape)}
        for wish, group in list(self._standing.items()):
            placed = group.wait(0.001)
            if placed:
                self._served[wish] = time.monotonic()
            if placed or wish not in wanted:
                remove_placement_group(group)
                del self._standing[wish]
        now_s = time.monotonic()
        self._served = {wish: at for wish, at in self._served.items() if now_s - at < SERVED_S}
        for wish in wanted - self._served.keys() - self._standing.keys():
            self._standing[wish] = placement_group(
                [{wish.head: 1.0, "TPU": float(wish.shape.chips_per_host)}],
                strategy="STRICT_PACK",
                name=f"raytpu/{wish.owner}/{wish.request_id}/demand-{wish.number}",
                lifetime="detached",
            )


def missing(request: Request, usable: int) -> list[Wish]:
    """The slices that a waiting request lacks, as wishes."""
    return [
        Wish(request_id=request.id, owner=request.owner, shape=request.want.shape, number=number)
        for number in range(max(0, request.want.count - usable))
    ]
