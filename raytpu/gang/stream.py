"""The stream between the book and the owner of a lease: pickled messages over TCP, after a shared token.

The end of the stream is the first sign of an owner's death: the kernel closes it, however the process ended.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from raytpu.errors import RaytpuError
from raytpu.plan import Diagnosis
from raytpu.plan.ledger import Lease, Request

TOKEN_BYTES = 32
HANDSHAKE_S = 5.0
"""For the token to come. Nothing is unpickled before it has."""

SEND_S = 2.0
"""For the other side to take a message; a frozen one is not waited for longer."""

BEAT_S = 1.0
"""Between two signs of life of an owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a book listens, and the secret that it wants to hear. Comes from the actor, so whoever may call
    actors of the cluster may hold slices."""

    host: str
    port: int
    token: bytes = field(repr=False)
    version: str
    """Of the raytpu that the book runs."""


# -- what an owner says ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """For slices, or, under the id of a known request or lease, to be its owner from now on."""

    request: Request
    """``deadline_s`` is in seconds from now."""
    session: str
    """The same for every stream of one owner: tells an owner that comes back from another one."""
    must_exist: bool = False
    """Only a lease or request that the book knows: this owner comes back, or succeeds one that is gone."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life; in both directions."""


@dataclass(frozen=True, slots=True)
class Release:
    """The owner needs the slices no more, or does not want to wait any longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFailed:
    """The owner has seen a host fail.

    ``lost``: it is gone, and with it the slice. Otherwise it failed to start a process, which is counted.
    """

    slice_name: str
    host: str
    reason: str
    lost: bool


@dataclass(frozen=True, slots=True)
class StartedWell:
    """Every host of the lease runs its process."""


# -- what the book says -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The slices are held: every host has been given by Ray. Also the answer to an owner that comes back."""

    lease: Lease
    groups: Mapping[str, bytes]
    """Id of the placement group of each slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Why nothing is held yet; said again whenever it changes."""

    diagnosis: Diagnosis
    ahead: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing will be held."""

    error: RaytpuError


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A slice of the lease is gone; the others are still held."""

    slice_name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """The lease ends in ``seconds``; until then there is time to save."""

    by: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Over:
    """The lease has ended."""

    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """A release was carried out: Ray has been told to free every host."""


def listen(host: str) -> tuple[socket.socket, bytes]:
    """A listening socket on a free port of ``host``, and a new token for it."""
    listener = socket.create_server((host, 0), backlog=128)
    return listener, secrets.token_bytes(TOKEN_BYTES)


def accept(sock: socket.socket, token: bytes) -> Connection | None:
    """The connection of a caller that knows the token; ``None``, and closed, for any other."""
    try:
        sock.settimeout(HANDSHAKE_S)
        heard = b""
        while len(heard) < TOKEN_BYTES:
            part = sock.recv(TOKEN_BYTES - len(heard))
            if not part:
                break
            heard += part
        if not hmac.compare_digest(heard, token):
            sock.close()
            return None
        return _connection(sock)
    except OSError:
        sock.close()
        return None


def connect(address: Address, timeout_s: float) -> Connection:
    """A connection to the book.

    Raises:
        OSError: nobody listens there.
    """
    sock = socket.create_connection((address.host, address.port), timeout=timeout_s)
    sock.sendall(address.token)
    return _connection(sock)


def shut(connection: Connection) -> None:
    """End a stream so that a reader blocked in it wakes up, which closing alone does not do."""
    try:
        sock = socket.socket(fileno=connection.fileno())
    except (OSError, ValueError):
        return  # closed already
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
    finally:
        sock.detach()


def _connection(sock: socket.socket) -> Connection:
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A peer that stopped reading must not hold a sender for ever. Only the sending side: reading waits
    # for messages that may rightly be long in coming.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(SEND_S), 0))
    return Connection(sock.detach())
