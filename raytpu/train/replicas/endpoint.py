"""A host's one door for its peers: a listening socket whose connections are handed out by their purpose."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable

from raytpu.errors import HostMismatch
from raytpu.train.replicas.frames import (
    ACCEPTED,
    HELLO_S,
    Hello,
    PeerLost,
    TlsFiles,
    hear_hello,
    say_hello,
    send_all,
)

Address = tuple[str, int]
Handler = Callable[[socket.socket, str], None]
"""Called with a connection, which it has to ``accept``, and the member at its other end, in a thread of the
connection's own, which ends, and closes the connection, when the handler returns or raises ``OSError``."""

DIAL_S = 10.0
"""For a peer's kernel to take a connection; a host that is gone without a trace never does. By feel."""

_log = logging.getLogger(__name__)


class Endpoint:
    """Listens from its construction until ``close``. Threads and sockets are gone when ``close`` returns."""

    def __init__(
        self, me: str, *, bind: Address = ("127.0.0.1", 0), token: bytes, tls: TlsFiles | None = None
    ) -> None:
        """Listen on ``bind``; port 0 is any free one.

        Raises:
            HostMismatch: the address is not of this host, or the port is taken.
        """
        self.me, self._token = me, token
        self._server_tls = tls.server_context() if tls else None
        self._client_tls = tls.client_context() if tls else None
        self._handlers: dict[str, Handler] = {}
        self._closers: list[Callable[[], None]] = []
        self._after_close: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._closed = False
        try:
            family = socket.AF_INET6 if ":" in bind[0] else socket.AF_INET
            self._listener = socket.create_server(bind, family=family, backlog=128)
        except OSError as error:
            raise HostMismatch(f"{me}: cannot listen for peers on {bind[0]}:{bind[1]}: {error}") from error
        host, port = self._listener.getsockname()[:2]
        self.address: Address = (host, port)
        self.start(self._accept, "accept")

    def serve(self, purpose: str, handler: Handler) -> None:
        """Hand every accepted connection of ``purpose`` to ``handler``."""
        self._handlers[purpose] = handler

    def before_close(self, closer: Callable[[], None]) -> None:
        """Have ``closer`` called by ``close``, to wake threads that wait for something else than a socket."""
        self._closers.append(closer)

    def after_close(self, closer: Callable[[], None]) -> None:
        """Have ``closer`` called when every thread has ended."""
        self._after_close.append(closer)

    def dial(self, member: str, address: Address, purpose: str, until: float | None = None) -> socket.socket:
        """A connection that ``member`` has accepted, without a time-out; the caller gives it to ``hang_up``.

        ``until`` is a monotonic time; without one, only the kernels' answer is waited for with a limit, so
        that a frozen member does not look like a lost one.

        Raises:
            PeerLost: nobody listens there, or whoever does is not that member or does not accept the token.
            TimeoutError: it is past ``until``.
        """
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        connection = self._known(socket.socket(family, socket.SOCK_STREAM))
        where = f"{address[0]}:{address[1]}"
        try:
            left_s = DIAL_S if until is None else min(DIAL_S, max(until - time.monotonic(), 0.001))
            _tune(connection)
            connection.settimeout(left_s)
            connection.connect(address)
            connection.settimeout(None if until is None else max(until - time.monotonic(), 0.001))
            if self._client_tls is not None:
                connection = self._secured(connection, self._client_tls, server=False)
            hello = Hello(purpose=purpose, sender=self.me, receiver=member)
            say_hello(connection, hello, self._token, until)
            connection.settimeout(None)
        except OSError as error:
            self.hang_up(connection)
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"{member} at {where} did not answer") from error
            raise PeerLost(member, f"no connection to {where}: {error}") from error
        return connection

    def hang_up(self, connection: socket.socket) -> None:
        """Close a connection, also one that another thread waits on. Twice is not an error."""
        shut(connection)
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def close(self) -> None:
        """End every connection and thread. Twice is not an error."""
        with self._lock:
            self._closed = True
            open_now, threads = list(self._open), list(self._threads)
        for closer in self._closers:
            closer()
        shut(self._listener)
        for connection in open_now:
            shut(connection)
        for thread in threads:
            thread.join()
        self._listener.close()
        for connection in open_now:
            self.hang_up(connection)
        while self._after_close:
            self._after_close.pop()()

    def start(self, target: Callable[..., None], what: str, *args: object) -> None:
        """Run ``target(*args)`` in a thread that ``close`` waits for; not at all when that has been
        called."""

        def run() -> None:
            try:
                target(*args)
            finally:
                with self._lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=f"raytpu-peer-{what}", daemon=True)
        with self._lock:
            if self._closed:
                return
            self._threads.add(thread)
            thread.start()

    def _known(self, connection: socket.socket) -> socket.socket:
        with self._lock:
            if not self._closed:
                self._open.add(connection)
                return connection
        connection.close()
        raise PeerLost(self.me, "this endpoint is closed")

    def _secured(self, plain: socket.socket, context: ssl.SSLContext, *, server: bool) -> socket.socket:
        """The handshake happens under the time-out that the socket has. Raises ``OSError``."""
        secured = context.wrap_socket(plain, server_side=server, do_handshake_on_connect=False)
        with self._lock:
            self._open.discard(plain)
            self._open.add(secured)
            closed = self._closed
        if closed:
            shut(secured)
        try:
            secured.do_handshake()
        except OSError:
            self.hang_up(secured)
            raise
        return secured

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, address = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                _log.exception("%s: could not accept a connection", self.me)
                time.sleep(0.1)  # such as too many open files: some may be closed by then
                continue
            try:
                self._known(connection)
            except PeerLost:
                return
            self.start(self._welcome, "connection", connection, f"{address[0]}:{address[1]}")

    def _welcome(self, connection: socket.socket, where: str) -> None:
        """In a thread of the connection's own: a slow or hostile hello delays nobody else."""
        until = time.monotonic() + HELLO_S
        try:
            connection.settimeout(HELLO_S)
            _tune(connection)
            if self._server_tls is not None:
                connection = self._secured(connection, self._server_tls, server=True)
            hello = hear_hello(connection, self._token, until)
            if hello.receiver != self.me or hello.purpose not in self._handlers:
                raise ValueError(f"{hello.sender} calls {hello.receiver} for {hello.purpose}")
            connection.settimeout(None)
        except (OSError, ValueError) as error:
            if not self._closed:
                _log.warning("%s: dropped a connection from %s: %s", self.me, where, error)
            self.hang_up(connection)
            return
        try:
            self._handlers[hello.purpose](connection, hello.sender)
        except OSError as error:
            _log.info("%s: the connection of %s ended: %s", self.me, hello.sender, error)
        finally:
            self.hang_up(connection)


def accept(connection: socket.socket) -> None:
    """Have the other end begin. Raises ``OSError``."""
    send_all(connection, [ACCEPTED])


def shut(connection: socket.socket) -> None:
    """Wake whoever waits on the socket, in any thread."""
    try:
        # Not the method of an SSL socket: that would drop TLS first, and what is sent after would be plain.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        return  # it was not connected any more


def _tune(connection: socket.socket) -> None:
    """Buffers are left to the kernel: a size that is set is cut to ``net.core.rmem_max`` (208 KB by default)
    and never grows with the connection, and one that is larger than needed leaves the cores' caches."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
