"""A request that cannot be served is refused, and the book goes on for everybody else."""

from __future__ import annotations

import queue
import socket
import threading
from dataclasses import replace
from multiprocessing.connection import Connection
from pickle import UnpicklingError
from typing import Any

import pytest
from ray.exceptions import RaySystemError

import raytpu
from raytpu.errors import Refused, WrongRequest
from raytpu.gang import bookkeeper, holdings, lease, placement, stream
from raytpu.gang.bookkeeper import Bookkeeper
from raytpu.gang.cluster_view import ClusterView
from raytpu.gang.desk import Caller, Heard
from raytpu.gang.holdings import Failed, Holdings
from raytpu.plan.ledger import Ledger, Request
from tests.plan.builders import slices
from tests.plan.ledgers import inventory, request


def ask(**changes: Any) -> stream.Ask:
    return stream.Ask(request=replace(request("job"), **changes), session="s")


def call() -> tuple[Caller, Connection]:
    """A caller of the book, and the owner's end of its stream."""
    here, there = socket.socketpair()
    return Caller(Connection(here.detach())), Connection(there.detach())


def test_hold_tells_everything_that_is_wrong_with_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lease.ray, "is_initialized", lambda: True)
    wrong: dict[str, Any] = {"owner": 3, "priority": True, "lease_id": 7, "timeout_s": "1", "save_s": 10**400}

    with pytest.raises(WrongRequest) as caught:
        raytpu.hold("v6e", **wrong)  # type: ignore[arg-type]

    for name in ("slices is 'v6e'", "owner is 3", "priority is True", "lease_id is 7", "timeout_s is '1'"):
        assert name in str(caught.value)
    assert "save_s is 1000" in str(caught.value)


@pytest.mark.parametrize("owner", ["", " ", None])
def test_an_owner_says_who_it_is(monkeypatch: pytest.MonkeyPatch, owner: Any):
    monkeypatch.setattr(lease.ray, "is_initialized", lambda: True)

    with pytest.raises(WrongRequest, match=r"owner is .*, expected a text"):
        raytpu.hold(slices(), owner=owner)


@pytest.mark.parametrize(
    "wrong",
    [
        ask(owner=3),
        ask(want="2x4"),
        ask(id=None),
        ask(deadline_s=10**400),
        stream.Ask(request="r", session="s"),  # type: ignore[arg-type]
    ],
)
def test_a_request_that_no_book_can_serve_does_not_reach_it(wrong: stream.Ask):
    """Other versions and other programs write to the book as well; in the book it would raise for ever."""
    caller, owner = call()
    events: queue.SimpleQueue[str] = queue.SimpleQueue()
    reader = threading.Thread(
        target=caller.read, args=(lambda *_: events.put("heard"), lambda _: events.put("left"))
    )
    reader.start()

    owner.send(wrong)

    answer = owner.recv()
    assert isinstance(answer, stream.Refused)
    assert isinstance(answer.error, WrongRequest)
    with pytest.raises(EOFError):
        owner.recv()
    reader.join(5)
    assert [events.get(timeout=5), events.empty()] == ["left", True]


def test_an_owner_whose_message_cannot_be_read_has_left():
    """Else its lease would look owned until it is silent for too long."""
    caller, owner = call()
    left: list[Caller] = []
    owner.send_bytes(b"no pickle")

    with pytest.raises(UnpicklingError):
        caller.read(lambda *_: None, left.append)

    assert left == [caller]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> queue.SimpleQueue[Any]:
    """What falls into the inbox of a book that runs without Ray, on two free slices."""
    view = ClusterView(
        inventory=inventory(2), raylets={}, heads={}, contested=frozenset(), taken_s=float("inf")
    )
    monkeypatch.setattr(bookkeeper, "read_ledger", Ledger)
    monkeypatch.setattr(bookkeeper, "write_ledger", lambda _: None)
    monkeypatch.setattr(bookkeeper, "look", lambda: view)
    monkeypatch.setattr(bookkeeper.HealthWatch, "watch", lambda *_: None)
    monkeypatch.setattr(Holdings, "reconcile", lambda _, ledger: ledger)
    monkeypatch.setattr(Holdings, "_unwell", lambda *_: {})
    monkeypatch.setattr(bookkeeper.Growth, "want", lambda *_: None)
    monkeypatch.setattr(bookkeeper.Growth, "hopeful", lambda *_: False)
    return queue.SimpleQueue()


def test_a_placement_that_raises_ends_its_request_and_not_the_book(
    monkeypatch: pytest.MonkeyPatch, events: queue.SimpleQueue[Any]
):
    def place(lease: Any, *_: Any) -> dict[str, Any]:
        if lease.owner == "bad":
            raise TypeError("no name")
        return {}

    monkeypatch.setattr(placement, "place", place)
    keeper = Bookkeeper(events.put)
    answers = {}
    for name in ("bad", "good"):
        caller, owner = call()
        asked = Request(
            id=name, owner=name, want=slices(2), arrived=0, arrived_s=0.0, deadline_s=60.0, silence_s=60.0
        )
        keeper.turn([Heard(caller, stream.Ask(request=asked, session=name))])
        while not owner.poll(0):
            keeper.turn([events.get(timeout=5)])
        answers[name] = owner.recv()

    assert isinstance(answers["bad"], stream.Refused)
    assert isinstance(answers["bad"].error, Refused)
    assert "the slices of 'bad' could not be taken: TypeError: no name" in str(answers["bad"].error)
    assert isinstance(answers["good"], stream.Granted)


def test_where_ray_may_have_made_a_group_the_book_begins_anew(
    monkeypatch: pytest.MonkeyPatch, events: queue.SimpleQueue[Any]
):
    """A group that nobody knows of would keep its slice for ever; the start of a book finds it."""

    def place(*_: Any) -> None:
        raise RaySystemError("the answer did not come")

    monkeypatch.setattr(holdings.placement, "place", place)
    keeper = Bookkeeper(events.put)
    caller, _ = call()

    keeper.turn([Heard(caller, ask(deadline_s=60.0))])

    event = events.get(timeout=5)
    assert isinstance(event, Failed)
    with pytest.raises(RaySystemError):
        keeper.turn([event])
