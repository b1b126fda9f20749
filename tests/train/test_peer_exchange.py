"""Hosts average arrays: the same bits whoever computes what, and nothing hangs, mixes or leaks when a peer
goes.

Endpoints are real sockets on loopback; the members of a round are threads of the test.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from raytpu.errors import DeadlineExceeded, HostMismatch, SpecError
from raytpu.train.replicas.array_layout import CHUNK_BYTES, cut, specs_of
from raytpu.train.replicas.frames import PeerLost
from raytpu.train.replicas.peer_exchange import Round, RoundCancelled
from tests.exchange_members import (
    DEADLINE_S,
    Arrays,
    arrays_of,
    assert_same_bits,
    mean_of,
    open_sockets,
)
from tests.waiting import await_true


@pytest.mark.parametrize("deal", ["a", "aa", "ab", "abc", "abcd", "abab", "bbac", "cbbaab"])
def test_every_member_gets_the_mean_in_the_order_of_parts(members, deal):
    parts = [arrays_of(seed) for seed in range(len(deal))]

    results = members("".join(sorted(set(deal)))).average(deal, parts)

    for arrays in results.values():
        assert_same_bits(arrays, mean_of(parts))


def test_bits_do_not_depend_on_who_computes_which_part(members):
    """A step redone after a loss, by fewer members, must not change the run."""
    parts = [arrays_of(seed) for seed in range(3)]
    group = members("abc")

    results = [
        arrays
        for epoch, (deal, among) in enumerate(
            [("abc", "abc"), ("cab", "abc"), ("bbb", "abc"), ("aab", "ab"), ("aaa", "a")]
        )
        for arrays in group.average(deal, parts, epoch=epoch, among=among).values()
    ]

    assert len(results) == 12
    for arrays in results:
        assert_same_bits(arrays, results[0])


def test_a_joiner_without_parts_receives_the_mean(members):
    parts = [arrays_of(seed) for seed in range(2)]

    results = members("abj").average("ab", parts)

    assert_same_bits(results["j"], mean_of(parts))


def test_connections_serve_step_after_step(members):
    group = members("ab")
    parts = [arrays_of(seed, 1000) for seed in range(2)]
    group.average("ab", parts, step=0)
    sockets = open_sockets()

    for step in range(1, 20):
        group.average("ab", parts, step=step)

    assert open_sockets() == sockets


def test_a_result_that_is_held_is_never_written_again(members):
    """JAX takes over aligned arrays without a copy: a reused buffer would change parameters behind its
    back."""
    group = members("ab")
    held = []
    for step in range(5):
        parts = [arrays_of(seed + 10 * step, 5000) for seed in range(2)]
        results = group.average("ab", parts, step=step)
        held.append((results["a"][4], mean_of(parts)[4]))
        del results

    for got, wanted in held:
        assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("owners", ["a", "ab", "abc", "abcdefg"])
@pytest.mark.parametrize("sizes", [[], [0], [1], [3, 0, 5], [63, 65, 1], [10_000_019], [300_000] * 9])
def test_chunks_cover_every_byte_once_and_the_owners_share_evenly(owners, sizes):
    specs = specs_of([np.empty(size, np.float16) for size in sizes])

    chunks = cut(specs, tuple(owners))

    seen = [np.zeros(spec.size_bytes, np.int8) for spec in specs]
    for chunk in chunks:
        assert 0 < chunk.size_bytes <= CHUNK_BYTES
        assert sum(piece.end - piece.begin for piece in chunk.pieces) == chunk.size_bytes
        for piece in chunk.pieces:
            seen[piece.array][piece.begin : piece.end] += 1
    assert all((each == 1).all() for each in seen)
    shares = [sum(chunk.size_bytes for chunk in chunks if chunk.owner == owner) for owner in owners]
    assert max(shares) - min(shares) <= 2 * 64 * (len(sizes) + 1)


class OnDevice:
    """Like a JAX array on a device: it is fetched when numpy asks for it."""

    def __init__(self, array: np.ndarray, fetch: Callable[[], object]) -> None:
        self.shape, self.dtype, self._array, self._fetch = array.shape, array.dtype, array, fetch

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        del dtype, copy
        self._fetch()
        return self._array


def test_what_has_come_from_the_devices_is_sent_while_the_rest_is_on_its_way(members):
    group = members("ab")
    parts = [[np.full(1 << 20, number, np.float32)] * 4 for number in (1, 2)]
    late = OnDevice(parts[0][3], lambda: await_true("a to send", lambda: group.exchanges["a"].sent_bytes))

    results = group.average("ab", [[*parts[0][:3], late], parts[1]])

    assert_same_bits(results["b"], mean_of(parts))


@pytest.mark.parametrize("at", [0, 3], ids=["to be summed or sent", "later"])
def test_an_array_that_does_not_come_from_its_device_is_told_to_who_waits(members, at):
    def fail() -> None:
        raise RuntimeError("INTERNAL: the chip is gone")

    group = members("ab")
    arrays: list[Any] = [np.ones(1 << 20, np.float32)] * 4
    lost = [*arrays[:at], OnDevice(arrays[at], fail), *arrays[at + 1 :]]
    waiting = group.start("a", "ab", [lost, arrays])
    group.start("b", "ab", [lost, arrays])

    with pytest.raises(RuntimeError, match="the chip is gone"):
        waiting.result(10)


# -- losses ------------------------------------------------------------------------------------------------


class Cutter:
    """A relay to an endpoint that breaks every connection after a number of bytes in all."""

    def __init__(self, target: tuple[str, int], limit_bytes: int) -> None:
        self._target, self._left = target, limit_bytes
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._begin(self._accept)

    def _begin(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            self._sockets += [near, far]
            self._begin(self._pump, near, far)
            self._begin(self._pump, far, near)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                with self._lock:
                    data = data[: self._left]
                    self._left -= len(data)
                    spent = not self._left
                sink.sendall(data)
                if spent:
                    break
        except OSError:
            pass
        self.cut()

    def cut(self) -> None:
        for each in [self._listener, *self._sockets]:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def close(self) -> None:
        self.cut()
        for thread in self._threads:
            thread.join()
        for each in [self._listener, *self._sockets]:
            each.close()


@pytest.mark.parametrize("limit_bytes", [0, 50, 301, 70_001, 1_100_003, 2_500_000])
def test_a_peer_that_dies_at_any_byte_is_named_and_the_step_is_redone(members, limit_bytes):
    """The survivors redo the step from the very same arrays, with the bits that it would have had."""
    group = members("abc")
    parts = [arrays_of(seed) for seed in range(3)]
    cutter = Cutter(group.endpoints["c"].address, limit_bytes)
    own = {"a": {0: parts[0]}, "b": {1: parts[1]}, "c": {2: parts[2]}}

    def run(me: str) -> Arrays:
        work = group.round(me, "abc")
        if me != "c":
            work = Round(epoch=1, step=0, me=me, peers={**work.peers, "c": cutter.address}, parts=work.parts)
        return group.exchanges[me].average(own[me], work, deadline_s=DEADLINE_S)

    with ThreadPoolExecutor(3) as pool:
        running = {me: pool.submit(run, me) for me in "abc"}
        await_true("a survivor to see it", lambda: any(running[me].done() for me in "ab"))
        group.endpoints["c"].close()
        lost = [running[me].exception(DEADLINE_S) for me in "ab"]
        assert running["c"].exception(DEADLINE_S) is not None
    cutter.close()
    assert all(isinstance(error, PeerLost) and error.member == "c" for error in lost), lost

    results = group.average("aba", parts, epoch=2, among="ab")

    for arrays in results.values():
        assert_same_bits(arrays, mean_of(parts))


def test_a_peer_that_is_gone_before_the_round_is_named_at_once(members):
    group = members("ab")
    parts = [arrays_of(seed, 1000) for seed in range(2)]
    group.average("ab", parts)
    group.endpoints["b"].close()

    error = group.start("a", "ab", parts, step=1).exception(5)

    assert isinstance(error, PeerLost)
    assert error.member == "b"


def test_a_peer_that_leaves_when_it_has_everything_is_not_lost(members):
    """The end of a run: who is done first must not fail the others."""
    parts = [arrays_of(seed, 1000) for seed in range(2)]
    for _ in range(30):
        group = members("ab")
        running = group.start("a", "ab", parts)
        group.start("b", "ab", parts).result(DEADLINE_S)

        group.endpoints["b"].close()

        assert_same_bits(running.result(DEADLINE_S), mean_of(parts))


def test_the_deadline_names_who_is_late(members):
    group = members("abc")
    parts = [arrays_of(seed, 1000) for seed in range(3)]

    running = [group.start(me, "abc", parts, deadline_s=0.5) for me in "ab"]

    for future in running:
        error = future.exception(5)
        assert isinstance(error, DeadlineExceeded)
        assert error.late == ("c",)
    assert_same_bits(group.average("aba", parts, epoch=2, among="ab")["b"], mean_of(parts))


def test_a_cancelled_round_ends_at_once_and_is_not_begun_again(members):
    group = members("abc")
    parts = [arrays_of(seed) for seed in range(3)]
    running = [group.start(me, "abc", parts) for me in "ab"]
    await_true("a round to run", lambda: open_sockets() > 10)
    assert not any(future.done() for future in running)

    for me in "ab":
        group.exchanges[me].cancel(1)

    assert all(isinstance(future.exception(5), RoundCancelled) for future in running)
    assert isinstance(group.start("a", "abc", parts, step=1).exception(5), RoundCancelled)
    assert_same_bits(group.average("aba", parts, epoch=2, among="ab")["a"], mean_of(parts))


def test_cancelling_an_older_epoch_leaves_the_round_alone(members):
    group = members("ab")
    parts = [arrays_of(seed) for seed in range(2)]
    running = group.start("a", "ab", parts, epoch=5)

    group.exchanges["a"].cancel(4)

    group.start("b", "ab", parts, epoch=5).result(DEADLINE_S)
    assert_same_bits(running.result(DEADLINE_S), mean_of(parts))


def test_frames_of_an_older_round_are_thrown_away_and_those_of_a_newer_one_kept(members):
    """``b`` sends a whole round that ``a`` gave up, then is a round ahead of it."""
    group = members("ab")
    old, new = ([arrays_of(seed + which) for seed in range(2)] for which in (0, 10))
    given_up = group.start("a", "ab", old, epoch=1, deadline_s=0.3)
    assert isinstance(given_up.exception(5), DeadlineExceeded)
    stale = group.start("b", "ab", old, epoch=1)
    await_true("b to dial", lambda: open_sockets() > 6)
    group.exchanges["b"].cancel(1)
    assert isinstance(stale.exception(5), RoundCancelled)
    early = group.start("b", "ab", new, epoch=2)
    time.sleep(0.2)  # that it waits cannot be polled for
    assert not early.done()

    late = group.start("a", "ab", new, epoch=2)

    for future in (early, late):
        assert_same_bits(future.result(DEADLINE_S), mean_of(new))


def test_a_frozen_peer_that_thaws_in_an_old_epoch_harms_nobody(members):
    group = members("abf")
    parts = [arrays_of(seed) for seed in range(3)]
    group.average("abf", parts, epoch=1, step=0)
    group.average("aba", parts, epoch=2, step=1, among="ab")

    thawed = group.start("f", "abf", parts, epoch=1, step=1, deadline_s=5)
    for step in range(2, 6):
        for arrays in group.average("bab", parts, epoch=2, step=step, among="ab").values():
            assert_same_bits(arrays, mean_of(parts))

    assert isinstance(thawed.exception(10), PeerLost | DeadlineExceeded)


def test_members_that_mean_different_arrays_are_told_so(members):
    group = members("ab")

    running = [
        group.start(me, "ab", [[np.ones(size, np.float32)]] * 2) for me, size in (("a", 1000), ("b", 1001))
    ]

    errors = [future.exception(DEADLINE_S) for future in running]
    assert any(isinstance(error, HostMismatch) and "same arrays" in str(error) for error in errors), errors


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({}, "contributes"),
        ({0: [np.ones(3, np.int32)]}, "int32"),
        ({0: [np.ones(4, np.float32)]}, "other shapes"),
    ],
)
def test_contributions_that_do_not_fit_the_round_are_refused(members, own: Mapping[int, Arrays], said: str):
    group = members("a")
    like = specs_of([np.ones(3, np.int32 if said == "int32" else np.float32)])

    with pytest.raises(SpecError, match=said):
        group.exchanges["a"].average(own, group.round("a", "a"), deadline_s=1, like=like)
