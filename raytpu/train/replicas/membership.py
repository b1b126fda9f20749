"""A host's end of the coordinator's stream: what it is told, in order, and its signs of life.

All hosts of a slice must run the same programs in the same order, or its collectives hang. They do, because
each is told the same things in the same order and acts on every one of them, also on a view that has
already been followed by another.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from raytpu.errors import DeadlineExceeded, RunFailed, SliceLost
from raytpu.gang import stream
from raytpu.plan.replica_messages import Committed, Evicted, Over, ViewChanged
from raytpu.plan.replica_view import View
from raytpu.train.job import ReplicaPlace
from raytpu.train.loop_position import show_stacks
from raytpu.train.replicas.talk import (
    Accuses,
    Beat,
    Closed,
    Endpoint,
    Finished,
    Hello,
    ShowStacks,
    Started,
    Told,
)

CONNECT_S = 30.0
"""For the driver to accept a host; it does so at once unless it is gone."""


class Membership:
    """This host as one of its replica's, and its replica as one of the members.

    Args:
        place: which replica this is.
        position: of this host in its slice.
        endpoint: where this host exchanges arrays.
        news: called from the reading thread with the epoch of each view that is told.
    """

    def __init__(
        self, place: ReplicaPlace, position: int, endpoint: Endpoint, news: Callable[[int], None]
    ) -> None:
        self.me, self.position = place.member, position
        self._news = news
        self._changed = threading.Condition()
        self._told: deque[Any] = deque()
        self._endpoints: dict[str, tuple[Endpoint, ...]] = {}
        """Of every member there ever was: a view may be acted on when some of its members are gone."""
        self._started: Started | None = None
        self._end: str | None = None
        self._sending = threading.Lock()
        self._step, self._phases, self._exchanging = 0, list[str](), False
        self._exchanged_s = 0.0
        self._closed = threading.Event()
        self._connection: Connection = stream.connect(place.coordinator, CONNECT_S)
        self.say(Hello(member=self.me, position=position, endpoint=endpoint))
        for work in (self._read, self._beat):
            threading.Thread(target=work, name=f"raytpu-member{work.__name__}", daemon=True).start()

    def say(self, message: Any) -> None:
        """Tell the coordinator; a stream that is broken is the reader's business."""
        try:
            with self._sending:
                self._connection.send(message)
        except (OSError, ValueError):
            return

    def accuse(self, member: str, epoch: int, reason: str) -> None:
        """A peer cannot be reached; the coordinator finds out which of the two is ill."""
        self.say(Accuses(member=member, epoch=epoch, reason=reason))

    def next(self, waited_for: str, deadline_s: float | None = None) -> Committed | ViewChanged | Closed:
        """The next word of the coordinator, in order.

        Raises:
            SliceLost: this replica is no member any more.
            RunFailed: nothing can go on, or the driver is gone.
            DeadlineExceeded: no word within ``deadline_s``.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._told or self._end is not None, deadline_s):
                raise DeadlineExceeded(waited_for, deadline_s or 0.0)
            if not self._told:
                raise RunFailed(f"while waiting for {waited_for}: {self._end}")
            message = self._told.popleft()
        match message:
            case Evicted():
                raise SliceLost({self.me: message.reason})
            case Over():
                raise RunFailed(message.reason)
        return message

    def peers(self, view: View) -> dict[str, Endpoint]:
        """Where the host at this position of each member is, in the order of the view."""
        with self._changed:
            return {member: self._endpoints[member][self.position] for member in view.members}

    @property
    def started(self) -> Started:
        """Where the run's data stood at its first step."""
        with self._changed:
            if self._started is None:
                raise RunFailed("the coordinator does not know where this run's data began")
            return self._started

    def at(self, step: int) -> None:
        """This host is at ``step`` now."""
        self._step = step

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """While the block runs, this host waits for its peers."""
        began = time.perf_counter()
        self._exchanging = True
        try:
            yield
        finally:
            self._exchanging = False
            self._exchanged_s += time.perf_counter() - began

    def take_exchanged_s(self) -> float:
        """Seconds spent waiting for peers since the last call."""
        exchanged_s, self._exchanged_s = self._exchanged_s, 0.0
        return exchanged_s

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """While the block runs, this host is kept from its step by intent."""
        self._phases.append(name)
        try:
            yield
        finally:
            self._phases.pop()

    def finish(self) -> None:
        """All is done here: the end of this host is no loss."""
        self.say(Finished())

    def close(self) -> None:
        """End the stream."""
        self._closed.set()
        with self._sending:
            stream.shut(self._connection)

    def _read(self) -> None:
        try:
            while True:
                told: Told = self._connection.recv()
                if isinstance(told.message, ShowStacks):
                    show_stacks(told.message.reason)
                    continue
                with self._changed:
                    self._endpoints.update(told.endpoints)
                    self._started = told.started or self._started
                    self._told.append(told.message)
                    self._changed.notify_all()
                if isinstance(told.message, ViewChanged):
                    self._news(told.message.view.epoch)
        except (EOFError, OSError) as error:
            with self._changed:
                self._end = f"the driver of this run is gone ({type(error).__name__})"
                self._changed.notify_all()

    def _beat(self) -> None:
        while not self._closed.wait(stream.BEAT_S):
            phase = next(reversed(self._phases), "")
            self.say(Beat(step=self._step, phase=phase, exchanging=self._exchanging))
