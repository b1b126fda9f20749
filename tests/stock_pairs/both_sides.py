"""The same request to stock Ray and to raytpu: whole slices within a deadline, held for a ``with`` block."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.tpu import slice_placement_group

import raytpu
from raytpu import Slices
from raytpu.errors import Unplaceable

HOSTS_PER_SLICE = 2
CHIPS_PER_HOST = 4

Place = tuple[str, int]
"""A host: slice and worker id."""


ROUNDED_S = 1.0
"""Ray waits for placement groups in whole seconds, so a deadline may be passed by as much."""


class NotPlaced(Exception):
    """The slices were not held within the deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Placement groups that Ray calls placed."""

    groups: tuple[PlacementGroup, ...]
    seconds: float
    """From the request until all were placed."""

    def places(self) -> list[Place]:
        """The host of each bundle, sorted."""
        host_of = {
            node["NodeID"]: (
                node["Labels"]["ray.io/tpu-slice-name"],
                int(node["Labels"]["ray.io/tpu-worker-id"]),
            )
            for node in ray.nodes()
            if "ray.io/tpu-slice-name" in node["Labels"]
        }
        tables = [placement_group_table(group) for group in self.groups]
        assert all(table["state"] == "CREATED" for table in tables)
        return sorted(host_of[node] for table in tables for node in table["bundles_to_node_id"].values())


Side = Callable[..., AbstractContextManager[Held]]
"""``side(count, owner=..., deadline_s=...)``; raises :class:`NotPlaced`."""


def slices(count: int) -> Slices:
    """Slices of two hosts, the smallest that can be half free, half dead or straddled."""
    return Slices(generation="v6e", topology="2x4", chips_per_host=CHIPS_PER_HOST, count=count)


def hosts_of(*slice_names: str) -> list[Place]:
    """Every host of whole slices."""
    return [(name, worker_id) for name in sorted(slice_names) for worker_id in range(HOSTS_PER_SLICE)]


def in_time(began: float, deadline_s: float, groups: tuple[PlacementGroup, ...]) -> Held:
    """What is held now, unless it came too late."""
    seconds = time.monotonic() - began
    if seconds > deadline_s + ROUNDED_S:
        raise NotPlaced(f"placed after {seconds:.1f} s")
    return Held(groups=groups, seconds=seconds)


@contextmanager
def on_stock(count: int, *, owner: str, deadline_s: float) -> Iterator[Held]:
    """``ray.util.tpu.slice_placement_group``, as its documentation uses it."""
    began = time.monotonic()
    try:
        reserved = slice_placement_group(
            "2x4",
            "v6e",
            num_slices=count,
            chips_per_vm=CHIPS_PER_HOST,  # else two free hosts of different slices would do
            head_reservation_timeout_s=deadline_s,
            name=owner,
        )
    except TimeoutError as error:
        raise NotPlaced("no head of a slice was free in time") from error
    try:
        group = reserved.slice_placement_group
        left_s = max(0.1, began + deadline_s - time.monotonic())
        if not group.wait(math.ceil(left_s)):  # else Ray cuts off what is not a whole one
            chosen = sorted({each["ray.io/tpu-slice-name"] for each in reserved.bundle_label_selector})
            raise NotPlaced(f"not all hosts of {', '.join(chosen)} were free in time")
        yield in_time(began, deadline_s, (group,))
    finally:
        reserved.shutdown()


@contextmanager
def on_raytpu(count: int, *, owner: str, deadline_s: float) -> Iterator[Held]:
    """``raytpu.hold``."""
    began = time.monotonic()
    try:
        lease = raytpu.hold(slices(count), owner=owner, timeout_s=deadline_s)
    except Unplaceable as error:
        raise NotPlaced(str(error)) from error
    with lease:
        yield in_time(began, deadline_s, tuple(each.placement_group for each in lease.slices))


def in_turn(round_number: int) -> Sequence[Side]:
    """Both sides, each first in every second round."""
    return (on_stock, on_raytpu) if round_number % 2 == 0 else (on_raytpu, on_stock)
