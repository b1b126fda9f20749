"""The keeper's table: names, lookups, replacements."""

from __future__ import annotations

import pytest

from raytpu.cluster.simulated_hosts import LOST, UP, HostTable
from raytpu.cluster.simulation_plan import SlicePlan
from raytpu.errors import Refused, WrongRequest


def wanted(name: str = "", hosts: int = 2) -> SlicePlan:
    return SlicePlan(
        name=name,
        generation="v6e",
        topology="2x4",
        chips_per_host=4,
        hosts=hosts,
        devices_per_host=4,
        pod_type="v6e-8",
    )


def test_slices_without_a_name_are_numbered_onwards():
    """A name used twice would join two slices into one."""
    table = HostTable()

    assert [table.add_slice(wanted()) for _ in range(2)] == ["slice-0", "slice-1"]
    assert table.add_slice(wanted("slice-7")) == "slice-7"
    assert table.add_slice(wanted()) == "slice-8"
    with pytest.raises(Refused, match="slice 'slice-7' already"):
        table.add_slice(wanted("slice-7"))


def test_hosts_are_listed_in_worker_order():
    """Order is identity: host k of the answer is worker k."""
    table = HostTable()
    table.add_slice(wanted(hosts=3))

    assert [node.label for node in table.nodes()] == ["slice-0/0", "slice-0/1", "slice-0/2"]
    assert table.place(table.find("slice-0", 2))[1] == 2


@pytest.mark.parametrize(
    ("name", "worker_id", "message"),
    [
        ("slice-9", 0, "no slice 'slice-9'; there are: slice-0"),
        ("slice-0", 2, "no host 2 in slice-0: its hosts are 0 to 1"),
        ("slice-0", -1, "no host -1"),
    ],
)
def test_a_host_that_does_not_exist_is_a_wrong_request(name, worker_id, message):
    """Losing "host -1" must not lose the last one."""
    table = HostTable()
    table.add_slice(wanted())

    with pytest.raises(WrongRequest, match=message):
        table.find(name, worker_id)


def test_a_fault_on_a_lost_host_says_why_it_is_lost():
    """Else a test that freezes a host which died by itself shows nothing."""
    table = HostTable()
    table.add_slice(wanted())
    node = table.find("slice-0", 1)
    node.state, node.reason = LOST, "its raylet ended"

    with pytest.raises(Refused, match=r"slice-0/1 is lost \(its raylet ended\), not up"):
        table.find_up("slice-0", 1)


def test_a_replacement_takes_the_place_of_the_lost_host():
    """A new machine under the old name; the old one's pid and address must not be seen any more."""
    table = HostTable()
    table.add_slice(wanted())
    old = table.find("slice-0", 1)
    old.state, old.pid, old.node_id = LOST, 123, "abc"

    fresh = table.replace(old)

    assert table.find("slice-0", 1) is fresh
    assert (fresh.label, fresh.pid, fresh.node_id, fresh.alive) == ("slice-0/1", None, None, True)


def test_a_frozen_host_is_shown_frozen_and_alive():
    """The machine still exists: it is not lost until somebody says so."""
    table = HostTable()
    table.add_slice(wanted(hosts=1))
    node = table.find("slice-0", 0)
    node.state, node.frozen = UP, True

    shown = table.document()[0]["hosts"][0]

    assert (shown["state"], shown["alive"]) == ("frozen", True)
