"""Who gets slices next: order, claims, preemption, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raytpu.plan import Inventory, plan_gang
from raytpu.plan import ledger as entries
from raytpu.plan.ledger import Lease, Ledger, Notice, Quarantine
from raytpu.plan.occupancy import seen_with
from raytpu.plan.queue import End, Grant, Preempt, Recall, Refuse, Wait, decide
from tests.plan.builders import host, slice_state, slices
from tests.plan.ledgers import holding, inventory, queue_of, request


def decided(ledger: Ledger, cluster: Inventory, now_s: float = 1.0, **options: Any) -> list[Any]:
    return decide(ledger, seen_with(cluster, ledger, suspects={}), now_s, **options)


def granted_to(decisions: list[Any]) -> dict[str, list[str]]:
    return {
        each.request.owner: [planned.name for planned in each.plan.slices]
        for each in decisions
        if isinstance(each, Grant)
    }


def test_first_come_first_served_within_a_band():
    """Who asked later does not overtake."""
    ledger = queue_of(request("first"), request("second"), request("third"))

    decisions = decided(ledger, inventory(2))

    assert granted_to(decisions) == {"first": ["slice-0"], "second": ["slice-1"]}
    [wait] = [each for each in decisions if isinstance(each, Wait)]
    assert (wait.request.owner, wait.ahead) == ("third", 2)


def test_a_higher_priority_goes_first():
    ledger = queue_of(request("early"), request("urgent", priority=5))

    assert granted_to(decided(ledger, inventory(1))) == {"urgent": ["slice-0"]}


def test_a_small_request_does_not_take_what_a_blocked_large_one_waits_for():
    """Small jobs that slip past a large one for ever starve it."""
    ledger = holding(Ledger(), "runs", ["slice-0"])
    ledger = queue_of(request("large", 2), request("small", 1), ledger=ledger)

    decisions = decided(ledger, inventory(2))

    assert granted_to(decisions) == {}
    waits = {each.request.owner: each for each in decisions if isinstance(each, Wait)}
    verdicts = {verdict.name: verdict for verdict in waits["small"].diagnosis.slices}
    assert verdicts["slice-1"].state == "kept"
    assert "large" in verdicts["slice-1"].why


def test_a_request_may_pass_on_slices_that_the_blocked_one_cannot_use():
    ledger = holding(Ledger(), "runs", ["slice-0"])
    other = slice_state("other", topology="2x2", hosts=1)
    cluster = Inventory(slices=(*inventory(1).slices, other))
    small = request("small", want=slices(topology="2x2", chips_per_host=4))
    ledger = queue_of(request("blocked"), small, ledger=ledger)

    assert granted_to(decided(ledger, cluster)) == {"small": ["other"]}


def test_a_part_does_not_take_what_a_blocked_whole_slice_waits_for():
    """Small parts that come and go would keep a divided slice divided for ever."""
    divided = Inventory(slices=(slice_state("square", topology="4x4", hosts=4),))
    half = slices(topology="2x4", sub_slice=True)
    ledger = queue_of(request("left", want=half))
    [grant] = decided(ledger, divided)
    ledger = entries.granted(ledger, "left", grant.plan, 0.0)
    ledger = queue_of(
        request("whole", want=slices(topology="4x4")), request("right", want=half), ledger=ledger
    )

    assert granted_to(decided(ledger, divided)) == {}
    assert granted_to(decided(entries.without_lease(ledger, "left"), divided)) == {"whole": ["square"]}


def test_nothing_is_granted_in_part():
    """Half of a gang is of no use, and held it blocks everybody else."""
    assert granted_to(decided(queue_of(request("a", 2), request("b", 2)), inventory(3))) == {
        "a": ["slice-0", "slice-1"]
    }


def test_a_blocked_request_of_higher_priority_preempts_whole_leases():
    ledger = holding(Ledger(), "gang", ["slice-0", "slice-1"], save_s=20.0)
    ledger = queue_of(request("urgent", 1, priority=1), ledger=ledger)

    decisions = decided(ledger, inventory(2), now_s=100.0)

    [preempt] = [each for each in decisions if isinstance(each, Preempt)]
    assert (preempt.lease.owner, preempt.notice) == ("gang", Notice(by="urgent", until_s=120.0))


def test_one_lease_is_preempted_when_one_is_enough_and_it_is_the_lowest_then_the_youngest():
    ledger = holding(Ledger(), "old", ["slice-0"], now_s=1.0)
    ledger = holding(ledger, "young", ["slice-1"], now_s=2.0)
    ledger = holding(ledger, "higher", ["slice-2"], now_s=3.0, priority=1)
    ledger = queue_of(request("urgent", 1, priority=2), ledger=ledger)

    assert [each.lease.owner for each in decided(ledger, inventory(3)) if isinstance(each, Preempt)] == [
        "young"
    ]


def test_nobody_is_preempted_in_vain():
    """A preemption that does not make the request fit costs work and gains nothing."""
    ledger = holding(Ledger(), "low", ["slice-0"])
    ledger = holding(ledger, "equal", ["slice-1"], priority=1)
    ledger = queue_of(request("urgent", 2, priority=1), ledger=ledger)

    assert not [each for each in decided(ledger, inventory(2)) if isinstance(each, Preempt)]


def test_nobody_is_preempted_for_slices_that_an_earlier_request_will_take():
    """``third`` would get the slice of ``low``, and still lack the idle one: that is kept for ``first``."""
    ledger = holding(Ledger(), "low", ["slice-1"])
    ledger = holding(ledger, "equal", ["slice-2"], priority=1)
    ledger = queue_of(request("first", 3, priority=1), request("third", 2, priority=1), ledger=ledger)

    assert not [each for each in decided(ledger, inventory(3)) if isinstance(each, Preempt)]


def test_a_preemption_under_way_is_not_repeated_on_others():
    ledger = holding(Ledger(), "told", ["slice-0"])
    ledger = holding(ledger, "other", ["slice-1"])
    ledger = entries.noticed(ledger, "told", Notice(by="urgent", until_s=500.0))
    ledger = queue_of(request("urgent", 1, priority=1), ledger=ledger)

    assert not [each for each in decided(ledger, inventory(2)) if isinstance(each, Preempt)]


def test_two_urgent_requests_preempt_one_lease_each():
    ledger = holding(Ledger(), "a", ["slice-0"])
    ledger = holding(ledger, "b", ["slice-1"])
    ledger = queue_of(request("urgent-1", 1, priority=1), request("urgent-2", 1, priority=1), ledger=ledger)

    preempted = [each for each in decided(ledger, inventory(2)) if isinstance(each, Preempt)]

    assert sorted(each.lease.owner for each in preempted) == ["a", "b"]
    assert [each.notice.by for each in preempted] == ["urgent-1", "urgent-2"]


def test_a_preempted_lease_ends_when_its_time_to_save_is_over():
    ledger = entries.noticed(holding(Ledger(), "low", ["slice-0"]), "low", Notice(by="urgent", until_s=50.0))

    assert decided(ledger, inventory(1), now_s=49.9) == []
    [end] = decided(ledger, inventory(1), now_s=50.0)
    assert isinstance(end, End)
    assert end.reason == "preempted by urgent"


def test_the_slices_of_an_owner_that_is_gone_are_kept_for_its_grace_and_no_longer():
    ledger = holding(Ledger(), "gone", ["slice-0"], orphan_grace_s=10.0)
    ledger = entries.owner_gone(ledger, "gone", 100.0)

    assert decided(ledger, inventory(1), now_s=109.0) == []
    [end] = decided(ledger, inventory(1), now_s=110.0)
    assert isinstance(end, End)
    assert end.reason == "their owner was silent for more than 20 s (deadlines.orphan_grace_s)"
    assert decided(entries.owner_back(ledger, "gone"), inventory(1), now_s=200.0) == []


def test_a_request_is_refused_at_its_deadline_with_a_reason_for_each_slice():
    ledger = queue_of(request("late", deadline_s=10.0), ledger=holding(Ledger(), "runs", ["slice-0"]))

    assert isinstance(decided(ledger, inventory(1), now_s=9.0)[0], Wait)
    [refuse] = decided(ledger, inventory(1), now_s=10.0)
    assert isinstance(refuse, Refuse)
    assert "held by runs" in str(refuse.error)


def test_what_can_never_fit_is_refused_at_once_unless_the_cluster_can_grow():
    ledger = queue_of(request("greedy", 3))

    [refuse] = decided(ledger, inventory(2))
    assert isinstance(refuse, Refuse)
    [wait] = decided(ledger, inventory(2), growable={"greedy"})
    assert isinstance(wait, Wait)


def test_a_slice_under_quarantine_is_not_given_out():
    ledger = entries.quarantined(
        queue_of(request("job")), Quarantine(slice_name="slice-0", reason="flaky optics", since_s=0.0)
    )

    assert granted_to(decided(ledger, inventory(2))) == {"job": ["slice-1"]}


def test_a_host_that_does_not_answer_keeps_its_slice_from_being_given_out():
    """Ray takes 13 s to see that a host is dead; a gang placed there in between never starts."""
    cluster = Inventory(
        slices=(
            slice_state("slice-0", host_states=(host(0, node_id="n0"), host(1, node_id="n1"))),
            slice_state("slice-1"),
        )
    )
    ledger = queue_of(request("job"))

    seen = seen_with(cluster, ledger, suspects={"n1": "its raylet refuses connections"})

    assert granted_to(decide(ledger, seen, 1.0)) == {"job": ["slice-1"]}


def test_a_slice_just_given_back_can_be_had_although_ray_still_shows_it_busy():
    """Ray's view of free chips is up to a second old."""
    busy = slice_state("slice-0", host_states=(host(0, chips_free=0), host(1, chips_free=0)))
    ledger = queue_of(request("job"))

    assert granted_to(decided(ledger, Inventory(slices=(busy,)))) == {}
    seen = seen_with(Inventory(slices=(busy,)), ledger, suspects={}, settling={"slice-0"})
    assert granted_to(decide(ledger, seen, 1.0)) == {"job": ["slice-0"]}


def test_hosts_that_the_book_keeps_from_the_autoscaler_can_be_had():
    """They came up for somebody who waits, and a host that nobody has is taken away as idle."""
    ours = slice_state(
        "slice-0", host_states=(host(0, chips_free=0, node_id="n0"), host(1, chips_free=0, node_id="n1"))
    )
    ledger = queue_of(request("job"))

    half = seen_with(Inventory(slices=(ours,)), ledger, suspects={}, kept_nodes={"n0"})
    assert granted_to(decide(ledger, half, 1.0)) == {}
    whole = seen_with(Inventory(slices=(ours,)), ledger, suspects={}, kept_nodes={"n0", "n1"})
    assert granted_to(decide(ledger, whole, 1.0)) == {"job": ["slice-0"]}


def test_a_job_that_the_book_does_not_know_is_seen_beside_a_part():
    """Granted chips that a stock Ray job has are never placed, again and again."""
    single = slice_state("single", chips_per_host=8, host_states=(host(0, chips=8, chips_free=4),))
    chip = slices(topology="1x1", chips_per_host=None, sub_slice=True)
    ledger = queue_of(request("ours", want=chip))
    [grant] = decided(ledger, Inventory(slices=(single,)))
    ledger = entries.granted(ledger, "ours", grant.plan, 0.0)
    ledger = queue_of(request("next", want=chip), ledger=ledger)
    full = replace(single, hosts=(host(0, chips=8, chips_free=0),))  # 1 is ours, 7 are theirs

    assert granted_to(decided(ledger, Inventory(slices=(full,)))) == {}


def test_a_lease_that_is_ending_still_keeps_its_slices():
    """They are given out again when Ray has them back, not when somebody decided so."""
    ledger = entries.ending(holding(Ledger(), "ends", ["slice-0"]), "ends")
    ledger = queue_of(request("next"), ledger=ledger)

    assert granted_to(decided(ledger, inventory(1))) == {}
    assert granted_to(decided(entries.without_lease(ledger, "ends"), inventory(1))) == {"next": ["slice-0"]}


def lease_of(ledger: Ledger, owner: str) -> Lease:
    lease = ledger.lease(owner)
    assert lease is not None
    return lease


def test_a_request_that_could_not_be_placed_waits_at_its_old_place():
    """A race lost to a stock Ray job must not cost the place in the queue."""
    ledger = queue_of(request("first"), request("second"))
    ledger = entries.granted(ledger, "first", plan_gang(slices(), inventory(1)), 1.0)

    ledger = entries.unplaced(ledger, "first")

    assert [each.owner for each in ledger.requests] == ["first", "second"]


def test_what_ray_does_not_give_is_not_tried_again_after_the_deadline():
    """A host without a free CPU looks idle: the request would come back for it for ever."""
    ledger = queue_of(request("job", deadline_s=10.0))
    assert granted_to(decided(ledger, inventory(1), now_s=10.0)) == {"job": ["slice-0"]}, "its first try"
    ledger = entries.granted(ledger, "job", plan_gang(slices(), inventory(1)), 1.0)
    ledger = entries.unplaced(ledger, "job")

    assert granted_to(decided(ledger, inventory(1), now_s=9.0)) == {"job": ["slice-0"]}
    [refuse] = decided(ledger, inventory(1), now_s=10.0)
    assert isinstance(refuse, Refuse)
    assert "Ray was asked once for slices that it shows idle, and gave none" in str(refuse.error)


def test_a_grant_that_its_owner_has_not_heard_of_is_recalled_and_waits_again():
    """Its ``hold`` must not end with the news that what it never had was taken back."""
    ledger = queue_of(request("early"))
    ledger = entries.granted(ledger, "early", plan_gang(slices(), inventory(1)), 1.0)
    ledger = queue_of(request("urgent", priority=1), ledger=ledger)

    [recall] = [each for each in decided(ledger, inventory(1)) if isinstance(each, Recall)]
    assert (recall.lease.owner, recall.by) == ("early", "urgent")
    ledger = entries.given_back(entries.recalled(ledger, "early"), "early")

    assert granted_to(decided(ledger, inventory(1))) == {"urgent": ["slice-0"]}
    assert [each.owner for each in ledger.requests] == ["early", "urgent"]


def test_what_could_not_be_placed_for_an_owner_that_is_gone_does_not_wait_again():
    ledger = entries.granted(queue_of(request("gone")), "gone", plan_gang(slices(), inventory(1)), 1.0)

    assert entries.unplaced(entries.owner_gone(ledger, "gone", 2.0), "gone").requests == ()


def test_a_lease_loses_a_slice_and_goes_on_and_is_over_without_its_last():
    ledger = holding(Ledger(), "job", ["slice-0", "slice-1"])

    ledger = entries.slice_lost(ledger, "job", "slice-0", "host 1 died")
    assert [planned.name for planned in lease_of(ledger, "job").slices] == ["slice-1"]
    assert lease_of(ledger, "job").lost == (("slice-0", "host 1 died"),)

    assert entries.slice_lost(ledger, "job", "slice-1", "host 0 died").lease("job") is None


def test_a_host_that_fails_to_start_three_times_in_a_row_puts_its_slice_under_quarantine():
    ledger = Ledger()
    for now_s in (1.0, 2.0):
        ledger = entries.start_failed(ledger, "slice-0", "slice-0/1", "libtpu is busy", now_s)
    assert entries.started_well(ledger, "slice-0").failures == ()

    ledger = entries.start_failed(ledger, "slice-0", "slice-0/1", "libtpu is busy", 3.0)

    [quarantine] = ledger.quarantines
    assert quarantine.reason == "host slice-0/1 failed to start 3 times in a row; last: libtpu is busy"
    assert entries.lifted(ledger, "slice-0") == replace(ledger, quarantines=(), failures=())


def test_a_slice_is_never_entered_twice():
    """The last line of defence: a bug in the rules must not become two jobs on one slice."""
    ledger = queue_of(request("second"), ledger=holding(Ledger(), "first", ["slice-0"]))

    with pytest.raises(ValueError, match="slice-0 would be held twice: by first and second"):
        entries.granted(ledger, "second", plan_gang(slices(), inventory(1)), 1.0)
