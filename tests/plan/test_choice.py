"""Which of the slices that would do a request gets, and which part of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raytpu.errors import Unplaceable
from raytpu.plan import GangPlan, Inventory, SliceState, plan_gang
from raytpu.spec import Slices
from tests.plan.builders import host, slice_state, slices

HOSTS = {"1x1": 1, "2x2": 1, "2x4": 2, "4x4": 4, "4x8": 8, "8x8": 16}


def cluster(*states: SliceState) -> Inventory:
    return Inventory(slices=states)


def of_shape(name: str, topology: str, taken: dict[int, str] | None = None, **changes: Any) -> SliceState:
    """A whole slice of 4-chip hosts; ``taken`` names who holds which host."""
    hosts = tuple(host(worker) for worker in range(HOSTS[topology]))
    for worker, holder in (taken or {}).items():
        hosts = (*hosts[:worker], replace(hosts[worker], held_by=holder), *hosts[worker + 1 :])
    return slice_state(name, topology=topology, host_states=hosts, **changes)


def part(topology: str = "2x2", **changes: Any) -> Slices:
    chips = 4 if topology == "2x4" else None
    return slices(**({"topology": topology, "chips_per_host": chips, "sub_slice": True} | changes))


def taken_by(want: Slices, *states: SliceState) -> dict[str, list[int]]:
    """Name of each slice of the plan and the worker ids that are held of it; {} when nothing fits."""
    try:
        plan = plan_gang(want, cluster(*states))
    except Unplaceable:
        return {}
    return {planned.name: [process.worker_id for process in planned.processes] for planned in plan.slices}


def zones(*names: str | None) -> list[SliceState]:
    """Whole, idle slices s0, s1, … in these zones."""
    return [slice_state(f"s{index}", zone=zone) for index, zone in enumerate(names)]


A, B, LARGE = slice_state("a"), slice_state("b"), of_shape("large", "4x4")
BUSY = slice_state("busy", held_by="x")

CHOICES: dict[str, tuple[Slices, list[SliceState], list[str]]] = {
    "the topology before its alternatives": (slices(alternatives=["4x4"]), [LARGE, A], ["a"]),
    "an alternative when the topology is not there": (
        slices(alternatives=["2x2", "4x4"]),
        [LARGE, BUSY],
        ["large"],
    ),
    "alternatives in their order": (
        slices(alternatives=["2x2", "4x4"]),
        [LARGE, of_shape("small", "2x2")],
        ["small"],
    ),
    "never two topologies in one gang": (slices(2, alternatives=["4x4"]), [LARGE, A], []),
    "an alternative that is there in full": (
        slices(2, alternatives=["4x4"]),
        [A, LARGE, of_shape("large-2", "4x4")],
        ["large", "large-2"],
    ),
    "as many as there are, at least min_count": (slices(3, min_count=2), [A, B, BUSY], ["a", "b"]),
    "no more than count": (slices(1, min_count=1), [A, B], ["a"]),
    "not fewer than min_count": (slices(3, min_count=2), [A, BUSY], []),
    "fewer of the topology before more of an alternative": (
        slices(2, min_count=1, alternatives=["4x4"]),
        [A, LARGE, of_shape("large-2", "4x4")],
        ["a"],
    ),
    "one zone, the first that has enough": (
        slices(2, same_zone=True),
        zones("east", "west", "west", "east"),
        ["s0", "s3"],
    ),
    "no gang across zones": (slices(2, same_zone=True), zones("east", "west"), []),
    "the zone that has most of what is wanted": (
        slices(3, min_count=1, same_zone=True),
        zones("east", "west", "west"),
        ["s1", "s2"],
    ),
    "slices of unknown zones are not in one zone": (slices(2, same_zone=True), zones(None, None), []),
    "one slice is always in one zone": (slices(same_zone=True), zones(None), ["s0"]),
    "zones do not matter unless asked": (slices(2), zones("east", "west"), ["s0", "s1"]),
    "not what the request excludes": (slices(exclude=["a"]), [A, B], ["b"]),
    "not what is under quarantine": (slices(), [slice_state("a", quarantined="sick"), B], ["b"]),
    "not what is kept for an earlier request": (slices(), [slice_state("a", kept_for="big"), B], ["b"]),
    "not a slice with a suspect host": (
        slices(),
        [slice_state("a", host_states=(host(0), host(1, suspect="silent"))), B],
        ["b"],
    ),
    "not whole, when a part is held": (
        slices(),
        [slice_state("a", host_states=(host(0, held_by="x"), host(1))), B],
        ["b"],
    ),
    "no part unless asked": (slices(topology="2x2", chips_per_host=None), [A], []),
}


@pytest.mark.parametrize(("want", "states", "names"), CHOICES.values(), ids=CHOICES.keys())
def test_the_slices_are_chosen_by_rule(want: Slices, states: list[SliceState], names: list[str]) -> None:
    """Two controllers that choose differently on one snapshot fight over it."""
    assert list(taken_by(want, *states)) == names


PARTS: dict[str, tuple[Slices, list[SliceState], dict[str, list[int]]]] = {
    "the whole slice of that shape before a part": (
        part(),
        [LARGE, of_shape("whole", "2x2")],
        {"whole": [0]},
    ),
    "a part of a divided slice before a fresh one": (
        part(),
        [of_shape("a", "2x4"), of_shape("b", "4x4", {0: "x"})],
        {"b": [1]},
    ),
    "a part of the smallest fresh slice": (part(), [of_shape("a", "8x8"), LARGE], {"large": [0]}),
    "hosts of a part are neighbours": (
        part("2x4"),
        [of_shape("a", "4x4", {0: "x"})],
        {"a": [1, 3]},
    ),
    "no part of hosts that are no neighbours": (
        part("2x4"),
        [of_shape("a", "4x4", {0: "x", 3: "y"})],
        {},
    ),
    "a part that leaves the larger one whole": (
        part(),
        [of_shape("a", "4x8", {2: "x"})],
        {"a": [0]},
    ),
    "not a part with a busy host": (
        part(),
        [slice_state("a", host_states=(host(0, chips_free=3), host(1)))],
        {"a": [1]},
    ),
    "not of a broken slice, which is replaced whole": (
        part(),
        [slice_state("a", host_states=(host(0), host(1, alive=False, chips=0, chips_free=0)))],
        {},
    ),
    "not of a slice that somebody holds whole": (part(), [slice_state("a", held_by="x")], {}),
    "not of a slice with a suspect host": (
        part(),
        [slice_state("a", host_states=(host(0), host(1, suspect="silent")))],
        {},
    ),
    "each slice of a gang is a part of another one": (
        part(count=2),
        [LARGE, A],
        {"a": [0], "large": [0]},
    ),
    "never two parts of one slice in a gang": (part(count=2), [LARGE], {}),
    "not of another generation": (part(), [slice_state("a", generation="v5e")], {}),
    "in one zone": (
        part(count=2, same_zone=True),
        [replace(A, zone="east"), replace(B, zone="west"), replace(LARGE, zone="east")],
        {"a": [0], "large": [0]},
    ),
}


@pytest.mark.parametrize(("want", "states", "taken"), PARTS.values(), ids=PARTS.keys())
def test_parts_are_chosen_along_valid_boundaries(
    want: Slices, states: list[SliceState], taken: dict[str, list[int]]
) -> None:
    """A part of hosts without links among them hangs; a scattered one leaves no room for larger jobs."""
    assert taken_by(want, *states) == taken


def eight_chip_host(name: str, free: int, parts: tuple[int, ...] = ()) -> SliceState:
    return slice_state(name, chips_per_host=8, host_states=(host(0, chips=8, chips_free=free, parts=parts),))


def test_jobs_share_a_host_until_it_is_full() -> None:
    """Single chips of v5e and v6e hosts are what most small jobs want."""
    one = part("1x1")

    assert taken_by(one, eight_chip_host("a", 8), eight_chip_host("b", 1)) == {"b": [0]}
    assert taken_by(one, eight_chip_host("b", 0)) == {}
    assert taken_by(part(), eight_chip_host("a", 4, parts=(4,))) == {"a": [0]}


def test_half_a_host_is_not_taken_from_what_smaller_or_unknown_jobs_left() -> None:
    """Four free chips may be any four; only two certain halves are squares."""
    assert taken_by(part(), eight_chip_host("a", 7, parts=(1,))) == {}
    assert taken_by(part(), eight_chip_host("a", 4, parts=(1, 1, 1, 1))) == {}
    assert taken_by(part(), eight_chip_host("a", 4)) == {}
    assert taken_by(part(), eight_chip_host("a", 3, parts=(4,))) == {}


def test_a_fuller_host_of_a_slice_is_used_first() -> None:
    """Whole hosts stay free for those who need one."""
    state = of_shape("a", "4x4")
    hosts = (*state.hosts[:3], replace(state.hosts[3], chips_free=2))

    assert taken_by(part("1x1"), replace(state, hosts=hosts)) == {"a": [3]}


def plan_of_half() -> GangPlan:
    """The right half of a 4x4, whose left half is held."""
    return plan_gang(part("2x4"), cluster(of_shape("a", "4x4", {0: "x", 2: "x"})))


def test_a_part_is_planned_like_a_slice_of_its_own() -> None:
    """Its program must not notice that there is more of the slice."""
    [planned] = plan_of_half().slices

    assert not planned.whole
    assert (planned.shape.topology, planned.of.topology) == ("2x4", "4x4")
    assert [(process.worker_id, process.position) for process in planned.processes] == [(1, 0), (3, 1)]
    assert [process.process_index for process in planned.processes] == [0, 1]
    assert {(p.hosts_per_slice, p.chips, p.local_devices, p.global_devices) for p in planned.processes} == {
        (2, 4, 4, 8)
    }
    assert [process.host for process in planned.processes] == ["a/1", "a/3"]


def test_each_host_of_a_part_is_told_what_it_is_part_of() -> None:
    second = plan_of_half().processes[1]

    assert second.environment["TPU_WORKER_ID"] == "1"
    assert second.environment["TPU_WORKER_HOSTNAMES"] == "10.0.0.1,10.0.0.3"
    assert second.environment["TPU_TOPOLOGY"] == "2x4"


def test_a_part_of_a_host_counts_its_chips() -> None:
    [process] = plan_gang(part("1x1"), cluster(eight_chip_host("a", 8))).processes

    assert (process.chips, process.local_devices, process.global_devices) == (1, 1, 1)


def test_a_simulated_part_says_how_many_devices_there_are() -> None:
    """A program of its own, which raytpu does not start, sees the devices of the whole host otherwise."""
    state = replace(eight_chip_host("a", 8), simulated=True)

    [process] = plan_gang(part("1x1"), cluster(state)).processes

    assert process.environment["JAX_NUM_CPU_DEVICES"] == "1"
    assert "JAX_NUM_CPU_DEVICES" not in plan_of_half().processes[0].environment


def test_a_whole_slice_is_told_nothing() -> None:
    """What the host has by itself is right then, and better than what we could make up."""
    [planned] = plan_gang(slices(), cluster(A)).slices

    assert planned.whole
    assert planned.shape == planned.of
    assert [process.environment for process in planned.processes] == [{}, {}]
    assert [process.position for process in planned.processes] == [0, 1]


@pytest.mark.parametrize("sub_slice", [False, True])
def test_two_hosts_of_a_2x4_never_come_from_two_slices(sub_slice: bool) -> None:
    """Stock Ray spreads a v6e 2x4 of two 4-chip hosts over two slices: no ICI between them (R12)."""
    halves = [slice_state(name, host_states=(host(0), host(1, chips_free=0))) for name in ("a", "b")]

    assert taken_by(slices(sub_slice=sub_slice), *halves) == {}


@pytest.mark.parametrize("sub_slice", [False, True])
def test_v6e_never_lands_on_v5e(sub_slice: bool) -> None:
    """Stock Ray puts a "single-host" v6e request on any slice of that topology."""
    other = slice_state("a", generation="v5e")

    assert taken_by(slices(sub_slice=sub_slice), other) == {}
