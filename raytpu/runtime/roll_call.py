"""Every process of the gang is there, or the missing ones are named.

``jax.distributed.initialize`` ends a wait that took too long with ``LOG(FATAL)``: the process aborts before
Python sees an error, and the message names nobody (jax 0.10.2, seen). So the processes first meet here, on
the very address that JAX's coordinator will use, and only then enter JAX. The wait for slow hosts happens in
this module, where it has a deadline and an error; what is left for JAX takes about a second.

One line of JSON each way: the process says who it is; process 0 answers when all are there or time is up.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable

from raytpu.errors import DeadlineExceeded, HostLost, HostMismatch
from raytpu.plan import ProcessAssignment

ANSWER_GRACE_S = 5.0
"""How much longer than its own deadline a process waits for process 0's list of the missing: the two did
not start to wait at the same moment. By feel."""

_RETRY_S = 0.02
_LINE_BYTES = 65536


def roll_call(assignment: ProcessAssignment, coordinator: str, deadline_s: float) -> None:
    """Return when every process of the gang has called this.

    Collective: every process calls it once, with the same coordinator. Process 0 listens on
    ``coordinator`` ("address:port") and has left it again when this returns.

    Raises:
        DeadlineExceeded: with the processes that have not called in ``late``, on every process that has.
        HostMismatch: two processes claim one index, or process 0 cannot listen on the address.
        HostLost: process 0 went away while the others waited.
    """
    if assignment.process_count == 1:
        return
    if assignment.process_index == 0:
        _Register(assignment, coordinator, deadline_s).run()
    else:
        _call_in(assignment, coordinator, deadline_s)


def await_listener(coordinator: str, deadline_s: float) -> None:
    """Return when something listens on ``coordinator``.

    gRPC waits a whole second after a first refused connection; between the end of the roll call and
    JAX's coordinator lie some 20 ms, so every start would pay that second.

    Raises:
        DeadlineExceeded: nothing did.
    """
    end = time.monotonic() + deadline_s
    _connect(coordinator, lambda: end - time.monotonic(), deadline_s).close()


def split_address(coordinator: str) -> tuple[str, int]:
    """``"10.0.0.1:8476"`` or ``"[::1]:8476"`` as address and port."""
    address, _, port = coordinator.rpartition(":")
    return address.strip("[]"), int(port)


def _names(assignment: ProcessAssignment, missing: set[int]) -> list[str]:
    """Slice names of other slices are not in an assignment; indices are."""
    hosts = assignment.hosts_per_slice
    return [f"process {i} (slice {i // hosts} of the plan, host {i % hosts})" for i in sorted(missing)]


class _Register:
    """Process 0: notes who has called, drops who has gone, answers all at once."""

    def __init__(self, assignment: ProcessAssignment, coordinator: str, deadline_s: float) -> None:
        self._assignment = assignment
        self._coordinator = coordinator
        self._deadline_s = deadline_s
        self._present: dict[int, socket.socket] = {}
        self._hosts: dict[int, str] = {0: assignment.host}
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        end = time.monotonic() + self._deadline_s
        listener = self._listen()
        try:
            self._selector.register(listener, selectors.EVENT_READ, self._accept)
            while missing := self._missing():
                left = end - time.monotonic()
                if left <= 0:
                    late = _names(self._assignment, missing)
                    self._answer({"late": late})
                    raise DeadlineExceeded(
                        f"{self._assignment.process_count} processes to start",
                        self._deadline_s,
                        late,
                        "their logs say how far they came; deadlines.jax_init_s allows more time",
                    )
                for key, _ in self._selector.select(left):
                    key.data(key.fileobj)
            # Before the answer: nobody may take this listener for JAX's.
            self._selector.unregister(listener)
            listener.close()
            self._answer({"all": True})
            self._await_hang_up()
        finally:
            for connection in [key.fileobj for key in self._selector.get_map().values()]:
                connection.close()  # type: ignore[union-attr]
            self._selector.close()

    def _listen(self) -> socket.socket:
        try:
            return socket.create_server(
                split_address(self._coordinator),
                family=socket.AF_INET6 if self._coordinator.startswith("[") else socket.AF_INET,
                backlog=self._assignment.process_count,
            )
        except OSError as error:
            raise HostMismatch(
                f"{self._assignment.host}: cannot listen on the coordinator address {self._coordinator}: "
                f"{error.strerror}\n  it must be an address of this host with a free port"
            ) from error

    def _missing(self) -> set[int]:
        return set(range(1, self._assignment.process_count)) - set(self._present)

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        self._selector.register(connection, selectors.EVENT_READ, self._read)

    def _read(self, connection: socket.socket) -> None:
        """A hello fits one segment. Anything else is not one of ours, or one of ours going away."""
        try:
            line = connection.recv(_LINE_BYTES)
            hello = json.loads(line) if line else None
            index, count, host = (hello[key] for key in ("index", "count", "host")) if hello else (0, 0, "")
        except (OSError, ValueError, KeyError, TypeError):
            self._drop(connection)
            return
        if not hello:
            self._drop(connection)
        elif refusal := self._refusal(index, count, host):
            self._answer({"refused": refusal}, (*self._present.values(), connection))
            raise HostMismatch(refusal)
        else:
            self._present[index] = connection
            self._hosts[index] = host

    def _refusal(self, index: int, count: int, host: str) -> str:
        if count != self._assignment.process_count:
            return (
                f"{host}: expects {count} processes at {self._coordinator}, but this gang has "
                f"{self._assignment.process_count}; it belongs to another plan"
            )
        if index in self._present or not 0 < index < count:
            return f"{host}: claims to be process {index}, which is {self._hosts.get(index, 'nobody')}"
        return ""

    def _drop(self, connection: socket.socket) -> None:
        self._present = {i: other for i, other in self._present.items() if other is not connection}
        self._selector.unregister(connection)
        connection.close()

    def _answer(self, message: dict[str, object], to: tuple[socket.socket, ...] | None = None) -> None:
        line = json.dumps(message).encode() + b"\n"
        for connection in to if to is not None else tuple(self._present.values()):
            try:
                connection.sendall(line)
            except OSError:
                continue  # it has gone; the caller is about to raise, or JAX will notice

    def _await_hang_up(self) -> None:
        """The side that closes first keeps the port in TIME_WAIT; let that be the others."""
        for connection in self._present.values():
            connection.settimeout(ANSWER_GRACE_S)
            try:
                connection.recv(1)
            except OSError:
                continue


def _call_in(assignment: ProcessAssignment, coordinator: str, deadline_s: float) -> None:
    end = time.monotonic() + deadline_s
    hello = {
        "index": assignment.process_index,
        "count": assignment.process_count,
        "host": assignment.host,
    }
    with _connect(coordinator, lambda: end - time.monotonic(), deadline_s) as connection:
        connection.sendall(json.dumps(hello).encode() + b"\n")
        connection.settimeout(max(end - time.monotonic(), 0) + ANSWER_GRACE_S)
        try:
            line = connection.makefile("rb").readline()
        except TimeoutError:
            raise DeadlineExceeded(
                f"process 0 at {coordinator} to say that all processes have started",
                deadline_s,
                ["process 0"],
            ) from None
        except OSError:
            line = b""
    if not line:
        raise HostLost(f"process 0 at {coordinator} went away while {assignment.host} waited for the others")
    answer = json.loads(line)
    if "refused" in answer:
        raise HostMismatch(answer["refused"])
    if "late" in answer:
        raise DeadlineExceeded(f"{assignment.process_count} processes to start", deadline_s, answer["late"])


def _connect(coordinator: str, left: Callable[[], float], deadline_s: float) -> socket.socket:
    """A connection to process 0, tried again until it listens."""
    reason = "it does not answer"
    while (seconds := left()) > 0:
        try:
            return socket.create_connection(split_address(coordinator), timeout=seconds)
        except OSError as error:
            reason = error.strerror or str(error)
            time.sleep(min(_RETRY_S, max(left(), 0)))
    raise DeadlineExceeded(
        f"process 0 to listen on {coordinator}",
        deadline_s,
        ["process 0 (slice 0 of the plan, host 0)"],
        f"last attempt: {reason}; it has not started, has given up, or a firewall is between",
    )
