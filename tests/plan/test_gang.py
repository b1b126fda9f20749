from __future__ import annotations

import pickle
import random
import time

import pytest

from raytpu.errors import SliceVerdict, Unplaceable
from raytpu.plan import Inventory, SliceState, deal_again, imagined_inventory, natural_order, plan_gang
from tests.plan.builders import host, slice_state, slices


def inventory(*states: SliceState) -> Inventory:
    return Inventory(slices=states)


def refusal(want_count: int, *states: SliceState, exclude: frozenset[str] = frozenset()) -> Unplaceable:
    with pytest.raises(Unplaceable) as caught:
        plan_gang(slices(want_count), inventory(*states), exclude)
    return caught.value


def test_slices_are_taken_in_natural_name_order() -> None:
    """Sorted as strings, slice-10 comes before slice-2 and ranks no longer follow names (R3)."""
    states = [slice_state(name) for name in ("slice-10", "slice-2", "slice-1")]

    gang = plan_gang(slices(2), inventory(*states))

    assert [planned.name for planned in gang.slices] == ["slice-1", "slice-2"]
    assert [planned.index for planned in gang.slices] == [0, 1]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("slice-2", "slice-10"),
        ("a", "b"),
        ("7", "a"),
        ("s-1", "s-1-0"),
        ("pool-2-slice-9", "pool-10-slice-1"),
    ],
)
def test_numbers_in_names_are_compared_as_numbers(earlier: str, later: str) -> None:
    assert natural_order(earlier) < natural_order(later)


def test_the_order_of_the_snapshot_does_not_change_the_plan() -> None:
    """A plan that depends on who reported first gives other ranks after every restart."""
    states = [slice_state(f"s{number}") for number in range(12)]
    expected = plan_gang(slices(5), inventory(*states))
    order = random.Random(0)

    for _ in range(20):
        order.shuffle(states)
        assert plan_gang(slices(5), inventory(*states)) == expected


def test_a_process_index_follows_slice_and_worker_id_not_the_order_of_hosts() -> None:
    """JAX orders devices by process index: permuted, a mesh axis meant for ICI crosses slices."""
    backwards = slice_state("a", host_states=(host(1), host(0)))

    gang = plan_gang(slices(2), inventory(slice_state("b"), backwards))

    assert [(process.process_index, process.host, process.node_id) for process in gang.processes] == [
        (0, "a/0", "node-0"),
        (1, "a/1", "node-1"),
        (2, "b/0", "node-0"),
        (3, "b/1", "node-1"),
    ]


def test_an_assignment_says_everything_a_host_must_know() -> None:
    """A host that has to ask another source for its place can get another answer there."""
    last = plan_gang(slices(2), inventory(slice_state("a"), slice_state("b"))).processes[-1]

    assert (last.process_count, last.slice_index, last.slice_count) == (4, 1, 2)
    assert (last.worker_id, last.hosts_per_slice) == (1, 2)
    assert (last.chips, last.local_devices, last.global_devices) == (4, 4, 16)
    assert last.platform == "tpu"
    assert pickle.loads(pickle.dumps(last)) == last


def test_v7x_counts_two_devices_a_chip() -> None:
    """A plan in chips refuses every healthy v7x host: JAX shows twice as many devices."""
    want = slices(1, generation="v7x", topology="2x2x2", chips_per_host=None)

    first = plan_gang(want, imagined_inventory(want)).processes[0]

    assert (first.chips, first.local_devices, first.global_devices) == (4, 8, 16)


def test_simulated_slices_run_on_cpu() -> None:
    """A CPU process told that it is on TPU fails in libtpu; the other way round hides a missing TPU."""
    want = slices(2)

    gang = plan_gang(want, imagined_inventory(want))

    assert gang.simulated
    assert {process.platform for process in gang.processes} == {"cpu"}
    assert len({process.address for process in gang.processes}) == 4


UNUSABLE = {
    "wrong generation": (
        slice_state("a", generation="v5e"),
        "wrong generation: v5e, not v6e",
    ),
    "wrong topology": (
        slice_state("a", 4, topology="4x4"),
        "wrong topology: 4x4, not 2x4",
    ),
    "generation and topology": (
        slice_state("a", 4, generation="v5e", topology="4x4"),
        "wrong generation: v5e, not v6e; wrong topology: 4x4, not 2x4",
    ),
    "one host of eight chips": (
        slice_state("a", chips_per_host=8, host_states=(host(0, chips=8, chips_free=8),)),
        "wrong chips per host: 8, not 4",
    ),
    "no labels": (
        slice_state("a", generation=None, topology=None),
        "generation unknown (its hosts have no label ray.io/accelerator-type); "
        "topology unknown (its hosts have no label ray.io/tpu-topology)",
    ),
    "dead host": (
        slice_state("a", host_states=(host(0), host(1, alive=False, chips=0, chips_free=0))),
        "1 of 2 hosts alive (missing host 1)",
    ),
    "absent hosts": (
        slice_state("a", 0),
        "0 of 2 hosts alive (missing hosts 0, 1)",
    ),
    "busy host": (
        slice_state("a", host_states=(host(0), host(1, chips_free=0))),
        "host 1 has 0 of 4 chips free",
    ),
    "partly busy hosts": (
        slice_state("a", host_states=(host(0, chips_free=3), host(1, chips_free=2))),
        "host 0 has 3 of 4 chips free; host 1 has 2 of 4 chips free",
    ),
    "held": (
        slice_state("a", held_by="run llm", host_states=(host(0, chips_free=0), host(1, chips_free=0))),
        "held by run llm",
    ),
    "held and broken": (
        slice_state("a", held_by="run llm", host_states=(host(0, chips_free=0),)),
        "held by run llm; 1 of 2 hosts alive (missing host 1)",
    ),
    "no worker id": (
        slice_state("a", host_states=(host(0), host(None, address="10.0.0.9"))),
        "1 of 2 hosts alive (missing host 1); host at 10.0.0.9 has no label ray.io/tpu-worker-id",
    ),
    "worker id twice": (
        slice_state("a", host_states=(host(0), host(0, address="10.0.0.9"), host(1))),
        "worker id 0 is claimed by 2 hosts (10.0.0.0, 10.0.0.9)",
    ),
    "worker id too large": (
        slice_state("a", host_states=(host(0), host(1), host(2))),
        "host at 10.0.0.2 has worker id 2, expected 0 to 1",
    ),
    "chips missing": (
        slice_state("a", host_states=(host(0), host(1, chips=3, chips_free=3))),
        "host 1 has 3 chips, expected 4",
    ),
}


@pytest.mark.parametrize(("state", "reason"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_an_unusable_slice_is_refused_with_its_reason(state: SliceState, reason: str) -> None:
    """A gang on such a slice hangs in its first collective, and nobody knows why it pends."""
    assert [verdict.why for verdict in refusal(1, state).slices] == [reason]


@pytest.mark.parametrize(("state", "reason"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_an_unusable_slice_is_passed_over_for_a_good_one(state: SliceState, reason: str) -> None:
    """Stock Ray waits for ever on the first slice whose head is free (R1)."""
    assert reason
    gang = plan_gang(slices(1), inventory(state, slice_state("b")))

    assert [planned.name for planned in gang.slices] == ["b"]


def test_a_dead_node_does_not_spoil_the_host_that_replaced_it() -> None:
    """Ray keeps listing dead nodes: a repaired slice would never be used again."""
    repaired = slice_state("a", host_states=(host(0), host(1, alive=False, node_id="old"), host(1)))

    assert plan_gang(slices(1), inventory(repaired)).processes[1].node_id == "node-1"


def test_an_excluded_slice_is_not_used() -> None:
    """A restart that moves back to the slice that just failed fails again."""
    gang = plan_gang(slices(1), inventory(slice_state("a"), slice_state("b")), frozenset({"a", "gone"}))
    error = refusal(1, slice_state("a"), exclude=frozenset({"a"}))

    assert gang.slices[0].name == "b"
    assert error.slices == (SliceVerdict("a", "other", "excluded by this request"),)


def test_a_simulated_slice_never_stands_in_for_a_real_one() -> None:
    """A run that someone pays TPUs for would train on CPU."""
    error = refusal(1, slice_state("a", simulated=True), slice_state("b", held_by="x"))

    assert error.slices[0] == SliceVerdict("a", "other", "simulated, in a cluster with real slices")


def test_too_few_whole_slices_are_refused_never_partly_taken() -> None:
    """Half a gang holds slices that others could use, and waits for ever."""
    error = refusal(2, slice_state("a"), slice_state("b", held_by="run llm"))

    assert str(error) == (
        "need 2 whole v6e 2x4 (2 × 4 chips) slices: 1 usable, 1 busy\n"
        "  a: whole and idle\n"
        "  b: held by run llm\n"
        "  the cluster has 2 such slices: the request fits when enough of them are whole and idle; "
        "slices.count: 1 fits now"
    )


def test_more_slices_than_exist_says_how_many_there_are() -> None:
    """The user waits for slices that nobody has."""
    error = refusal(2, slice_state("a"))

    assert error.next_step == "the cluster has 1 such slice, 2 are wanted; slices.count: 1 fits now"


def test_a_free_slice_of_another_shape_is_pointed_out() -> None:
    """The nearest thing that would work is in the snapshot: the user should not have to look for it."""
    others = [slice_state("b", 4, topology="4x4"), slice_state("c", 4, topology="4x4")]

    error = refusal(
        1, slice_state("a", held_by="x"), *others, slice_state("d", generation="v5e", held_by="x")
    )

    assert error.next_step.endswith("idle in another shape: 2 × v6e 4x4 with 4 chips per host")


def test_an_empty_cluster_says_what_to_do() -> None:
    error = refusal(1)

    assert "no TPU slices at all" in str(error)
    assert "raytpu sim up" in error.next_step


def test_a_refusal_survives_pickling() -> None:
    """It crosses from an actor to the driver."""
    error = refusal(1, slice_state("a", held_by="x"))

    again = pickle.loads(pickle.dumps(error))
    assert vars(again) == vars(error)


def test_an_inventory_names_each_slice_once() -> None:
    """One slice seen as two is held twice."""
    with pytest.raises(ValueError, match="named twice: a"):
        inventory(slice_state("a"), slice_state("a"), slice_state("b"))


def test_imagined_hosts_have_addresses_of_their_own_on_large_slices() -> None:
    """Loopback addresses run out at 254 a block."""
    want = slices(3, generation="v5p", topology="8x8x8", chips_per_host=None)

    addresses = [state.address for each in imagined_inventory(want).slices for state in each.hosts]

    assert len(set(addresses)) == len(addresses) == 384
    assert all(0 < int(part) < 255 for address in addresses for part in [address.rsplit(".", 1)[1]])


def test_planning_grows_linearly_with_the_cluster() -> None:
    """The book of slices plans inside its only thread: a slow plan stalls every acquire and heartbeat."""

    def seconds(count: int) -> float:
        states = tuple(slice_state(f"s{number}", 8, topology="4x8", held_by="x") for number in range(count))
        snapshot = inventory(*states)
        want = slices(1, topology="4x8")
        best = float("inf")
        for _ in range(9):
            start = time.process_time()  # other processes of a busy machine do not count
            with pytest.raises(Unplaceable):
                plan_gang(want, snapshot)
            best = min(best, time.process_time() - start)
        return best

    small, large = seconds(100), seconds(1000)

    assert large < 30 * small


def test_slices_of_several_leases_are_dealt_as_one_gang_in_the_order_given() -> None:
    """Two processes with one index, or a gap, hang in jax.distributed."""
    first = plan_gang(slices(2), Inventory(slices=(slice_state("slice-0"), slice_state("slice-1"))))
    further = plan_gang(slices(1), Inventory(slices=(slice_state("slice-2"),)))

    gang = deal_again([first.slices[1], further.slices[0]], simulated=False)

    assert [(each.name, each.index) for each in gang.slices] == [("slice-1", 0), ("slice-2", 1)]
    assert [process.process_index for process in gang.processes] == [0, 1, 2, 3]
    assert [process.host for process in gang.processes] == [
        "slice-1/0",
        "slice-1/1",
        "slice-2/0",
        "slice-2/1",
    ]
    assert {(each.process_count, each.slice_count, each.global_devices) for each in gang.processes} == {
        (4, 2, 16)
    }


def test_a_gang_that_lost_nothing_is_dealt_as_it_was_planned() -> None:
    """The first attempt and the next ones must not differ in anything but the slices."""
    gang = plan_gang(slices(2), Inventory(slices=(slice_state("slice-0"), slice_state("slice-1"))))

    assert deal_again(gang.slices, simulated=gang.simulated) == gang
