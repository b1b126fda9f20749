"""How long deciding about slices takes on a cluster of 10,000 hosts. Starts no cluster.

Goals, on a ready inventory of 1,250 slices of 8 hosts: ``plan_gang`` at most 20 ms, whether the request fits
or is refused with a verdict for every slice, and linear in the number of slices; the inventory changed by one
event at most 1 ms. There is nothing to compare with in stock Ray, which asks its scheduler for one head at a
time.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from raytpu import Slices
from raytpu.errors import Unplaceable
from raytpu.plan import HostState, Inventory, SliceState, plan_gang

SLICES = (625, 1250, 2500)
HOSTS_PER_SLICE = 8
ROUNDS = 25
GOAL_PLAN_MS, GOAL_CHANGE_MS = 20.0, 1.0
GOAL_SLICES = 1250

SHAPE = {"generation": "v6e", "topology": "4x8"}
REQUESTS = {
    "one slice": Slices(**SHAPE),
    "16 slices in one zone": Slices(**SHAPE, count=16, same_zone=True),
    "a part of a slice": Slices(generation="v6e", topology="2x2", sub_slice=True),
    "an alternative": Slices(generation="v6e", topology="16x16", alternatives=["8x8", "4x8"]),
    "refused, too few": Slices(**SHAPE, count=5000),
    "refused, all held": Slices(**SHAPE, count=16),
}


def snapshot(count: int, *, held: bool) -> Inventory:
    """Slices of 8 hosts in three zones: all idle, or all held and a tenth of them broken."""
    states = []
    for index in range(count):
        hosts = tuple(
            HostState(
                worker_id=worker_id,
                node_id=f"{index}-{worker_id}",
                address=f"10.{index >> 8}.{index & 255}.{worker_id}",
                alive=not (held and index % 10 == 0 and worker_id == 3),
                chips=4,
                chips_free=4,
            )
            for worker_id in range(HOSTS_PER_SLICE)
        )
        states.append(
            SliceState(
                name=f"pool-{index % 7}-slice-{index}",
                generation="v6e",
                topology="4x8",
                chips_per_host=4,
                hosts=hosts,
                zone=f"zone-{index % 3}",
                held_by=f"run {index}" if held else None,
            )
        )
    return Inventory(slices=tuple(states))


def median_ms(work: Callable[[], object]) -> float:
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        took.append(1e3 * (time.perf_counter() - began))
    return round(statistics.median(took), 3)


def planned(want: Slices, inventory: Inventory) -> None:
    try:
        plan_gang(want, inventory)
    except Unplaceable:
        return


def measure(count: int) -> dict[str, object]:
    """Milliseconds of every request, and of one event, on a cluster of ``count`` slices."""
    idle, held = snapshot(count, held=False), snapshot(count, held=True)
    plans = {
        name: median_ms(
            lambda want=want, name=name: planned(want, held if name == "refused, all held" else idle)
        )
        for name, want in REQUESTS.items()
    }
    middle = idle.slices[count // 2]
    lost = tuple(replace(host, alive=host.worker_id != 3) for host in middle.hosts)
    return {
        "bench": f"plan_gang, {count} slices of {HOSTS_PER_SLICE} hosts",
        "plan_ms": plans,
        "goal_plan_ms": GOAL_PLAN_MS if count == GOAL_SLICES else None,
        # An event as it comes in: a host is lost, and the slice is made anew.
        "change_ms": median_ms(lambda: idle.with_slice(replace(middle, hosts=lost))),
        "goal_change_ms": GOAL_CHANGE_MS if count == GOAL_SLICES else None,
        "load_before": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Print one JSON object for each size of the cluster."""
    for count in SLICES:
        print(json.dumps(measure(count)), flush=True)


if __name__ == "__main__":
    main()
