"""Averaging between hosts, next to a copy in memory and a TCP stream of the same bytes. Starts no cluster.

Goal: with 2 members, gradient is averaged at half the speed at least of the slower of a plain copy of it in
memory and a plain TCP stream of it over loopback. A member sends and receives 2 (n - 1) / n times its
gradient, so with 2 members the loopback carries twice the bytes of the stream that it is compared with;
``tcp_both_ways`` carries the very same bytes, and is what averaging would reach if adding took no time.

Members are processes. Every figure is GB of gradient a second for one host. Rounds of all kinds are taken in
turn, because the speed of a shared machine changes while they run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from raytpu.train.replicas.endpoint import Endpoint
from raytpu.train.replicas.frames import TlsFiles
from raytpu.train.replicas.peer_exchange import PeerExchange, Round
from tests.tls_certificates import make_certificates

GRADIENT_BYTES = 128 << 20
MEMBERS = (2, 3)
WARM_UP = 2
GOAL = 0.5
PIECE_BYTES = 1 << 20
DEADLINE_S = 60.0
TOKEN = b"b" * 32


def gradient(seed: int) -> list[np.ndarray]:
    """Eight equal float32 arrays."""
    random = np.random.default_rng(seed)
    return [random.random(GRADIENT_BYTES // 32, np.float32) for _ in range(8)]


def member(index: int, count: int, tls: TlsFiles | None, orders: Connection) -> None:
    """One host: averages whenever it is told to, and answers with the seconds that it took."""
    name = f"slice-{index}"
    endpoint = Endpoint(name, token=TOKEN, tls=tls)
    exchange = PeerExchange(endpoint)
    orders.send(endpoint.address)
    peers = dict(zip([f"slice-{other}" for other in range(count)], orders.recv(), strict=True))
    own = {index: gradient(index)}
    step = 0
    while orders.recv():
        work = Round(epoch=1, step=step, me=name, peers=peers, parts=tuple(peers))
        began = time.perf_counter()
        result = exchange.average(own, work, deadline_s=DEADLINE_S)
        orders.send((time.perf_counter() - began, float(result[0][0])))
        del result
        step += 1
    endpoint.close()


class Group:
    """The member processes; a call is one round, in seconds of the slowest member."""

    def __init__(self, count: int, tls: TlsFiles | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._orders, self._processes = [], []
        for index in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=member, args=(index, count, tls, theirs), daemon=True)
            process.start()
            self._orders.append(ours)
            self._processes.append(process)
        addresses = [orders.recv() for orders in self._orders]
        for orders in self._orders:
            orders.send(addresses)

    def __call__(self) -> float:
        for orders in self._orders:
            orders.send(True)
        answers = [orders.recv() for orders in self._orders]
        if len({value for _, value in answers}) != 1:
            raise SystemExit(f"members have different means: {answers}")
        return max(seconds for seconds, _ in answers)

    def close(self) -> None:
        for orders in self._orders:
            orders.send(False)
        for process in self._processes:
            process.join()


def send_out(connection: socket.socket, source: memoryview) -> None:
    for begin in range(0, len(source), PIECE_BYTES):
        connection.sendall(source[begin : begin + PIECE_BYTES])


def take_in(connection: socket.socket, sink: memoryview) -> None:
    while len(sink):
        sink = sink[connection.recv_into(sink, min(PIECE_BYTES, len(sink))) :]


def far_end(port: int, orders: Connection) -> None:
    """The other host of the plain streams."""
    connection = socket.create_connection(("127.0.0.1", port))
    source = memoryview(np.ones(GRADIENT_BYTES, np.uint8))
    sink = memoryview(np.ones(GRADIENT_BYTES, np.uint8))
    while (both_ways := orders.recv()) is not None:
        sender = threading.Thread(target=send_out, args=(connection, source))
        if both_ways:
            sender.start()
        take_in(connection, sink)
        if both_ways:
            sender.join()
        connection.sendall(b"+")


class PlainStream:
    """The gradient over one plain connection between two processes; a call gives seconds."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        context = multiprocessing.get_context("spawn")
        self._orders, theirs = context.Pipe()
        port = listener.getsockname()[1]
        self._process = context.Process(target=far_end, args=(port, theirs), daemon=True)
        self._process.start()
        self._connection, _ = listener.accept()
        listener.close()
        self._source = memoryview(np.ones(GRADIENT_BYTES, np.uint8))
        self._sink = memoryview(np.ones(GRADIENT_BYTES, np.uint8))

    def seconds(self, *, both_ways: bool) -> float:
        self._orders.send(both_ways)
        began = time.perf_counter()
        sender = threading.Thread(target=send_out, args=(self._connection, self._source))
        sender.start()
        if both_ways:
            take_in(self._connection, self._sink)
        sender.join()
        self._connection.recv(1)
        return time.perf_counter() - began

    def close(self) -> None:
        self._orders.send(None)
        self._process.join()
        self._connection.close()


def copy_once(source: np.ndarray, sink: np.ndarray) -> float:
    began = time.perf_counter()
    np.copyto(sink, source)
    return time.perf_counter() - began


def measure(count: int, tls: TlsFiles | None, rounds: int) -> dict[str, Any]:
    """Medians over ``rounds`` of each kind, taken in turn."""
    load_before = os.getloadavg()[0]
    source, sink = np.ones(GRADIENT_BYTES, np.uint8), np.ones(GRADIENT_BYTES, np.uint8)
    group, stream = Group(count, tls), PlainStream()
    kinds: dict[str, Callable[[], float]] = {
        "averaging": group,
        "memcpy": lambda: copy_once(source, sink),
        "tcp": lambda: stream.seconds(both_ways=False),
        "tcp_both_ways": lambda: stream.seconds(both_ways=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(WARM_UP + rounds):
        for name, run in kinds.items():
            took = run()
            if number >= WARM_UP:
                seconds[name].append(took)
    group.close()
    stream.close()
    rates = {name: GRADIENT_BYTES / statistics.median(each) / 1e9 for name, each in seconds.items()}
    slower = min(rates["memcpy"], rates["tcp"])
    return {
        "bench": f"averaging, {count} members{', mutual TLS' if tls else ''}",
        "mb_a_host": GRADIENT_BYTES >> 20,
        "rounds": rounds,
        "gb_s": {name: round(rate, 2) for name, rate in rates.items()},
        "best_gb_s": {name: round(GRADIENT_BYTES / min(each) / 1e9, 2) for name, each in seconds.items()},
        "of_the_slower": round(rates["averaging"] / slower, 2),
        "of_tcp_both_ways": round(rates["averaging"] / rates["tcp_both_ways"], 2),
        "goal_of_the_slower": GOAL if count == 2 and tls is None else None,
        "load_before": round(load_before, 1),
    }


def main() -> None:
    """Print one JSON object for each number of members, and one with mutual TLS."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--members", type=int, nargs="*", default=list(MEMBERS))
    parser.add_argument("--no-tls", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        tls = None if arguments.no_tls else make_certificates(Path(home))
        for count in arguments.members:
            for files in (None,) if tls is None else (None, tls):
                print(json.dumps(measure(count, files, arguments.rounds)), flush=True)


if __name__ == "__main__":
    main()
