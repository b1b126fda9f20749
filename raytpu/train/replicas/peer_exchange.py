"""Averages arrays with the same host of other members, over TCP, outside XLA.

The members that contribute parts each own a range of the bytes. Every member sends each owner that range of
each of its parts; the owner adds the parts in order, and sends the mean to all. Chunks flow through this one
by one, so sending, receiving and adding overlap.

A member dials every other one, and writes only on connections that it has dialled: each has one thread that
writes, at the other end one that reads, and that is all that TLS allows.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import socket
import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from raytpu.errors import DeadlineExceeded, HostMismatch, SpecError
from raytpu.train.replicas.array_layout import CHUNK_BYTES, ArraySpec, Source, specs_of
from raytpu.train.replicas.averaging_round import MEAN, AveragingRound, Outgoing, Round
from raytpu.train.replicas.endpoint import Address, Endpoint, accept, shut
from raytpu.train.replicas.frames import (
    Frame,
    PeerLost,
    pack,
    receive_frame,
    receive_into,
    send_all,
    skip,
)
from raytpu.train.replicas.result_memory import ResultMemory

PURPOSE = "average"

LEAVE_S = 5.0
"""For the thread of a cancelled round to leave it, when everything is closed; it takes milliseconds."""

LAST_WORDS_S = 0.25
"""For what a member sent before it ended to be read: a few MB, milliseconds unless the reader waits for
others."""

_log = logging.getLogger(__name__)


class RoundCancelled(Exception):
    """The round is over by somebody's decision: its epoch has passed, or the endpoint was closed."""


class _Outlet:
    """The connection that we have dialled to a member, or are dialling."""

    def __init__(self, member: str, address: Address) -> None:
        self.member, self.address = member, address
        self.connection: socket.socket | None = None
        self.ended_s = math.inf
        """When its end was seen, on the monotonic clock; until then infinite."""
        self.dropped = False

    def drop(self) -> None:
        """Its thread ends, wherever it is, and hangs up."""
        self.dropped = True
        if self.connection is not None:
            shut(self.connection)


class PeerExchange:
    """One round at a time. Connections are made when first needed and kept from round to round.

    Ends with its endpoint.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._memory = ResultMemory()
        self._changed = threading.Condition()
        self._round: AveragingRound | None = None
        self._over: tuple[float, float] = (-1, -1)
        """Frames of rounds up to this one are thrown away."""
        self._cancelled_epoch: float = -1
        self._members: frozenset[str] = frozenset()
        """Of the last round, to know who has left."""
        self.sent_bytes = 0
        """By all rounds so far, headers included."""
        self._outlets: dict[str, _Outlet] = {}
        self._inlets: dict[str, socket.socket] = {}
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        endpoint.serve(PURPOSE, self._read)
        endpoint.before_close(lambda: self.cancel(math.inf))
        endpoint.after_close(self._close_wake)

    def average(
        self,
        contributions: Mapping[int, Sequence[Source]],
        round: Round,
        *,
        deadline_s: float,
        like: Sequence[ArraySpec] | None = None,
    ) -> list[np.ndarray]:
        """The mean over all parts of each array, in arrays that nothing else refers to.

        Its bits depend on the parts alone, not on who computes which. Collective: every member of the round
        calls this with a round that differs in ``me`` only. ``contributions`` must not change until this
        returns, and may be given again, in a round of a later epoch, when it raises.

        Args:
            contributions: the arrays of every part that ``round.me`` computes, by number of part; floats.
                Those that are on a device are fetched while others are sent.
            like: the arrays' shapes and dtypes, when there are no contributions to tell them.

        Raises:
            PeerLost: a member that is still needed is gone. Nothing is known about the others.
            RoundCancelled: see ``cancel``.
            DeadlineExceeded: naming the members that kept the round from ending.
            HostMismatch: a member averages other arrays.
            SpecError: contributions that do not fit the round, or a round that is over.
        """
        until = time.monotonic() + deadline_s
        if like is None:
            if not contributions:
                raise SpecError("without contributions, `like` must tell shapes and dtypes")
            like = specs_of(next(iter(contributions.values())))
        work = AveragingRound(round, contributions, like, self._memory, self._changed, self._wake)
        self._begin(work)
        try:
            work.compute_own()
            self._await_end(work, until, deadline_s)
        finally:
            with self._changed:
                self._round = None
                self._over = max(self._over, round.key)
                self._changed.notify_all()
        if work.failure is not None:
            raise work.failure
        return work.mean.results()

    def cancel(self, epoch: float) -> None:
        """End the running round if it is of this epoch or an older one, and refuse such rounds from now on.
        From any thread."""
        with self._changed:
            self._cancelled_epoch = max(self._cancelled_epoch, epoch)
            self._over = max(self._over, (epoch, math.inf))
            if self._round is not None and self._round.round.epoch <= epoch:
                self._round.fail(RoundCancelled(f"{self._round.round} was cancelled"))
            self._changed.notify_all()

    def _begin(self, work: AveragingRound) -> None:
        round = work.round
        with self._changed:
            if round.epoch <= self._cancelled_epoch:
                raise RoundCancelled(f"{round} was cancelled")
            if self._round is not None:
                raise SpecError(f"{self._round.round} is not over")
            if round.key <= self._over:
                raise SpecError(f"{round} is over; another attempt needs a new epoch")
            # A member never comes back under its name, so nothing that it still sends can be meant for us.
            for gone in self._members - set(round.others):
                if outlet := self._outlets.pop(gone, None):
                    outlet.drop()
                if inlet := self._inlets.pop(gone, None):
                    shut(inlet)
            self._members = frozenset(round.others)
            self._round = work
            self._changed.notify_all()
            missing = (
                [member for member in round.others if member not in self._outlets] if work.chunks else []
            )
            for member in missing:
                self._outlets[member] = outlet = _Outlet(member, round.peers[member])
                self._endpoint.start(self._write, f"to-{member}", outlet)

    def _await_end(self, work: AveragingRound, until: float, deadline_s: float) -> None:
        """Wait, and watch the connections on which nothing is ever received: what comes there is their
        end."""
        while True:
            now = time.monotonic()
            with self._changed:
                if now >= until:
                    work.fail(DeadlineExceeded(str(work.round), deadline_s, work.late()))
                if work.ended:
                    return
                needed = [each for each in self._outlets.values() if work.waits_for(each.member)]
                # While its other connection is there, what a member said before it went may still be unread.
                for outlet in [each for each in needed if each.ended_s < math.inf]:
                    if outlet.member not in self._inlets or now >= outlet.ended_s + LAST_WORDS_S:
                        self._end_outlet(outlet, "the connection ended")
            poller = select.poll()
            poller.register(self._wake_in, select.POLLIN)
            watched = {
                descriptor: outlet
                for outlet in needed
                if outlet.connection is not None and outlet.ended_s == math.inf and not outlet.dropped
                if (descriptor := outlet.connection.fileno()) >= 0  # else its thread has just hung up
            }
            for descriptor in watched:
                poller.register(descriptor, select.POLLIN)
            ending = any(outlet.ended_s < math.inf for outlet in needed)
            left_s = min(until - now, LAST_WORDS_S if ending else math.inf)
            for descriptor, _ in poller.poll(math.ceil(left_s * 1000)):
                if descriptor in watched:
                    watched[descriptor].ended_s = time.monotonic()
            with contextlib.suppress(BlockingIOError):
                self._wake_in.recv(4096)

    def _wake(self) -> None:
        # Full: then it will wake anyway.
        with contextlib.suppress(BlockingIOError):
            self._wake_out.send(b"w")

    def _close_wake(self) -> None:
        with self._changed:  # a round that was cancelled is left at once
            self._changed.wait_for(lambda: self._round is None, LEAVE_S)
        self._wake_in.close()
        self._wake_out.close()

    # -- writing: a thread for each member --------------------------------------------------------------

    def _write(self, outlet: _Outlet) -> None:
        connection = None
        try:
            connection = self._endpoint.dial(outlet.member, outlet.address, PURPOSE)
            with self._changed:
                outlet.connection = connection
                self._wake()
            while (next_up := self._next(outlet)) is not None:
                work, (frame, contents) = next_up
                header = pack(frame)
                send_all(connection, [header, *contents()])
                with self._changed:
                    self.sent_bytes += len(header) + frame.length
                    work.sent(outlet.member)
        except PeerLost as error:
            self._end_outlet(outlet, error.reason, while_sending=True)
        except OSError as error:
            self._end_outlet(outlet, f"the connection broke: {error}", while_sending=True)
        except RuntimeError as error:  # of XLA: an array does not come from its device
            self._fail(error)
        finally:
            if connection is not None:
                self._endpoint.hang_up(connection)

    def _next(self, outlet: _Outlet) -> tuple[AveragingRound, Outgoing] | None:
        with self._changed:
            while not outlet.dropped and self._cancelled_epoch < math.inf:
                if self._round is not None and (outgoing := self._round.next_for(outlet.member)):
                    return self._round, outgoing
                self._changed.wait()
        return None

    def _end_outlet(self, outlet: _Outlet, reason: str, *, while_sending: bool = False) -> None:
        with self._changed:
            if outlet.dropped:
                return
            outlet.drop()
            if self._outlets.get(outlet.member) is outlet:
                del self._outlets[outlet.member]
            if self._round is not None:
                self._round.lose(outlet.member, reason, while_sending=while_sending)
            self._changed.notify_all()

    # -- reading: a thread for each member --------------------------------------------------------------

    def _read(self, connection: socket.socket, member: str) -> None:
        """Take frames until the connection ends. Raises ``OSError`` then."""
        with self._changed:
            self._inlets[member] = connection
        scratch = np.empty(CHUNK_BYTES, np.uint8)
        try:
            accept(connection)
            while True:
                frame = receive_frame(connection)
                work = self._await_round(frame)
                if work is None:
                    skip(connection, frame.length, scratch.data)
                else:
                    self._take(connection, member, frame, work, scratch)
        except OSError as error:
            self._end_inlet(connection, member, str(error))
            raise
        except (HostMismatch, RuntimeError) as error:  # RuntimeError: as in _write
            self._fail(error)
            self._end_inlet(connection, member, str(error))

    def _fail(self, error: Exception) -> None:
        """Have ``average`` raise ``error``."""
        with self._changed:
            if self._round is not None:
                self._round.fail(error)

    def _await_round(self, frame: Frame) -> AveragingRound | None:
        """The round of a frame; ``None`` when that is over. Peers that are ahead of us wait here, and the
        rest of what they have sent waits in the kernel, until we are there as well."""
        with self._changed:
            while frame.key > self._over and self._cancelled_epoch < math.inf:
                if self._round is not None and frame.key <= self._round.round.key:
                    return self._round if frame.key == self._round.round.key else None
                self._changed.wait()
        return None

    def _take(
        self,
        connection: socket.socket,
        member: str,
        frame: Frame,
        work: AveragingRound,
        scratch: np.ndarray,
    ) -> None:
        with self._changed:
            chunk = work.place(frame, member)
        if frame.kind == MEAN:
            for target in work.mean.result_bytes(chunk):
                receive_into(connection, target.data)
            with self._changed:
                work.received_mean(member)
        elif work.mean.fits_result(frame.part):
            for target in work.mean.result_bytes(chunk):
                receive_into(connection, target.data)
            work.receive_part(frame, chunk, None)
        else:
            received = scratch[: frame.length]
            receive_into(connection, received.data)
            work.receive_part(frame, chunk, received)

    def _end_inlet(self, connection: socket.socket, member: str, reason: str) -> None:
        with self._changed:
            if self._inlets.get(member) is not connection:
                return  # the member has dialled again, or has left
            del self._inlets[member]
            if self._round is not None:
                self._round.lose(member, reason)
