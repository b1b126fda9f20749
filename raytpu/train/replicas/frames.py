"""What hosts say to each other on a data connection: a hello with a token, then frames with a fixed
header."""

from __future__ import annotations

import hmac
import json
import socket
import ssl
import struct
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

HELLO_S = 5.0
"""For a hello to come, the TLS handshake before it included. By feel: on a busy machine it takes 0.1 s."""

JSON_LIMIT_BYTES = 64 << 20
"""The manifest of a state has some 60 bytes an array; a stranger's hello is limited to less."""

HELLO_LIMIT_BYTES = 4096

ACCEPTED = b"+"

_LENGTH = struct.Struct("!4sI")
_MAGIC = b"rtx1"
_HEADER = struct.Struct("!BHIQQII")


class PeerLost(Exception):
    """The connection to a member that is needed has ended, or never came about."""

    def __init__(self, member: str, reason: str) -> None:
        super().__init__(member, reason)
        self.member, self.reason = member, reason

    def __str__(self) -> str:
        return f"lost {self.member}: {self.reason}"


class Frame(NamedTuple):
    """The header of a frame; ``length`` bytes follow it."""

    kind: int
    part: int
    chunk: int
    epoch: int
    step: int
    check: int
    """Averaging: the fingerprint of what is averaged. State: CRC-32 of the bytes that follow."""
    length: int

    @property
    def key(self) -> tuple[int, int]:
        """Orders rounds: (epoch, step)."""
        return self.epoch, self.step


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message of whoever dials."""

    purpose: str
    sender: str
    receiver: str
    """Whom the sender believes to call: an address may have passed to another member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files for mutual TLS. Whoever has a certificate of this authority is one of us; names are not
    checked, because hosts are called by addresses that change."""

    certificate: str
    key: str
    authority: str

    def server_context(self) -> ssl.SSLContext:
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        # A ticket would lie unread at a peer that only writes, and turn its close into a reset.
        context.num_tickets = 0
        return context

    def client_context(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self.certificate, self.key)
        context.load_verify_locations(self.authority)
        return context


def send_all(connection: socket.socket, buffers: Sequence[Any]) -> None:
    """Send bytes-like buffers one after another, without joining them. Raises ``OSError``."""
    if isinstance(connection, ssl.SSLSocket):
        for buffer in buffers:
            connection.sendall(buffer)
        return
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    while views:
        # 512: below the kernel's limit of buffers in one call (IOV_MAX, 1024 on Linux).
        sent = connection.sendmsg(views[:512])
        while views and sent >= len(views[0]):
            sent -= len(views.pop(0))
        if sent:
            views[0] = views[0][sent:]


def receive_into(connection: socket.socket, view: memoryview, until: float | None = None) -> None:
    """Fill ``view``, by the monotonic time ``until``.

    Raises:
        ConnectionError: the other end closed.
        TimeoutError: it is past ``until``.
        OSError: anything else that ends a connection.
    """
    flags = 0 if isinstance(connection, ssl.SSLSocket) else socket.MSG_WAITALL
    while len(view):
        if until is not None:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("too late")
            connection.settimeout(left_s)
        count = connection.recv_into(view, len(view), flags)
        if not count:
            raise ConnectionError("the other end closed the connection")
        view = view[count:]


def skip(connection: socket.socket, length: int, scratch: memoryview) -> None:
    """Receive and forget. Raises as :func:`receive_into`."""
    while length:
        count = min(length, len(scratch))
        receive_into(connection, scratch[:count])
        length -= count


def pack(frame: Frame) -> bytes:
    return _HEADER.pack(*frame)


def receive_frame(connection: socket.socket, until: float | None = None) -> Frame:
    """The next header. Raises as :func:`receive_into`."""
    header = bytearray(_HEADER.size)
    receive_into(connection, memoryview(header), until)
    return Frame._make(_HEADER.unpack(header))


def send_json(connection: socket.socket, message: dict[str, Any]) -> None:
    text = json.dumps(message).encode()
    send_all(connection, [_LENGTH.pack(_MAGIC, len(text)), text])


def receive_json(connection: socket.socket, until: float, limit_bytes: int = JSON_LIMIT_BYTES) -> Any:
    """The next message.

    Raises:
        ValueError: the bytes are none.
        OSError: as :func:`receive_into`.
    """
    head = bytearray(_LENGTH.size)
    receive_into(connection, memoryview(head), until)
    magic, length = _LENGTH.unpack(head)
    if magic != _MAGIC or length > limit_bytes:
        raise ValueError("what came is not of this protocol")
    text = bytearray(length)
    receive_into(connection, memoryview(text), until)
    return json.loads(text)


def say_hello(connection: socket.socket, hello: Hello, token: bytes, until: float | None) -> None:
    """Present oneself and wait to be accepted. Raises as :func:`receive_into`."""
    names = {"purpose": hello.purpose, "sender": hello.sender, "receiver": hello.receiver}
    send_json(connection, {"token": token.hex(), **names})
    receive_into(connection, memoryview(bytearray(1)), until)


def hear_hello(connection: socket.socket, token: bytes, until: float) -> Hello:
    """Who calls, when it knows the token. The caller still waits for ``ACCEPTED``.

    Raises:
        ValueError: a stranger.
        OSError: as :func:`receive_into`.
    """
    message = receive_json(connection, until, HELLO_LIMIT_BYTES)
    try:
        given = bytes.fromhex(message["token"])
        hello = Hello(
            purpose=str(message["purpose"]), sender=str(message["sender"]), receiver=str(message["receiver"])
        )
    except (KeyError, TypeError) as error:
        raise ValueError("what came is no hello") from error
    if not hmac.compare_digest(given, token):
        raise ValueError("wrong token")
    return hello


def checksum(buffers: Sequence[Any]) -> int:
    """CRC-32 of buffers one after another."""
    crc = 0
    for buffer in buffers:
        crc = zlib.crc32(buffer, crc)
    return crc
