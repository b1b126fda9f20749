"""JSON lines over a socket: how a simulation's owner, its keeper and its node processes talk."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from raytpu.errors import DeadlineExceeded, RaytpuError, Refused, WrongRequest

Message = dict[str, Any]

_ENDED = "the simulation has ended; start it again"

_ERRORS: dict[str, type[RaytpuError]] = {"WrongRequest": WrongRequest, "Refused": Refused}


class Channel:
    """One end of a connection. Messages are JSON objects, one a line."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._unread = b""
        self._last_id = 0

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Raises ``OSError`` when the other end is gone."""
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Message] | None:
        """Every whole message that has arrived, after waiting for some bytes; ``None`` at the end.

        Raises:
            TimeoutError: the connection has a timeout and nothing came within it.
        """
        try:
            piece = self._connection.recv(65536)
        except ConnectionError:
            return None
        if not piece:
            return None
        *lines, self._unread = (self._unread + piece).split(b"\n")
        return [json.loads(line) for line in lines]

    def settimeout(self, timeout_s: float) -> None:
        self._connection.settimeout(timeout_s)

    def close(self) -> None:
        self._connection.close()

    def ask(self, message: Message, deadline_s: float) -> Message:
        """Send a request and wait for its answer.

        Raises:
            Refused, WrongRequest: as the other end says.
            DeadlineExceeded: no answer came, or the other end is gone.
        """
        self._last_id += 1
        try:
            self.send({**message, "id": self._last_id})
        except ConnectionError as error:
            raise Refused(_ENDED) from error
        return self.next(deadline_s, self._last_id)

    def next(self, deadline_s: float, request_id: int | None = None) -> Message:
        """Wait for the next message, or for the answer to one request. Raises as :meth:`ask` does."""
        end = time.monotonic() + deadline_s
        try:
            while (left_s := end - time.monotonic()) > 0:
                self.settimeout(left_s)
                messages = self.receive()
                if messages is None:
                    raise Refused(_ENDED)
                # An answer that comes after its deadline must not be taken for the next one.
                for message in messages:
                    if request_id is None or message.get("id") == request_id:
                        return _checked(message)
        except TimeoutError:
            pass  # the deadline is reported below, where waiting for a part of a message ends as well
        raise DeadlineExceeded("an answer", deadline_s, ("the simulation's keeper",))


def error_message(error: RaytpuError) -> Message:
    """The answer that makes :meth:`Channel.ask` raise ``error`` at the other end."""
    kind = "WrongRequest" if isinstance(error, WrongRequest) else "Refused"
    return {"error": kind, "text": str(error)}


def connect(socket_path: str, timeout_s: float = 5.0) -> Channel:
    """Open a connection to a keeper.

    Raises:
        OSError: nobody listens there.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(socket_path)
    except OSError:
        connection.close()
        raise
    return Channel(connection)


def _checked(message: Message) -> Message:
    if "error" in message:
        raise _ERRORS[message["error"]](message["text"])
    return {key: value for key, value in message.items() if key != "id"}
