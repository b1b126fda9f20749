"""Where owners come to the book: one stream each, and a queue into which everything that happens falls."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from raytpu.errors import WrongRequest
from raytpu.gang import stream
from raytpu.gang.asking import check_ask


class Caller:
    """An owner at the other end of a stream."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self.heard_s = time.monotonic()
        """When the last message came."""
        self.lease_id: str | None = None
        """What this caller owns or waits for, once it has asked."""
        self.session = ""
        """Tells one owner that comes back from another one."""

    def tell(self, message: Any) -> None:
        """Send, or close a stream that does not take it: its reader then reports the caller as gone."""
        try:
            with self._lock:
                self._connection.send(message)
        except (OSError, ValueError):  # ValueError: closed on this side already
            self.close()

    def close(self) -> None:
        """End the stream; the reader notices."""
        with self._lock:  # or the reader closes it meanwhile, and another stream bears its number
            stream.shut(self._connection)

    def read(self, heard: Callable[[Caller, Any], None], left: Callable[[Caller], None]) -> None:
        """Until the stream ends. A request that no book can serve is refused here, and ends it."""
        try:
            while True:
                message = self._connection.recv()
                self.heard_s = time.monotonic()
                if isinstance(message, stream.Ask):
                    check_ask(message)
                heard(self, message)
        except WrongRequest as error:
            self.tell(stream.Refused(error))
        except (EOFError, OSError):
            return
        finally:
            left(self)  # also when a message could not be unpickled
            with self._lock:
                self._connection.close()


@dataclass(frozen=True, slots=True)
class Heard:
    """A caller has said something."""

    caller: Caller
    message: Any


@dataclass(frozen=True, slots=True)
class Left:
    """The stream of a caller has ended."""

    caller: Caller


class Desk:
    """Accepts owners, each with a thread that reads what it says.

    Args:
        host: address to listen on.
        heard: called with a caller and its message, from the caller's thread.
        left: called once when a caller's stream has ended.
    """

    def __init__(
        self, host: str, heard: Callable[[Caller, Any], None], left: Callable[[Caller], None]
    ) -> None:
        self._heard, self._left = heard, left
        self._listener, self.token = stream.listen(host)
        self.host, self.port = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="book-desk", daemon=True).start()

    def close(self) -> None:
        """Accept nobody any more; streams that stand go on."""
        with contextlib.suppress(OSError):  # of a listener that nobody waits at
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(sock,), name="book-caller", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        connection = stream.accept(sock, self.token)
        if connection is not None:
            Caller(connection).read(self._heard, self._left)


class Inbox:
    """What has happened and is not yet looked at. Any thread puts, the book takes."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, event: Any) -> None:
        self._queue.put(event)

    def take(self, timeout_s: float) -> list[Any]:
        """Everything there is, after waiting up to ``timeout_s`` for the first."""
        try:
            events = [self._queue.get(timeout=max(0.0, timeout_s))]
        except queue.Empty:
            return []
        while True:
            try:
                events.append(self._queue.get_nowait())
            except queue.Empty:
                return events
