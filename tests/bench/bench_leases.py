"""Holding slices: ``raytpu.hold`` against Ray's ``slice_placement_group``, in turn on one simulated cluster.

*acquire*: from the request until every host of 1, 2 or 4 slices of two hosts is placed, nothing else in the
way, after a warm-up. Goals: a median no longer than stock's, and a 99th percentile of at most twice the
median. *told*: one host of a held slice is killed (SIGKILL) or frozen (SIGSTOP); seconds until
``lease.lost`` names the slice, against seconds until ``ray.nodes()`` calls the node dead, which is all that
stock Ray has to say. Both lose a host of a slice of their own, one right after the other.
Goals: 3 s and 10 s.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raytpu import SimulatedCluster, Slices

SLICES = 4
WARM_UP = 3
"""Uncounted acquisitions of each kind: the book is started, workers are, and connections are open."""

TOLD_GOALS_S = {"killed": 3.0, "frozen": 10.0}
GIVEN_UP_S = 180.0
LOOK_S = 0.02


def wanted(count: int) -> Slices:
    """Slices of two hosts."""
    from raytpu import Slices

    return Slices(generation="v6e", topology="2x4", chips_per_host=4, count=count)


def stock_acquire_s(count: int) -> float:
    """Ray's own way. Waited for by ``wait``: its ``ready`` runs a task, which takes longer."""
    from ray.util.tpu import slice_placement_group

    began = time.perf_counter()
    reserved = slice_placement_group("2x4", "v6e", num_slices=count, chips_per_vm=4)
    if not reserved.slice_placement_group.wait(60):
        raise SystemExit(f"stock Ray did not place {count} slices within 60 s")
    taken_s = time.perf_counter() - began
    reserved.shutdown()
    return taken_s


def raytpu_acquire_s(count: int) -> float:
    """The same slices."""
    import raytpu

    began = time.perf_counter()
    with raytpu.hold(wanted(count), owner="bench", timeout_s=60):
        return time.perf_counter() - began


def await_idle(cluster: SimulatedCluster) -> None:
    """Wait until Ray lists exactly the hosts that there are, with every chip and every head free."""
    import ray

    hosts = {host.node_id for each in cluster.slices for host in each.hosts}
    until = time.monotonic() + GIVEN_UP_S
    while time.monotonic() < until:
        listed = {node["NodeID"] for node in ray.nodes() if node["Alive"] and "TPU" in node["Resources"]}
        free = ray.available_resources()
        heads = sum(amount for name, amount in free.items() if name.startswith("TPU-"))
        if listed == hosts and free.get("TPU", 0) == 4 * len(hosts) and heads == len(cluster.slices):
            return
        time.sleep(LOOK_S)
    raise SystemExit(f"the slices are not idle after {GIVEN_UP_S:g} s: {ray.available_resources()}")


def percentile(values: Iterable[float], percent: int) -> float:
    """By nearest rank: a value that was measured."""
    in_order = sorted(values)
    return in_order[math.ceil(len(in_order) * percent / 100) - 1]


def measure_acquire(cluster: SimulatedCluster, count: int, acquisitions: int) -> dict[str, Any]:
    """Stock and raytpu in turn, each first in every second round."""
    sides: dict[str, Callable[[int], float]] = {"stock": stock_acquire_s, "raytpu": raytpu_acquire_s}
    seconds: dict[str, list[float]] = {"stock": [], "raytpu": []}
    for number in range(-WARM_UP, acquisitions):
        for who in sorted(sides, reverse=number % 2 == 0):
            await_idle(cluster)
            taken_s = sides[who](count)
            if number >= 0:
                seconds[who].append(taken_s)
    result: dict[str, Any] = {
        "bench": f"leases acquire, {count} slice{'s' if count > 1 else ''} of {SLICES} (simulated slices)",
        "acquisitions": acquisitions,
    }
    for who, taken in seconds.items():
        result[f"{who}_p50_s"] = round(statistics.median(taken), 4)
        result[f"{who}_p99_s"] = round(percentile(taken, 99), 4)
    ratio = statistics.median(seconds["raytpu"]) / statistics.median(seconds["stock"])
    spread = percentile(seconds["raytpu"], 99) / statistics.median(seconds["raytpu"])
    return result | {
        "ratio": round(ratio, 3),
        "goal": 1.0,
        "p99_by_p50": round(spread, 2),
        "goal_p99_by_p50": 2.0,
        "load_before": round(os.getloadavg()[0], 1),
    }


def told_once(cluster: SimulatedCluster, fault: str) -> tuple[float, float]:
    """Seconds until stock Ray and until raytpu's owner knew of a host that each lost."""
    import ray
    from ray.util.tpu import slice_placement_group

    import raytpu

    reserved = slice_placement_group("2x4", "v6e", chips_per_vm=4)
    if not reserved.slice_placement_group.wait(60):
        raise SystemExit("stock Ray did not place a slice within 60 s")
    stock_slice = reserved.bundle_label_selector[0]["ray.io/tpu-slice-name"]
    stock_node = cluster.host(stock_slice, 1).node_id
    with raytpu.hold(wanted(1), owner="bench", timeout_s=60) as lease:
        ours = lease.slices[0].name
        inject = cluster.lose_host if fault == "killed" else cluster.freeze_host
        stock_s = raytpu_s = None
        stock_began = time.monotonic()
        inject(stock_slice, 1)
        began = time.monotonic()
        fault_thread = threading.Thread(target=inject, args=(ours, 1))
        fault_thread.start()
        while (stock_s is None or raytpu_s is None) and time.monotonic() < began + GIVEN_UP_S:
            if raytpu_s is None and ours in lease.lost:
                raytpu_s = time.monotonic() - began
            if stock_s is None and stock_node not in {n["NodeID"] for n in ray.nodes() if n["Alive"]}:
                stock_s = time.monotonic() - stock_began
            time.sleep(LOOK_S)
        fault_thread.join()
    reserved.shutdown()
    for name in (stock_slice, ours):
        cluster.lose_host(name, 1)
        cluster.add_host(name, 1)
    if stock_s is None or raytpu_s is None:
        raise SystemExit(f"{fault}: not told within {GIVEN_UP_S:g} s (stock {stock_s}, raytpu {raytpu_s})")
    return stock_s, raytpu_s


def measure_told(cluster: SimulatedCluster, fault: str, rounds: int) -> dict[str, Any]:
    """Several rounds on slices that are whole again before each."""
    seconds = []
    for number in range(rounds):
        await_idle(cluster)
        seconds.append(told_once(cluster, fault))
        stock_s, raytpu_s = seconds[-1]
        print(f"{fault} {number + 1}: stock {stock_s:.2f} s, raytpu {raytpu_s:.2f} s", file=sys.stderr)
    stock, ours = ([pair[side] for pair in seconds] for side in (0, 1))
    return {
        "bench": f"leases told, host {fault} (simulated slices)",
        "rounds": rounds,
        "stock_s": round(statistics.median(stock), 2),
        "stock_slowest_s": round(max(stock), 2),
        "raytpu_s": round(statistics.median(ours), 2),
        "raytpu_slowest_s": round(max(ours), 2),
        "goal_s": TOLD_GOALS_S[fault],
        "load_before": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Print one JSON object for each number of slices and each fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--acquisitions", type=int, default=100, help="of each number of slices, each side")
    parser.add_argument("--killed", type=int, default=5, help="rounds with a killed host")
    parser.add_argument("--frozen", type=int, default=3, help="rounds with a frozen host, over a minute each")
    arguments = parser.parse_args()

    import ray

    from raytpu import simulate

    results = sys.stdout
    # Ray prints to standard output, from a thread of its own, that the killed nodes are dead.
    with contextlib.redirect_stdout(sys.stderr), simulate(wanted(SLICES)) as cluster:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        for count in (1, 2, 4) if arguments.acquisitions else ():
            result = measure_acquire(cluster, count, arguments.acquisitions)
            print(json.dumps(result), file=results, flush=True)
        for fault, rounds in (("killed", arguments.killed), ("frozen", arguments.frozen)):
            if rounds:
                print(json.dumps(measure_told(cluster, fault, rounds)), file=results, flush=True)
        ray.shutdown()


if __name__ == "__main__":
    main()
