"""How long simulated hosts take to come up and what each costs, beside Ray's own way to simulate nodes.

Goals: 8 hosts up in at most 10 s (median of 5, on an idle machine); 16 hosts at once on 2 cores and 24 GiB,
each running JAX. *Up* means that Ray lists the node as alive, with its chips. The other way is
``ray.cluster_utils.Cluster``, which adds nodes one by one and without slice labels.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from raytpu.cluster import SimulatedCluster

GOAL_S = {8: 10.0}
SETTLE_S = 5.0
"""For Ray's agents to finish their imports, before memory is read."""

USE_ALL_HOSTS = """
import json, ray, sys, time
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
began = time.monotonic()

@ray.remote(num_cpus=0, resources={"TPU": 4})
class Host:
    def devices(self):
        import jax
        return jax.device_count()

hosts = [Host.remote() for _ in range(int(sys.argv[2]))]
devices = ray.get([host.devices.remote() for host in hosts], timeout=240)
print(json.dumps([devices, time.monotonic() - began]), flush=True)
sys.stdin.readline()
"""

STOCK = """
import sys, time
from ray.cluster_utils import Cluster
began = time.monotonic()
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
for _ in range(int(sys.argv[1])):
    cluster.add_node(num_cpus=2, resources={"TPU": 4}, object_store_memory=200_000_000)
cluster.wait_for_nodes()
print(time.monotonic() - began, flush=True)
cluster.shutdown()
"""


def memory_mib(cluster: SimulatedCluster) -> float:
    """Proportional memory (PSS) of every process of the simulation's hosts, the head apart."""
    from raytpu.cluster.process_sweep import marked_processes

    state = cluster.state()
    used = 0
    for each in state["slices"]:
        for worker_id, host in enumerate(each["hosts"]):
            marker = f"{state['sim_id']}/{each['name']}/{worker_id}"
            # The host process itself shows the environment of the keeper that it was forked from.
            used += sum(process.memory_full_info().pss for process in marked_processes(marker, {host["pid"]}))
    return used / 2**20


def start_once(hosts: int, use: bool) -> dict[str, Any]:
    """Bring ``hosts`` hosts up once; with ``use``, run JAX on all of them at the same time as well."""
    from raytpu import Slices, simulate

    shape = Slices(generation="v6e", topology="2x4", chips_per_host=4, count=hosts // 2)
    began = time.monotonic()
    with simulate(shape, start_deadline_s=300) as cluster:
        result: dict[str, Any] = {"seconds": time.monotonic() - began}
        if use:
            time.sleep(SETTLE_S)
            result["idle_mib_per_host"] = memory_mib(cluster) / hosts
            command = [sys.executable, "-c", USE_ALL_HOSTS, cluster.address, str(hosts)]
            driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert driver.stdout is not None
            devices, result["jax_on_all_hosts_s"] = json.loads(driver.stdout.readline())
            if devices != [4] * hosts:
                raise SystemExit(f"expected 4 JAX devices on each host, got {devices}")
            result["with_jax_mib_per_host"] = memory_mib(cluster) / hosts
            driver.communicate("\n", timeout=60)
        began = time.monotonic()
    result["stop_s"] = time.monotonic() - began
    return result


def stock_seconds(hosts: int) -> float:
    """``ray.cluster_utils.Cluster`` with as many nodes."""
    done = subprocess.run(
        [sys.executable, "-c", STOCK, str(hosts)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        timeout=600,
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
    )
    return float(done.stdout.splitlines()[-1])


def measure(hosts: int, rounds: int, with_stock: bool) -> dict[str, Any]:
    """Interleaved with stock, which is measured once: it is slow and varies less."""
    runs = []
    stock = None
    for number in range(rounds):
        runs.append(start_once(hosts, use=number == 0))
        print(f"{hosts} hosts, round {number + 1}: {runs[-1]['seconds']:.1f} s", file=sys.stderr)
        if with_stock and number == 0:
            stock = stock_seconds(hosts)
            print(f"{hosts} nodes of ray.cluster_utils.Cluster: {stock:.1f} s", file=sys.stderr)
    return {
        "bench": f"sim_start, {hosts} hosts",
        "median_s": round(statistics.median(run["seconds"] for run in runs), 2),
        "rounds_s": [round(run["seconds"], 2) for run in runs],
        "goal_s": GOAL_S.get(hosts),
        "stock_s": None if stock is None else round(stock, 2),
        "stop_s": round(statistics.median(run["stop_s"] for run in runs), 2),
        "idle_mib_per_host": round(runs[0]["idle_mib_per_host"]),
        "with_jax_mib_per_host": round(runs[0]["with_jax_mib_per_host"]),
        "jax_on_all_hosts_s": round(runs[0]["jax_on_all_hosts_s"], 1),
        "load_before": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Print one JSON object for each number of hosts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[8, 16], help="even numbers")
    parser.add_argument(
        "--rounds", type=int, default=5, help="of the first number of hosts; the others run once"
    )
    parser.add_argument("--no-stock", action="store_true", help="leave ray.cluster_utils.Cluster out")
    arguments = parser.parse_args()
    for number, hosts in enumerate(arguments.hosts):
        rounds = arguments.rounds if number == 0 else 1
        print(json.dumps(measure(hosts, rounds, number == 0 and not arguments.no_stock)), flush=True)


if __name__ == "__main__":
    main()
