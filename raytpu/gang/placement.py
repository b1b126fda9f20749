"""One Ray placement group for each slice of a lease: every host by name, or nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from raytpu.plan import PlannedSlice
from raytpu.plan.ledger import Lease, Request

SLICE_NAME_LABEL = "ray.io/tpu-slice-name"
WORKER_ID_LABEL = "ray.io/tpu-worker-id"
"""Set by Ray on every TPU node (``ray/_private/accelerators/tpu.py``)."""

NODE_ID_LABEL = "ray.io/node-id"
"""Set by Ray on every node. Slice and worker id would also match a lost node that Ray has not missed yet,
beside the node that took its place."""

HOST_CPUS = 1.0
"""Logical CPUs that a host process takes beside its chips; the rest stays for data tasks."""

FIRST_PATIENCE_S, PLACEMENT_PATIENCE_S = 1.0, 8.0
"""The least and the most time for Ray to place groups. On idle, live hosts it took 0.01 to 1.4 s; one that is
still pending after this long lost a race for a host, so the slices are chosen anew."""

_PART_OF_HEAD = 0.01
"""Share of the slice's head resource that a part takes. Stock Ray wants all of it, so any share keeps its
``SlicePlacementGroup`` away from a slice that is divided among leases."""

_POLL_S = 0.002


def name_of(lease: Lease | Request, slice_name: str) -> str:
    """Name of the placement group; tells a person who holds the slice, and the book what belongs to what."""
    owner = re.sub(r"[^A-Za-z0-9._-]", "-", lease.owner)
    return f"raytpu/{owner}/{lease.id}/{slice_name}"


def parts_of(group_name: str) -> tuple[str, str, str] | None:
    """Owner, lease id and slice in the name of a group of the book's; ``None`` for any other name."""
    parts = group_name.split("/")
    return (parts[1], parts[2], parts[3]) if len(parts) == 4 and parts[0] == "raytpu" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OurGroup:
    """A placement group of the book's, as Ray's table shows it."""

    group: PlacementGroup
    name: str
    owner: str
    """As it is written in a name: with dashes for what a name cannot have."""
    lease_id: str
    slice_name: str
    created: bool
    """Ray has given every host."""


def our_groups() -> tuple[OurGroup, ...]:
    """Every placement group that a book has made and that is not removed."""
    found = []
    for group_id, row in placement_group_table().items():
        parts = parts_of(row["name"])
        if parts is None or row["state"] == "REMOVED":
            continue
        owner, lease_id, slice_name = parts
        found.append(
            OurGroup(
                group=PlacementGroup(_group_id(group_id)),
                name=row["name"],
                owner=owner,
                lease_id=lease_id,
                slice_name=slice_name,
                created=row["state"] == "CREATED",
            )
        )
    return tuple(found)


def _group_id(hexadecimal: str) -> ray.PlacementGroupID:
    return ray.PlacementGroupID(bytes.fromhex(hexadecimal))


def group_of(id_bytes: bytes) -> PlacementGroup:
    """The handle of a placement group, from the id that the book sent."""
    return PlacementGroup(ray.PlacementGroupID(id_bytes))


def place(
    lease: Lease, heads: Mapping[str, str], patience_s: float, wanted: Callable[[], bool]
) -> dict[str, PlacementGroup] | None:
    """A placement group for each slice of the lease, all of them placed; ``None``, and none left, otherwise.

    Args:
        lease: what was granted.
        heads: the head resource of each slice that has one, such as ``TPU-v6e-16-head``.
        patience_s: for Ray to place all of them.
        wanted: asked about once a second whether to wait on.
    """
    groups: dict[str, PlacementGroup] = {}
    placed = False
    try:
        for planned in lease.slices:
            groups[planned.name] = _request(lease, planned, heads.get(planned.name))
        until = time.monotonic() + patience_s
        placed = all(_wait(group, until, wanted) for group in groups.values())
    finally:
        if not placed:
            remove(groups.values())
    return groups if placed else None


def patience_s(request: Request, now_s: float) -> float:
    """For Ray to place what the request gets, from now on; never beyond the deadline of the request.

    As long as it has waited so far: somebody whom Ray's view of free chips did not show yet, being up to a
    second late, costs a new request one second, and on a cluster that is slow each try gets twice the time of
    the one before.
    """
    waited_s, left_s = now_s - request.arrived_s, request.deadline_s - now_s
    return max(_POLL_S, min(max(waited_s, FIRST_PATIENCE_S), PLACEMENT_PATIENCE_S, left_s))


def _wait(group: PlacementGroup, until: float, wanted: Callable[[], bool]) -> bool:
    while not group.wait(1):  # Ray cuts off what is not a whole second
        if time.monotonic() >= until or not wanted():
            return False
    return True


def remove(groups: Iterable[PlacementGroup]) -> None:
    """Give every host back; Ray ends the processes in them. Removing twice is not an error."""
    groups = list(groups)
    if len(groups) == 1:
        remove_placement_group(groups[0])
    elif groups:
        with ThreadPoolExecutor(min(8, len(groups))) as pool:
            list(pool.map(remove_placement_group, groups))


def _request(lease: Lease, planned: PlannedSlice, head: str | None) -> PlacementGroup:
    """Ask for every host by name. Bundle ``i`` is host ``i`` of what is held.

    Worker 0 of a slice also gives the slice's head resource, which is what stock Ray's
    ``SlicePlacementGroup`` looks for: held, it keeps stock jobs away from this slice.
    """
    bundles: list[dict[str, float]] = []
    selectors: list[dict[str, str]] = []
    share = 1.0 if planned.whole else _PART_OF_HEAD
    for process in planned.processes:
        bundle = {"CPU": HOST_CPUS, "TPU": float(process.chips)}
        if head is not None and process.worker_id == 0:
            bundle[head] = share
        bundles.append(bundle)
        selectors.append({NODE_ID_LABEL: process.node_id})
    if head is not None and all(process.worker_id != 0 for process in planned.processes):
        bundles.append({head: share})
        selectors.append({SLICE_NAME_LABEL: planned.name, WORKER_ID_LABEL: "0"})
    return placement_group(
        bundles,
        strategy="STRICT_SPREAD",
        name=name_of(lease, planned.name),
        lifetime="detached",
        bundle_label_selector=selectors,
    )
