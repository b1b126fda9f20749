"""Chips that stock Ray has are told from those that a lease has."""

from __future__ import annotations

from raytpu.plan import Inventory, diagnose, plan_gang
from raytpu.plan import ledger as entries
from raytpu.plan.inventory import Outsider
from raytpu.plan.ledger import Ledger
from raytpu.plan.occupancy import seen_with
from raytpu.plan.outsiders import UNNAMED, ChipUse, with_outsiders
from tests.plan.builders import host, slice_state, slices
from tests.plan.ledgers import queue_of, request

MINE = Outsider(who="placement group mine", fix="it ends with job 02")
OTHER = Outsider(who="actor server")


def used(*free: int) -> Inventory:
    """One v6e 2x4 slice whose hosts have so many chips free."""
    hosts = tuple(host(worker_id, chips_free=chips) for worker_id, chips in enumerate(free))
    return Inventory(slices=(slice_state("slice-0", host_states=hosts),))


def use(worker_id: int, outsider: Outsider = MINE, lease_id: str | None = None) -> ChipUse:
    return ChipUse(node_id=f"node-{worker_id}", lease_id=lease_id, outsider=outsider)


def outsiders(inventory: Inventory, *uses: ChipUse, ledger: Ledger | None = None) -> list[tuple[str, ...]]:
    found = with_outsiders(inventory, Ledger() if ledger is None else ledger, uses)
    return [tuple(each.who for each in host.outsiders) for host in found.slices[0].hosts]


def test_each_host_says_who_has_its_chips() -> None:
    assert outsiders(used(0, 2), use(0), use(1), use(1, OTHER)) == [
        ("placement group mine",),
        ("placement group mine", "actor server"),
    ]


def test_an_idle_host_has_nobody_whatever_ray_still_lists() -> None:
    """Ray's tables are read one after the other: a group may be gone by the time that chips are counted."""
    assert outsiders(used(4, 4), use(0)) == [(), ()]


def test_chips_that_nothing_in_rays_tables_has_belong_to_a_task() -> None:
    assert outsiders(used(3, 4)) == [(UNNAMED.who,), ()]


def test_nobody_is_named_on_a_host_that_does_not_answer() -> None:
    """Ray shows its chips as taken for 13 s after its death, by a lease that is over: by nobody, then."""
    died = seen_with(used(0, 4), Ledger(), suspects={"node-0": "its raylet refuses connections"})

    assert outsiders(died) == [(), ()]
    assert outsiders(died, use(0)) == [(), ()]
    [verdict] = diagnose(slices(), with_outsiders(died, Ledger(), [])).slices
    assert "refuses connections" in verdict.why
    assert "chips free" not in verdict.why


def test_parts_of_a_lease_are_not_outside() -> None:
    """A lease for two chips of a host must not be shown as somebody else's."""
    part = slices(topology="1x1", chips_per_host=None, sub_slice=True)
    ledger = queue_of(request("small", want=part))
    ledger = entries.granted(ledger, "small", plan_gang(part, used(4, 4)), 1.0)
    seen = seen_with(used(3, 4), ledger, suspects={})

    assert outsiders(seen, use(0, lease_id="small"), ledger=ledger) == [(), ()]


def test_a_group_of_a_lease_that_no_book_knows_is_outside() -> None:
    assert outsiders(used(0, 0), use(0, lease_id="unknown"), use(1, lease_id="unknown")) == [
        ("placement group mine",),
        ("placement group mine",),
    ]


def test_a_verdict_names_them_and_how_to_get_the_chips_back() -> None:
    """`host 0 has 0 of 4 chips free` leaves a person with the question who has them."""
    [verdict] = diagnose(slices(), with_outsiders(used(0, 0), Ledger(), [use(0), use(1)])).slices
    assert verdict.state == "busy"
    assert verdict.why == "hosts 0, 1 are used by placement group mine, outside raytpu"
    assert verdict.fix == "it ends with job 02"

    [verdict] = diagnose(slices(), with_outsiders(used(2, 4), Ledger(), [use(0, OTHER)])).slices
    assert verdict.why == "host 0 is used in part by actor server, outside raytpu"
