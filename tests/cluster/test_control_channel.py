"""Requests and answers between the owner and the keeper."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from raytpu.cluster.control_channel import Channel, error_message
from raytpu.errors import DeadlineExceeded, RaytpuError, Refused, WrongRequest


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    """The two ends of one connection."""
    here, there = socket.socketpair()
    with here, there:
        yield Channel(here), Channel(there)


def answering(there: Channel, *answers: Callable[[int], dict]) -> threading.Thread:
    def answer() -> None:
        for make in answers:
            messages = there.receive()
            assert messages is not None
            there.send(make(messages[0]["id"]))

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def test_an_answer_comes_back_without_its_number(pair):
    """What is shown to users holds nothing of the protocol."""
    here, there = pair
    thread = answering(there, lambda number: {"value": 1, "id": number})

    assert here.ask({"op": "state"}, 5) == {"value": 1}
    thread.join()


@pytest.mark.parametrize("error", [WrongRequest("no slice 'x'"), Refused("is up"), DeadlineExceeded("y", 1)])
def test_an_error_of_the_keeper_is_raised_in_the_owner(pair, error: RaytpuError):
    """The owner's exit code depends on the kind: 2 for a wrong request, 3 for a refusal."""
    here, there = pair
    thread = answering(there, lambda number: {**error_message(error), "id": number})

    with pytest.raises(WrongRequest if error.exit_code == 2 else Refused) as raised:
        here.ask({"op": "lose_host"}, 5)
    assert str(raised.value) == str(error)
    thread.join()


def test_an_answer_that_came_too_late_is_not_taken_for_the_next(pair):
    """Else every answer after one slow one would be that of the request before."""
    here, there = pair
    with pytest.raises(DeadlineExceeded, match="keeper"):
        here.ask({"op": "first"}, 0.01)
    there.send({"of": "first", "id": 1})
    there.receive()
    there.send({"of": "second", "id": 2})

    assert here.ask({"op": "second"}, 5) == {"of": "second"}


def test_a_keeper_that_is_gone_is_a_refusal(pair):
    """Not a hang, and not a bare BrokenPipeError."""
    here, there = pair
    there.close()

    with pytest.raises(Refused, match="has ended"):
        here.ask({"op": "state"}, 5)


def test_messages_arrive_whole_in_whatever_pieces():
    """A socket cuts where it likes."""
    raw, there = socket.socketpair()
    with raw, there:
        receiving = Channel(there)
        raw.sendall(b'{"a": 1}\n{"b"')
        assert receiving.receive() == [{"a": 1}]
        raw.sendall(b": 2}\n")
        assert receiving.receive() == [{"b": 2}]
        raw.close()
        assert receiving.receive() is None
