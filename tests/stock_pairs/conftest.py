"""One simulated cluster for every pair, left as it was found by each; and the table of pairs at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import ray

from raytpu import SimulatedCluster, simulate
from raytpu.plan import natural_order
from tests.stock_pairs.both_sides import on_raytpu, on_stock, slices
from tests.stock_pairs.measured_pair import MeasuredPair

PAIRS = pytest.StashKey[list[MeasuredPair]]()

WHOLE_AGAIN_S = 60.0
"""For Ray to notice that a killed host is gone (13 s when measured) and that everything is free."""


@pytest.fixture(scope="package")
def shared_cluster() -> Iterator[SimulatedCluster]:
    """Two slices of two hosts; each side has placed once, so that neither pays for what is started once."""
    with simulate(slices(2)) as simulated:
        ray.init(address=simulated.address, log_to_driver=False, logging_level="ERROR")
        for side in (on_stock, on_raytpu):
            with side(2, owner="warm-up", deadline_s=60):
                pass
            await_whole(simulated)
        yield simulated
        ray.shutdown()


@pytest.fixture
def cluster(shared_cluster: SimulatedCluster) -> Iterator[SimulatedCluster]:
    """The shared cluster, whole and idle; lost hosts are replaced after the test."""
    await_whole(shared_cluster)
    yield shared_cluster
    replace_lost_hosts(shared_cluster)


@pytest.fixture
def measured_pair(request: pytest.FixtureRequest) -> Callable[..., MeasuredPair]:
    """Makes a pair that the table at the end shows, also when its test fails."""

    def make(name: str, case: str, *, deadline_s: float) -> MeasuredPair:
        pair = MeasuredPair(name=name, case=case, deadline_s=deadline_s)
        request.config.stash.setdefault(PAIRS, []).append(pair)
        return pair

    return make


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print every pair; a reader of a CI log sees what was measured, not only that it passed."""
    if pairs := config.stash.get(PAIRS, []):
        terminalreporter.section("the same case on stock Ray and on raytpu (simulated slices)")
        for pair in sorted(pairs, key=lambda pair: natural_order(pair.name)):
            for line in pair.lines(ray.__version__):
                terminalreporter.write_line(line, yellow=line.strip() == pair.verdict)


def replace_lost_hosts(cluster: SimulatedCluster) -> None:
    """Bring back every host that is lost or frozen."""
    for each in cluster.slices:
        for host in each.hosts:
            if host.state != "up":
                cluster.lose_host(host.slice_name, host.worker_id)
                cluster.add_host(host.slice_name, host.worker_id)


def await_whole(cluster: SimulatedCluster) -> None:
    """Wait until Ray lists exactly the hosts that there are, with every chip free."""
    until = time.monotonic() + WHOLE_AGAIN_S
    hosts = {host.node_id for each in cluster.slices for host in each.hosts}
    chips = sum(each.chips_per_host * len(each.hosts) for each in cluster.slices)
    while True:
        listed = {node["NodeID"] for node in ray.nodes() if node["Alive"] and "TPU" in node["Resources"]}
        free = ray.available_resources()
        heads = sum(amount for name, amount in free.items() if name.startswith("TPU-"))
        if listed == hosts and free.get("TPU", 0) == chips and heads == len(cluster.slices):
            return
        assert time.monotonic() < until, f"not whole again: {listed ^ hosts} differ, free is {free}"
        time.sleep(0.05)
