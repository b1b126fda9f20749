"""Only members come in, nobody is held up by whoever else calls, and nothing is left when the door closes."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from raytpu.train.replicas.endpoint import Endpoint
from raytpu.train.replicas.frames import PeerLost
from raytpu.train.replicas.peer_exchange import Round, RoundCancelled
from tests.exchange_members import (
    DEADLINE_S,
    TOKEN,
    Members,
    arrays_of,
    assert_same_bits,
    mean_of,
    open_sockets,
)
from tests.waiting import await_true


def test_who_has_another_token_is_dropped_with_a_log_line(members, caplog):
    group = members("ab")
    stranger = Endpoint("b", token=b"wrong")
    with pytest.raises(PeerLost, match="no connection"):
        stranger.dial("a", group.endpoints["a"].address, "average")
    stranger.close()

    await_true("the log line", lambda: "wrong token" in caplog.text)
    parts = [arrays_of(seed, 1000) for seed in range(2)]
    assert_same_bits(group.average("ab", parts)["a"], mean_of(parts))


def test_a_member_that_is_called_by_another_name_does_not_answer(members):
    """An address may have passed to another member."""
    group = members("ab")
    with pytest.raises(PeerLost):
        group.endpoints["b"].dial("a-before", group.endpoints["a"].address, "average")


def test_bad_and_silent_callers_block_nobody(members):
    group = members("ab")
    silent = [socket.create_connection(group.endpoints["a"].address) for _ in range(20)]
    rude = socket.create_connection(group.endpoints["a"].address)
    rude.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    parts = [arrays_of(seed, 1000) for seed in range(2)]

    began = time.monotonic()
    group.average("ab", parts)

    assert time.monotonic() - began < 2
    for each in [*silent, rude]:
        each.close()


def test_members_average_under_mutual_tls(members, tls_files):
    group = members("abc", tls_files)
    for step in range(3):
        parts = [arrays_of(seed + step) for seed in range(3)]
        for arrays in group.average("abc", parts, step=step).values():
            assert_same_bits(arrays, mean_of(parts))


def test_a_lost_peer_is_named_under_tls_as_well(members, tls_files):
    group = members("abc", tls_files)
    parts = [arrays_of(seed) for seed in range(3)]
    group.average("abc", parts)
    running = [group.start(me, "abc", parts, step=1) for me in "ab"]

    group.endpoints["c"].close()

    for future in running:
        error = future.exception(DEADLINE_S)
        assert isinstance(error, PeerLost)
        assert error.member == "c"


def test_who_has_no_certificate_is_dropped(members, tls_files):
    group = members("a", tls_files)
    plain = Endpoint("b", token=TOKEN)
    with pytest.raises(PeerLost):
        plain.dial("a", group.endpoints["a"].address, "average")
    plain.close()


def test_no_thread_and_no_socket_is_left_after_close():
    """Also when a round runs, a peer is silent and another one is being dialled."""
    threads, sockets = threading.active_count(), open_sockets()
    group = Members("abc")
    parts = [arrays_of(seed) for seed in range(3)]
    group.average("abc", parts)
    frozen = socket.create_server(("127.0.0.1", 0))
    work = group.round("a", "abc", step=1)
    peers = {**work.peers, "z": frozen.getsockname()}
    running = group.pool.submit(
        group.exchanges["a"].average,
        {0: parts[0]},
        Round(epoch=1, step=1, me="a", peers=peers, parts=work.parts),
        deadline_s=DEADLINE_S,
    )
    caller, _ = frozen.accept()

    group.close()

    assert isinstance(running.exception(5), RoundCancelled)
    for each in (caller, frozen):
        each.close()
    assert (threading.active_count(), open_sockets()) == (threads, sockets)
