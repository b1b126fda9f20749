"""A joiner gets exactly the state of one step, whole, from a donor that goes on working; or it learns why
not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

from raytpu.errors import DeadlineExceeded, HostMismatch, Refused
from raytpu.train.replicas.array_layout import ArraySpec, specs_of
from raytpu.train.replicas.endpoint import Endpoint
from raytpu.train.replicas.frames import PeerLost
from raytpu.train.replicas.peer_exchange import PeerExchange, Round
from raytpu.train.replicas.state_transfer import Provider, pull_state, serve_state

TOKEN = b"t" * 32
DEADLINE_S = 20.0


@pytest.fixture
def endpoint() -> Iterator[Callable[[str], Endpoint]]:
    made: list[Endpoint] = []

    def make(me: str) -> Endpoint:
        made.append(Endpoint(me, token=TOKEN))
        return made[-1]

    yield make
    for each in made:
        each.close()


def state(megabytes: int = 3) -> list[np.ndarray]:
    """As a train state: parameters, moments, counters, a key; odd sizes and an empty array."""
    random = np.random.default_rng(0)
    return [
        random.standard_normal(megabytes * 250_001).astype(np.float32),
        random.standard_normal((13, 7)).astype(ml_dtypes.bfloat16),
        np.array(41, np.int32),
        np.array([1, 2], np.uint32),
        np.empty((0, 4), np.float32),
        np.array([True, False]),
        np.asfortranarray(random.standard_normal((30, 20))),
    ]


def pull(
    joiner: Endpoint,
    donor: Endpoint,
    like: list[np.ndarray],
    *,
    step: int = 7,
    deadline_s: float = DEADLINE_S,
    address: tuple[str, int] | None = None,
) -> list[np.ndarray]:
    return pull_state(
        joiner,
        donor.me,
        address or donor.address,
        step=step,
        epoch=2,
        like=specs_of(like),
        deadline_s=deadline_s,
    )


def given_by(endpoint: Callable[[str], Endpoint], provider: Provider) -> tuple[Endpoint, Endpoint]:
    """A joiner and a donor that gives what ``provider`` has."""
    donor = endpoint("donor")
    serve_state(donor, provider)
    return endpoint("joiner"), donor


def test_the_joiner_has_the_very_bytes_of_the_donor(endpoint):
    whole = state()
    asked = []
    joiner, donor = given_by(endpoint, lambda step: asked.append(step) or whole)

    got = pull(joiner, donor, whole)

    assert asked == [7]
    assert [(a.shape, a.dtype) for a in got] == [(a.shape, a.dtype) for a in whole]
    assert all(one.tobytes() == other.tobytes() for one, other in zip(got, whole, strict=True))


def test_several_joiners_are_served_at_the_same_time(endpoint):
    whole = state()
    together = threading.Barrier(3)
    _, donor = given_by(endpoint, lambda _: together.wait(10) is None or whole)
    joiners = [endpoint(f"joiner-{index}") for index in range(3)]

    with ThreadPoolExecutor(3) as pool:
        for got in pool.map(lambda joiner: pull(joiner, donor, whole), joiners):
            assert got[0].tobytes() == whole[0].tobytes()


def test_a_state_of_another_model_is_refused_naming_what_differs(endpoint):
    whole = state()
    joiner, donor = given_by(endpoint, lambda _: whole)
    like = [ArraySpec((1, *spec.shape), spec.dtype) for spec in specs_of(whole)]

    with pytest.raises(HostMismatch) as caught:
        pull_state(joiner, "donor", donor.address, step=7, epoch=2, like=like, deadline_s=5)

    assert "array 1: bfloat16[13,7] there, bfloat16[1,13,7] here" in str(caught.value)
    assert "and 4 more" in str(caught.value)


def test_a_state_with_another_number_of_arrays_is_refused(endpoint):
    whole = state()
    joiner, donor = given_by(endpoint, lambda _: whole)

    with pytest.raises(HostMismatch, match="has 7 arrays, ours 6"):
        pull(joiner, donor, whole[:-1])


def test_a_donor_that_does_not_have_the_step_says_so(endpoint):
    def provider(step: int) -> list[np.ndarray]:
        raise Refused(f"the state after step {step} is gone")

    joiner, donor = given_by(endpoint, provider)

    with pytest.raises(PeerLost, match="the state after step 7 is gone"):
        pull(joiner, donor, state())


def test_a_donor_that_does_not_come_to_the_step_is_late(endpoint):
    never = threading.Event()
    joiner, donor = given_by(endpoint, lambda _: state() if never.wait(20) else [])

    with pytest.raises(DeadlineExceeded) as caught:
        pull(joiner, donor, state(), deadline_s=0.3)

    never.set()
    assert caught.value.late == ("donor",)


Change = Callable[[int, bytes], bytes | None]


def relay(target: tuple[str, int], change: Change) -> socket.socket:
    """The listening socket of one connection to ``target``, whose answers pass through ``change``; ``None``
    ends it. The first argument is the number of bytes that came before."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, sink: socket.socket, through: Change) -> None:
        seen = 0
        try:
            while data := source.recv(65536):
                passed = through(seen, data)
                if passed is None:
                    break
                sink.sendall(passed)
                seen += len(data)
        except OSError:
            pass
        for each in (source, sink):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def run() -> None:
        near, _ = listener.accept()
        with near, socket.create_connection(target) as far:
            there = threading.Thread(target=pump, args=(near, far, lambda _, data: data), daemon=True)
            there.start()
            pump(far, near, change)
            there.join()

    threading.Thread(target=run, daemon=True).start()
    return listener


@pytest.mark.parametrize("byte", [0, 1, 30, 1000, 2_000_000])
def test_a_donor_that_dies_half_way_is_lost(endpoint, byte):
    whole = state()
    joiner, donor = given_by(endpoint, lambda _: whole)

    with (
        relay(donor.address, lambda seen, data: data if seen + len(data) <= byte else None) as listener,
        pytest.raises(PeerLost) as caught,
    ):
        pull(joiner, donor, whole, address=listener.getsockname())

    assert caught.value.member == "donor"


def test_damaged_bytes_are_never_taken_for_the_state(endpoint):
    whole = state()
    joiner, donor = given_by(endpoint, lambda _: whole)

    def flip(seen: int, data: bytes) -> bytes:
        at = 2_000_000 - seen
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if 0 <= at < len(data) else data

    with relay(donor.address, flip) as listener, pytest.raises(PeerLost, match="damaged"):
        pull(joiner, donor, whole, address=listener.getsockname())


def test_an_average_that_waits_for_the_joiner_does_not_hold_up_its_state(endpoint):
    """The round that admits a joiner ends only when the joiner, which first wants the state, takes part."""
    joiner, donor = given_by(endpoint, lambda _: whole)
    whole, gradient = state(20), [np.ones(5_000_000, np.float32)]
    peers = {"donor": donor.address, "joiner": joiner.address}
    exchanges = {each.me: PeerExchange(each) for each in (donor, joiner)}

    def average(me: str, own: dict[int, list[np.ndarray]]) -> list[np.ndarray]:
        work = Round(epoch=2, step=8, me=me, peers=peers, parts=("donor",))
        return exchanges[me].average(own, work, like=specs_of(gradient), deadline_s=DEADLINE_S)

    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(average, "donor", {0: gradient})
        got = pull(joiner, donor, whole)
        assert not running.done()
        mean = average("joiner", {})

    assert got[0].tobytes() == whole[0].tobytes()
    assert mean[0].tobytes() == running.result()[0].tobytes() == gradient[0].tobytes()


def test_averages_go_on_while_the_state_is_given(endpoint):
    joiner, donor = given_by(endpoint, lambda _: whole)
    whole, gradient = state(60), [np.ones(100_000, np.float32)]
    other = endpoint("other")
    peers = {"donor": donor.address, "other": other.address}
    exchanges = {each.me: PeerExchange(each) for each in (donor, other)}

    def average(me: str, step: int) -> list[np.ndarray]:
        work = Round(epoch=2, step=step, me=me, peers=peers, parts=("donor", "other"))
        own = {work.parts.index(me): gradient}
        return exchanges[me].average(own, work, deadline_s=DEADLINE_S)

    with ThreadPoolExecutor(3) as pool:
        pulled = pool.submit(pull, joiner, donor, whole)
        step, began = 0, time.monotonic()
        while not (pulled.done() and step >= 5):
            assert time.monotonic() - began < DEADLINE_S
            for mean in pool.map(average, peers, [step, step]):
                assert mean[0].tobytes() == gradient[0].tobytes()
            step += 1

    assert pulled.result()[0].tobytes() == whole[0].tobytes()
