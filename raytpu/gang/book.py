"""The book of slices: the one actor of a cluster that gives slices out, and takes them back."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import ray

from raytpu.errors import Refused
from raytpu.gang import stream
from raytpu.gang.bookkeeper import Bookkeeper
from raytpu.gang.desk import Desk, Heard, Inbox, Left
from raytpu.plan.book_view import BookView

TURN_S = 0.25
"""Longest pause between two turns: deadlines, notices and silences are noticed this late at most."""


@dataclass(frozen=True, slots=True)
class Command:
    """Something to do in the book's own thread, for a caller of the actor."""

    work: Callable[[], Any]
    answer: Future[Any]


class Book:
    """The actor. Its methods are for ``gang.lease`` and the commands; owners use the stream."""

    def __init__(self) -> None:
        self._inbox = Inbox()
        self._desk = Desk(
            ray.util.get_node_ip_address(),
            lambda caller, message: self._inbox.put(Heard(caller, message)),
            lambda caller: self._inbox.put(Left(caller)),
        )
        self._keeper = Bookkeeper(self._inbox.put)
        threading.Thread(target=self._run, name="book", daemon=True).start()

    # -- what the actor answers ------------------------------------------------------------------------

    def address(self) -> stream.Address:
        """Where owners find the book."""
        return stream.Address(
            host=self._desk.host, port=self._desk.port, token=self._desk.token, version=version("raytpu")
        )

    def pid(self) -> int:
        """Of the actor's process."""
        return os.getpid()

    def view(self) -> BookView:
        """The whole book, and the cluster as it is now."""
        return self._in_turn(self._keeper.show)

    def quarantine(self, slice_name: str, reason: str) -> None:
        """Nobody gets the slice any more, until ``lift``; whoever holds it keeps it.

        Raises:
            Refused: the cluster has no such slice.
        """
        self._in_turn(lambda: self._keeper.quarantine(slice_name, reason))

    def lift(self, slice_name: str) -> None:
        """End a quarantine.

        Raises:
            Refused: the slice is not under quarantine.
        """
        self._in_turn(lambda: self._keeper.lift(slice_name))

    def end_orphan(self, lease_id: str) -> bool:
        """End a lease whose owner is gone before its grace is over; ``False`` when the owner is there, or may
        still come back to a book that was restarted."""
        return bool(self._in_turn(lambda: self._keeper.end_orphan(lease_id)))

    def _in_turn(self, work: Callable[[], Any]) -> Any:
        answer: Future[Any] = Future()
        self._inbox.put(Command(work, answer))
        return answer.result()

    # -- the turn --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                self._turn()
        except BaseException:  # process boundary: a book that cannot turn must not pretend to be one
            traceback.print_exc()
            os._exit(1)  # Ray starts the next one, which reads the ledger

    def _turn(self) -> None:
        commands: list[Command] = []
        events: list[Any] = []
        for event in self._inbox.take(TURN_S):
            (commands if isinstance(event, Command) else events).append(event)
        answers = [self._obey(command) for command in commands]
        self._keeper.turn(events)
        for answer in answers:  # what a command changed is written down by now
            answer()

    def _obey(self, command: Command) -> Callable[[], None]:
        try:
            result = command.work()
        except Refused as refusal:
            return partial(command.answer.set_exception, refusal)
        return partial(command.answer.set_result, result)
