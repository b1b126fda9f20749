"""The rules of the book, under anything that can happen, against a world that is counted chip by chip."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from raytpu.plan import ledger as entries
from raytpu.plan.ledger import Ledger, Notice, Quarantine, Request
from raytpu.plan.occupancy import seen_with
from raytpu.plan.queue import Decision, End, Grant, Preempt, Recall, Refuse, Wait, decide
from tests.plan.chip_world import CLUSTER, HOSTS, STOCK, Held, World, never
from tests.plan.random_requests import requests

SOAK_EXAMPLES = int(os.environ.get("RAYTPU_SOAK_EXAMPLES", "1500"))

NAMES = sorted(CLUSTER)
PLACES = [(name, worker) for name in NAMES for worker in range(HOSTS[CLUSTER[name][0]])]


PICKS = st.integers(0, 999)


def one_of(things: Sequence[Any], pick: int) -> Any:
    return things[pick % len(things)]


def some(what: Callable[[Book], Sequence[Any]]) -> Callable[[Any], Any]:
    """Only when there is one to choose."""
    return precondition(lambda book: bool(what(book)))


def in_state(*states: str) -> Callable[[Book], list[str]]:
    return lambda book: [held.request.id for held in book.held.values() if held.state in states]


placing, held_, ending = in_state("placing"), in_state("held"), in_state("ending")
there = in_state("placing", "held")


def orphaned(book: Book) -> list[str]:
    return [each for each in there(book) if book.held[each].gone_since_s is not None]


class Book(RuleBasedStateMachine):
    """A ledger, and beside it a world of chips to which everything really happens."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger, self.world, self.now_s = Ledger(), World(), 0.0
        self.waiting: dict[str, Request] = {}
        self.held: dict[str, Held] = {}
        self.lagging: set[str] = set()
        self.settling: set[str] = set()
        self.asked = 0

    # -- what can happen -------------------------------------------------------------------------------

    @initialize(wishes=st.lists(requests(), min_size=3, max_size=8))
    def jobs_run(self, wishes: list[Request]) -> None:
        """What follows happens to a cluster that is in use."""
        for wish in wishes:
            self.somebody_asks(replace(wish, priority=0, deadline_s=500.0))

    @rule(wish=requests())
    def somebody_asks(self, wish: Request) -> None:
        self.asked += 1
        name = f"r{self.asked}"
        request = replace(
            wish,
            id=name,
            owner=name,
            arrived=self.asked,
            arrived_s=self.now_s,
            deadline_s=self.now_s + wish.deadline_s,
        )
        self.ledger = entries.with_request(self.ledger, request)
        self.waiting[name] = request

    @rule(wishes=st.lists(requests(), min_size=2, max_size=4))
    def several_ask(self, wishes: list[Request]) -> None:
        for wish in wishes:
            self.somebody_asks(wish)

    @some(there)
    @rule(pick=PICKS)
    def release(self, pick: int) -> None:
        self._end(one_of(there(self), pick))

    @some(ending)
    @rule(pick=PICKS, ray_lags=st.booleans())
    def take_back(self, pick: int, ray_lags: bool) -> None:
        lease_id = one_of(ending(self), pick)
        self.ledger = entries.given_back(self.ledger, lease_id)
        self.world.take_back(lease_id)
        held = self.held.pop(lease_id)
        if ray_lags:
            self.settling |= {name for name in held.slices if not self.world.has_stock(name)}
        if held.recalled and held.gone_since_s is None:
            self.waiting[lease_id] = held.request

    @some(placing)
    @rule(pick=PICKS)
    def place(self, pick: int) -> None:
        lease_id = one_of(placing(self), pick)
        self.ledger = entries.placed(self.ledger, lease_id, self.now_s)
        self.held[lease_id].state = "held"

    @some(placing)
    @rule(pick=PICKS)
    def fail_to_place(self, pick: int) -> None:
        self._unplace(one_of(placing(self), pick))

    @some(lambda book: list(book.waiting))
    @rule(pick=PICKS)
    def give_up(self, pick: int) -> None:
        request_id = one_of(list(self.waiting), pick)
        self.ledger = entries.without_request(self.ledger, request_id)
        del self.waiting[request_id]

    @some(there)
    @rule(pick=PICKS)
    def owner_dies(self, pick: int) -> None:
        lease_id = one_of(there(self), pick)
        self.ledger = entries.owner_gone(self.ledger, lease_id, self.now_s)
        held = self.held[lease_id]
        held.gone_since_s = self.now_s if held.gone_since_s is None else held.gone_since_s

    @some(orphaned)
    @rule(pick=PICKS)
    def successor_comes(self, pick: int) -> None:
        lease_id = one_of(orphaned(self), pick)
        self.ledger = entries.owner_back(self.ledger, lease_id)
        self.held[lease_id].gone_since_s = None

    @rule(seconds=st.sampled_from([1.0, 4.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @some(lambda book: sorted(book.world.silent | book.world.dead))
    @rule(pick=PICKS)
    def ray_notices_or_a_new_host_comes(self, pick: int) -> None:
        place = one_of(sorted(self.world.silent | self.world.dead), pick)
        if place in self.world.dead:
            self.world.dead.discard(place)
        else:
            self.world.silent.discard(place)
            self.world.dead.add(place)

    @precondition(lambda book: len(book.world.silent | book.world.dead) < 2)
    @rule(place=st.sampled_from(PLACES))
    def lose_host(self, place: tuple[str, int]) -> None:
        name, worker = place
        if place in self.world.dead:
            return
        self.world.silent.add((name, worker))
        for lease_id in held_(self):
            held = self.held[lease_id]
            lease = self.ledger.lease(lease_id)
            assert lease is not None
            if any(
                (process.slice_name, process.worker_id) == (name, worker) for process in lease.plan.processes
            ):
                self.ledger = entries.slice_lost(self.ledger, lease_id, name, "silent")
                self.world.take_back(lease_id, {name})
                held.slices.discard(name)
                if not held.slices:
                    del self.held[lease_id]

    @precondition(lambda book: not book.world.quarantined)
    @rule(name=st.sampled_from(NAMES), failing=st.booleans())
    def quarantine(self, name: str, failing: bool) -> None:
        if failing:
            for _ in range(entries.START_FAILURES_TO_QUARANTINE):
                self.ledger = entries.start_failed(self.ledger, name, f"{name}/0", "no", self.now_s)
        else:
            reason = Quarantine(slice_name=name, reason="flaky", since_s=self.now_s)
            self.ledger = entries.quarantined(self.ledger, reason)
        self.world.quarantined.add(name)

    @some(lambda book: sorted(book.world.quarantined))
    @rule(pick=PICKS)
    def lift(self, pick: int) -> None:
        name = one_of(sorted(self.world.quarantined), pick)
        self.ledger = entries.lifted(self.ledger, name)
        self.world.quarantined.discard(name)

    @rule(place=st.sampled_from(PLACES), chips=st.sampled_from([1, 4]), pick=PICKS)
    def stock_job_comes_or_goes(self, place: tuple[str, int], chips: int, pick: int) -> None:
        name, worker = place
        row = self.world.chips[name][worker]
        if STOCK in row:
            row[:] = [None if taken == STOCK else taken for taken in row]
        elif name not in self.settling and all(taken is None for taken in row) and pick % 3 == 0:
            row[:chips] = [STOCK] * chips  # on a host without leases: there Ray's view is what counts

    @rule(name=st.sampled_from(NAMES))
    def ray_lags_or_catches_up(self, name: str) -> None:
        self.settling.discard(name)
        self.lagging ^= {name}

    @rule()
    def book_restarts(self) -> None:
        self.ledger = pickle.loads(pickle.dumps(self.ledger))
        for lease_id in placing(self):
            self._unplace(lease_id)

    def _unplace(self, lease_id: str) -> None:
        self.ledger = entries.unplaced(self.ledger, lease_id)
        self.world.take_back(lease_id)
        held = self.held.pop(lease_id)
        if held.gone_since_s is None:
            self.waiting[lease_id] = replace(held.request, tries=held.request.tries + 1)

    def _end(self, lease_id: str) -> None:
        self.ledger = entries.ending(self.ledger, lease_id)
        self.held[lease_id].state, self.held[lease_id].recalled = "ending", False

    # -- what the book makes of it ---------------------------------------------------------------------

    @invariant()
    def a_turn_is_right(self) -> None:
        decisions = self._decide(self.ledger, self.world)
        self._check_ends(decisions)
        self._check_order(decisions)
        self._check_preemptions(decisions)
        self._check_settled()
        self._check_ledger()

    def _decide(self, ledger: Ledger, world: World) -> list[Decision]:
        suspects = {f"{name}/{worker}": "silent" for name, worker in world.silent}
        inventory = world.inventory(self.lagging)
        seen = seen_with(inventory, ledger, suspects=suspects, settling=self.settling)
        return decide(ledger, seen, self.now_s)

    def _check_ends(self, decisions: list[Decision]) -> None:
        """A lease ends when its grace or its notice is over, not sooner, not later."""
        due = {
            held.request.id
            for held in self.held.values()
            if held.state != "ending"
            and (
                (held.told_until_s is not None and self.now_s >= held.told_until_s)
                or (
                    held.gone_since_s is not None
                    and self.now_s >= held.gone_since_s + held.request.orphan_grace_s
                )
            )
        }
        ended = [each.lease.id for each in decisions if isinstance(each, End)]
        assert sorted(ended) == sorted(due)
        for lease_id in ended:
            self._end(lease_id)

    def _check_order(self, decisions: list[Decision]) -> None:
        """Everybody in turn gets what is left, all or nothing; who waits keeps what it waits for."""
        grants = {each.request.id: each.plan for each in decisions if isinstance(each, Grant)}
        refused = {each.request.id for each in decisions if isinstance(each, Refuse)}
        waits = {each.request.id for each in decisions if isinstance(each, Wait)}
        assert sorted([*grants, *refused, *waits]) == sorted(self.waiting), "one answer for each"
        kept: set[str] = set()
        for request in sorted(self.waiting.values(), key=lambda each: (-each.priority, each.arrived)):
            if request.id in grants:
                assert self.now_s < request.deadline_s or not request.tries, "for ever tried again"
                self.world.check_plan(request.want, grants[request.id], kept)
                self._grant(request, grants[request.id])
                continue
            late = self.now_s >= request.deadline_s
            served = self.world.offer(request.want, kept) is not None and not (late and request.tries)
            assert not served, f"{request.id} could have been served"
            hopeless = late or never(request.want)
            assert (request.id in refused) == hopeless
            if hopeless:
                self.ledger = entries.without_request(self.ledger, request.id)
                del self.waiting[request.id]
            else:
                kept |= self.world.awaited(request.want)

    def _grant(self, request: Request, plan: Any) -> None:
        self.ledger = entries.granted(self.ledger, request.id, plan, self.now_s)
        self.world.give(request.id, plan)
        names = {planned.name for planned in plan.slices}
        self.held[request.id] = Held(request=self.waiting.pop(request.id), slices=names)

    def _check_preemptions(self, decisions: list[Decision]) -> None:
        """Only of a lower priority, only once, never in vain, and always when it helps."""
        told = {held.request.id for held in self.held.values() if held.state == "ending" or held.told_until_s}
        by: dict[str, list[str]] = {}
        for each in decisions:
            if not isinstance(each, Preempt | Recall):
                continue
            beneficiary = each.notice.by if isinstance(each, Preempt) else each.by
            assert each.lease.id not in told
            assert each.lease.request.priority < self.waiting[beneficiary].priority
            by.setdefault(beneficiary, []).append(each.lease.id)
            held = self.held[each.lease.id]
            if isinstance(each, Recall):
                assert held.state == "placing", "its owner has it already"
                self.ledger = entries.recalled(self.ledger, each.lease.id)
                held.state, held.recalled = "ending", True
            else:
                assert held.state == "held", "its owner does not know of it yet"
                assert each.notice.until_s == self.now_s + each.lease.request.save_s
                self._tell(each.lease.id, each.notice)
        victims = [lease_id for each in by.values() for lease_id in each]
        assert len(set(victims)) == len(victims)
        lowest = min((held.request.priority for held in self.held.values()), default=9)
        hopeful = [request for request in self.waiting.values() if request.priority > lowest]
        if not hopeful:
            return
        served = self._served_without({*told, *victims})
        assert set(by) <= served, "preempted in vain"
        if len(by) == 1:
            for spared in victims:
                rest = {*told, *victims} - {spared}
                assert not served <= self._served_without(rest), f"{spared} need not go"
        for request in hopeful:
            if request.id not in served:
                lower = {
                    held.request.id for held in self.held.values() if held.request.priority < request.priority
                }
                helped = self._served_without({*told, *victims, *lower})
                assert not {request.id, *served} <= helped, "nobody was told"

    def _tell(self, lease_id: str, notice: Notice) -> None:
        self.ledger = entries.noticed(self.ledger, lease_id, notice)
        self.held[lease_id].told_until_s = notice.until_s

    def _served_without(self, lease_ids: set[str]) -> set[str]:
        """Who would be served if these leases were gone."""
        ledger = self.ledger
        for lease_id in lease_ids:
            ledger = entries.without_lease(ledger, lease_id)
        decisions = self._decide(ledger, self.world.without(sorted(lease_ids)))
        return {each.request.id for each in decisions if isinstance(each, Grant)}

    def _check_settled(self) -> None:
        """When nothing happens, nothing more is decided."""
        again = self._decide(self.ledger, self.world)
        due = [each for each in again if not isinstance(each, Wait)]
        # Who was told and had no time to ask for ends in the next turn.
        assert all(isinstance(each, End) and each.lease.notice is not None for each in due)

    def _check_ledger(self) -> None:
        assert [each.id for each in self.ledger.requests] == sorted(
            self.waiting, key=lambda request_id: self.waiting[request_id].arrived
        )
        for lease in self.ledger.leases:
            held = self.held[lease.id]
            assert (lease.state, lease.gone_since_s) == (held.state, held.gone_since_s)
            assert {planned.name for planned in lease.slices} == held.slices
        assert len(self.ledger.leases) == len(self.held)
        assert {each.slice_name for each in self.ledger.quarantines} == self.world.quarantined


def run(examples: int, steps: int, *, derandomize: bool) -> None:
    run_state_machine_as_test(
        Book,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=derandomize,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(120)
def test_the_rules_hold_whatever_happens():
    """Each rule alone is tested next door; two jobs on one slice come from rules that meet."""
    run(50, 25, derandomize=True)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_rules_hold_whatever_happens_for_long():
    run(SOAK_EXAMPLES, 60, derandomize=False)
