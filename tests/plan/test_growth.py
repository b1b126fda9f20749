"""What is asked of the autoscaler for a request that waits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from raytpu.plan import Diagnosis, Inventory, SliceState, diagnose, plan_gang
from raytpu.plan import ledger as entries
from raytpu.plan.growth import (
    GROW_AFTER_S,
    Demand,
    Shortfall,
    accepted,
    arriving,
    changeling,
    continued,
    first_demand,
    refused,
    shortfalls,
    slices_at_once,
    taken,
)
from raytpu.plan.ledger import Ledger, Notice, Request
from raytpu.plan.occupancy import seen_with
from raytpu.topology import slice_shape
from tests.plan.builders import host, slice_state, slices

TWO_HOSTS = slice_shape("v6e", "2x4", 4)


def cluster(*names: str, **changes: Any) -> Inventory:
    return Inventory(slices=tuple(slice_state(name, **changes) for name in names))


def request(count: int = 1, **changes: Any) -> Request:
    return Request(
        id="r", owner="job", want=slices(count, **changes), arrived=1, arrived_s=100.0, deadline_s=1000.0
    )


def lacks(
    request: Request, inventory: Inventory, *, ledger: Ledger | None = None, waited_s: float = GROW_AFTER_S
) -> tuple[Shortfall, ...]:
    ledger = ledger if ledger is not None else Ledger()
    seen = seen_with(inventory, ledger, suspects={})
    diagnosis = diagnose(request.want, seen)
    return shortfalls(request, diagnosis, ledger, seen, request.arrived_s + waited_s)


def held(*names: str) -> Ledger:
    """Somebody holds these slices."""
    ledger = entries.with_request(Ledger(), replace(request(len(names)), id="holder"))
    plan = plan_gang(slices(len(names)), cluster(*names))
    return entries.placed(entries.granted(ledger, "holder", plan, 0.0), "holder", 0.0)


def one_lack(**changes: Any) -> Shortfall:
    plain = Shortfall(shape=TWO_HOSTS, ready=(), missing=1)
    return replace(plain, **changes)


# -- when and how much -----------------------------------------------------------------------------------


def test_what_the_cluster_has_not_at_all_is_asked_for_at_once():
    assert lacks(request(2), cluster("a"), waited_s=0.0) == (one_lack(ready=("a",), missing=1),)


def test_what_others_hold_is_asked_for_after_a_while():
    """A slice takes minutes to come and costs money; one that somebody is about to give back is quicker."""
    assert lacks(request(), cluster("a"), ledger=held("a"), waited_s=GROW_AFTER_S - 0.1) == ()
    assert lacks(request(), cluster("a"), ledger=held("a")) == (one_lack(),)


def test_nothing_is_asked_for_while_slices_that_are_being_given_back_will_do():
    told = entries.noticed(held("a"), "holder", Notice(by="job", until_s=900.0))
    for ledger in (told, entries.ending(held("a"), "holder")):
        assert lacks(request(), cluster("a"), ledger=ledger) == ()


def test_a_slice_that_an_earlier_request_claims_does_not_count():
    kept = cluster("a", kept_for="somebody")
    assert lacks(request(), kept) == (one_lack(),)


def test_the_fewest_slices_that_will_do_are_asked_for():
    """The request is served as soon as they are there, and more would come too late."""
    assert lacks(request(4, min_count=2), cluster("a"))[0].missing == 1


def test_each_topology_that_will_do_is_an_own_shortfall_in_order_of_preference():
    wanted = request(1, topology="4x4", chips_per_host=None, alternatives=("4x8", "2x4"))
    busy = cluster("a", hosts=2)
    found = lacks(wanted, busy, ledger=held("a"))

    assert [lack.shape.topology for lack in found] == ["4x4", "4x8", "2x4"]


def test_slices_of_two_zones_are_not_added_up():
    zones = Inventory(slices=(slice_state("a", zone="x"), slice_state("b", zone="y")))
    [lack] = lacks(request(3, same_zone=True), zones)

    assert (lack.ready, lack.missing) == (("a",), 2)


def test_a_broken_slice_counts_as_missing():
    broken = Inventory(slices=(slice_state("a", host_states=(host(0),)),))
    assert lacks(request(), broken)[0].missing == 1


# -- a demand over time ----------------------------------------------------------------------------------


def begun(lack: Shortfall, inventory: Inventory, at_once: int = 5) -> Demand:
    demand = first_demand(request(lack.least), lack, inventory, at_once)
    assert demand is not None
    return demand


def whole(names: Iterable[str]) -> Inventory:
    return cluster(*names)


def test_more_slices_than_the_autoscaler_launches_at_once_are_asked_for_one_after_the_other():
    """It launches 10 nodes, rounds down to whole slices, and forgets the rest."""
    four_hosts = slice_shape("v6e", "4x4")
    assert [slices_at_once(four_hosts, nodes) for nodes in (0, 2, 4, 8, 10)] == [2, 2, 1, 0, 0]
    assert [slices_at_once(slice_shape("v6e", "8x8"), nodes) for nodes in (0, 1)] == [1, 0]

    lack = one_lack(shape=four_hosts, missing=3)
    first = begun(lack, whole([]), at_once=2)
    assert (first.coming, first.asked) == (0, 2)
    assert continued(first, lack, whole([]), at_once=1) == first, "no answer yet"
    second = continued(accepted(first), lack, whole([]), at_once=0)
    assert (second.coming, second.asked) == (2, 0), "their nodes are not on their way yet"
    third = continued(second, lack, whole([]), at_once=1)
    assert (third.coming, third.asked) == (2, 1)
    last = continued(accepted(third), lack, whole([]), at_once=2)
    assert (last.coming, last.asked) == (3, 0)


def test_nothing_more_is_asked_for_while_a_slice_comes_up_host_by_host():
    """A host that is up without the head does not fit a demand for heads; another one would be launched."""
    lack = one_lack(missing=2)
    coming = accepted(begun(lack, whole([]), at_once=1))
    in_part = Inventory(slices=(slice_state("new", host_states=(host(1),)),))

    assert continued(coming, lack, in_part, at_once=5).asked == 0
    asked = continued(coming, lack, whole([]), at_once=5)
    assert continued(asked, lack, in_part, at_once=5).asked == 0, "it is taken back"
    arrived = continued(coming, one_lack(ready=("new",), missing=1), whole(["new"]), at_once=5)
    assert (arrived.kept, arrived.coming, arrived.asked) == (("new",), 0, 1)


def test_what_is_ready_is_kept_and_what_is_taken_by_others_is_replaced():
    demand = accepted(begun(one_lack(ready=("a", "b"), missing=1), whole("ab")))
    assert (demand.kept, demand.coming) == (("a", "b"), 1)

    less = continued(demand, one_lack(ready=("a",), missing=2), whole("ab"), at_once=5)

    assert (less.kept, less.coming, less.asked) == (("a",), 1, 1)


def test_no_more_is_kept_than_is_needed_beside_what_comes():
    demand = accepted(begun(one_lack(missing=2), whole("ab")))

    more = continued(demand, one_lack(ready=("a",), missing=1), whole("ab"), at_once=5)

    assert (more.kept, more.coming, more.asked) == ((), 2, 0)


def test_a_refused_demand_is_tried_without_what_it_keeps_before_it_counts_as_refused():
    """The autoscaler may not know the nodes of a slice that was started by hand."""
    demand = begun(one_lack(ready=("a",), missing=1), whole("a"))
    alone = refused(demand)
    assert alone is not None

    assert (alone.kept, alone.asked) == ((), 1)
    assert continued(alone, one_lack(ready=("a",), missing=1), whole("a"), at_once=5).kept == ()
    assert refused(alone) is None


def test_a_slice_of_the_same_pod_type_and_another_shape_is_noticed():
    """Asking again would bring the next one of the wrong kind."""
    demand = accepted(begun(one_lack(), whole("a")))
    eight: SliceState = slice_state("new", host_states=(host(0, chips=8, chips_free=8),), chips_per_host=8)
    came = Inventory(slices=(slice_state("a"), eight))

    assert changeling(demand, came, set()) == eight
    assert changeling(demand, came, {slice_shape("v6e", "2x4", 8)}) is None, "somebody else waits for it"
    assert changeling(demand, whole("ab"), set()) is None


def test_a_new_slice_that_an_earlier_request_got_does_not_count_as_coming():
    """Nothing fits the demand any more, and the autoscaler would make its own guess at what is missing."""
    demand = accepted(begun(one_lack(), whole("a")))
    before_it = Inventory(slices=(slice_state("a"), slice_state("new", held_by="somebody")))

    assert taken(demand, before_it)
    assert arriving(demand, before_it) == ()
    assert not taken(demand, cluster("a", held_by="somebody")), "it was there before"


def test_diagnosis_and_shortfall_agree_on_what_is_usable():
    """A slice that the diagnosis counts out must not be shown to the autoscaler as ready."""
    want = request(2)
    diagnosis = Diagnosis(sentence="", slices=(), next_step="")

    [lack] = shortfalls(want, diagnosis, Ledger(), whole("a"), 1000.0)

    assert lack == one_lack(missing=2)
