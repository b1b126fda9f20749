"""Hold whole slices: one placement group over every host of the gang, or nothing.

Stock Ray picks "any free worker 0" and takes slices one head at a time, so two jobs can each hold half of
what both need. Here the slices are chosen first, by ``plan_gang`` on a snapshot, and then taken by name in a
single placement group: one label selector a bundle pins bundle ``i`` to the host that becomes process ``i``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from raytpu.errors import DeadlineExceeded, SpecError, Unplaceable
from raytpu.gang.release import RELEASE_S, within_s
from raytpu.plan import GangPlan, HostState, Inventory, SliceState, plan_gang
from raytpu.spec import Slices
from raytpu.topology import slice_shape

SLICE_NAME_LABEL = "ray.io/tpu-slice-name"
WORKER_ID_LABEL = "ray.io/tpu-worker-id"
"""Set by Ray on every TPU node (``ray/_private/accelerators/tpu.py``)."""

HOST_CPUS = 1.0
"""Logical CPUs that a host process takes beside its chips; the rest stays for data tasks."""

# Placing a group on idle, live hosts took 0.1 to 1.4 s; one that is still pending after this long
# lost a race for a host, so the slices are chosen anew.
PLACEMENT_PATIENCE_S = 8.0
POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGang:
    """Slices that belong to one job until ``release``. Picklable, so that a controller can be told of it."""

    plan: GangPlan
    placement_group: PlacementGroup

    def release(self) -> None:
        """Give every host back. Releasing twice is not an error.

        Bounded: when the cluster itself is gone, there is nobody left to answer, and nothing left to free.
        """
        within_s(RELEASE_S, lambda: remove_placement_group(self.placement_group))


@contextmanager
def hold_slices(
    want: Slices,
    *,
    owner: str,
    deadline_s: float,
    inventory: Callable[[], Inventory],
    waiting: Callable[[Unplaceable], None] = lambda _: None,
    alive: Callable[[], None] = lambda: None,
) -> Iterator[HeldGang]:
    """Hold ``want.count`` whole slices, all or none, and release them at the end of the block.

    Args:
        want: shape and number of slices.
        owner: name of the run; part of the placement group's name.
        deadline_s: for everything, from choosing to holding.
        inventory: takes a fresh snapshot of the cluster.
        waiting: told why nothing fits yet, each time that the reason changes.
        alive: called about twice a second while nothing fits; may raise to end the wait.

    Raises:
        Unplaceable: at once, when the slices would not fit even if every one were whole and idle; or with
            the last reasons, when they were still busy or broken at the deadline.
        DeadlineExceeded: Ray did not place the group on hosts that the inventory shows as free.
    """
    held = _hold(want, owner, time.monotonic() + deadline_s, deadline_s, inventory, waiting, alive)
    try:
        yield held
    finally:
        held.release()


def _hold(
    want: Slices,
    owner: str,
    until: float,
    deadline_s: float,
    inventory: Callable[[], Inventory],
    waiting: Callable[[Unplaceable], None],
    alive: Callable[[], None],
) -> HeldGang:
    last_reason = ""
    while True:
        alive()
        snapshot = inventory()
        try:
            plan = plan_gang(want, snapshot)
        except Unplaceable as refusal:
            plan_gang(want, _as_if_whole(snapshot))  # raises when waiting cannot help
            if time.monotonic() >= until:
                raise
            if str(refusal) != last_reason:
                last_reason = str(refusal)
                waiting(refusal)
            time.sleep(POLL_S)
            continue
        group = _request(plan, owner)
        placed = False
        try:
            patience = max(POLL_S, min(PLACEMENT_PATIENCE_S, until - time.monotonic()))
            placed = group.wait(patience)
        finally:
            if not placed:
                remove_placement_group(group)
        if placed:
            return HeldGang(plan=plan, placement_group=group)
        if time.monotonic() >= until:
            names = ", ".join(planned.name for planned in plan.slices)
            raise DeadlineExceeded(
                f"Ray to place the gang on {names}",
                deadline_s,
                late=[process.host for process in plan.processes],
                hint="another job may have taken a host; `raytpu plan FILE --on auto` shows who has what",
            )


def _request(plan: GangPlan, owner: str) -> PlacementGroup:
    """Ask for every host by name. Bundle ``i`` is process ``i`` of the plan.

    Worker 0 of each slice also takes the slice's head resource, which is what stock Ray's
    ``SlicePlacementGroup`` looks for: held, it keeps stock jobs away from this slice.
    """
    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    bundles: list[dict[str, float]] = []
    for process in plan.processes:
        bundle = {"CPU": HOST_CPUS, "TPU": float(process.chips)}
        resources = nodes.get(process.node_id, {}).get("Resources", {})
        bundle |= {name: 1.0 for name in resources if name.startswith("TPU-") and name.endswith("-head")}
        bundles.append(bundle)
    selectors = [
        {SLICE_NAME_LABEL: process.slice_name, WORKER_ID_LABEL: str(process.worker_id)}
        for process in plan.processes
    ]
    return placement_group(
        bundles,
        strategy="STRICT_SPREAD",
        name=f"raytpu/{owner}/{uuid.uuid4().hex[:8]}",
        bundle_label_selector=selectors,
    )


def _as_if_whole(snapshot: Inventory) -> Inventory:
    """The same slices with every host there and idle: what the cluster could come to, if one waits.

    A host that was just lost or replaced is seen twice or not at all until Ray notices, 13 s later when
    measured; a slice in that state is worth waiting for.
    """

    def whole(state: SliceState) -> SliceState:
        if state.generation is None or state.topology is None:
            return state
        try:
            shape = slice_shape(state.generation, state.topology, state.chips_per_host)
        except SpecError:  # labels that fit no shape: time will not mend them
            return state
        chips = shape.chips_per_host
        hosts = tuple(
            HostState(worker_id=index, node_id="", address="", alive=True, chips=chips, chips_free=chips)
            for index in range(shape.hosts)
        )
        return replace(state, held_by=None, hosts=hosts)

    return Inventory(slices=tuple(whole(state) for state in snapshot.slices))
