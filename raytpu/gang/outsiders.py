"""Who has chips beside raytpu: placement groups and actors of stock Ray, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from raytpu.gang import ray_internals
from raytpu.gang.placement import parts_of
from raytpu.gang.ray_internals import Taker
from raytpu.plan.inventory import Outsider
from raytpu.plan.outsiders import ChipUse

ENTRYPOINT_SHOWN = 60
"""By feel: enough to know a command again."""


def chip_uses() -> tuple[ChipUse, ...]:
    """Everything in the connected cluster that has chips, the groups of leases included."""
    return tuple(
        uses_of(ray_internals.takers(), ray_internals.entrypoints(), ended=ray_internals.ended_jobs())
    )


def uses_of(takers: Sequence[Taker], entrypoints: Mapping[str, str], ended: Set[str]) -> Iterator[ChipUse]:
    """What Ray's tables say, host by host.

    Args:
        takers: whatever has resources; those without chips are left out.
        entrypoints: what each job was started with, by its id.
        ended: ids of the jobs whose driver has ended.
    """
    for taker in takers:
        ours = parts_of(taker.name) if taker.kind == "placement group" else None
        outsider = Outsider(
            who=f"{taker.kind} {taker.name}",
            since_s=taker.since_s or None,
            fix="no lease knows it: `raytpu slices gc` ends it"
            if ours is not None
            else _fix(taker, entrypoints.get(taker.job, ""), over=taker.job in ended),
        )
        for node_id, resources in taker.resources.items():
            if resources.get("TPU", 0) > 0:
                yield ChipUse(node_id=node_id, lease_id=None if ours is None else ours[1], outsider=outsider)


def _fix(taker: Taker, entrypoint: str, *, over: bool) -> str:
    command = " ".join(entrypoint.split())
    shown = command if len(command) <= ENTRYPOINT_SHOWN else f"{command[:ENTRYPOINT_SHOWN]}…"
    job = f"job {taker.job}" + (f" ({shown})" if shown else "")
    if not taker.detached:
        return f"it ends with {job}"
    if not over:
        return f"{job} made it, and it outlives that job"
    how = "ray.util.remove_placement_group" if taker.kind == "placement group" else "ray.kill"
    return f"{job} made it and is over, so nobody may miss it: {how} ends it"
