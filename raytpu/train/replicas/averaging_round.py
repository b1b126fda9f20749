"""One round of averaging: what this host owes its peers, what they owe it, and how far both are."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from raytpu.errors import HostMismatch, SpecError
from raytpu.train.replicas.array_layout import ArraySpec, Chunk, Source, cut, fingerprint, specs_of
from raytpu.train.replicas.frames import Frame, PeerLost
from raytpu.train.replicas.ordered_mean import OrderedMean
from raytpu.train.replicas.result_memory import ResultMemory

PART, MEAN = 1, 2
"""Kinds of frames: a chunk of one part on its way to its owner; the mean of a chunk on its way from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Who averages what. All members but ``me`` must have the same."""

    epoch: int
    step: int
    me: str
    peers: Mapping[str, tuple[str, int]]
    """Address of the endpoint of every member, ``me`` or not."""
    parts: tuple[str, ...]
    """parts[p] is the member that contributes part p."""

    @property
    def key(self) -> tuple[int, int]:
        return self.epoch, self.step

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(member for member in self.peers if member != self.me)

    def __str__(self) -> str:
        return f"the average of step {self.step} (epoch {self.epoch})"


Outgoing = tuple[Frame, Callable[[], list[np.ndarray]]]
"""A header, and what gives the bytes after it; may wait for them to come from a device."""


class AveragingRound:
    """State of a round. Everything is called under the lock of ``changed``, except ``receive_part`` and
    ``compute_own``, which take it where they need it."""

    def __init__(
        self,
        round: Round,
        own: Mapping[int, Sequence[Source]],
        like: Sequence[ArraySpec],
        memory: ResultMemory,
        changed: threading.Condition,
        wake: Callable[[], None],
    ) -> None:
        """Raises SpecError: ``own`` is not what ``round`` and ``like`` say."""
        self.round, self._changed, self._wake = round, changed, wake
        specs = tuple(like)
        _check(round, own, specs)
        self.mean = OrderedMean(specs, len(round.parts), own, memory)
        self.chunks = cut(specs, tuple(dict.fromkeys(round.parts)))
        self.check = fingerprint(specs, round.parts)
        self.failure: Exception | None = None
        self._mine = [chunk for chunk in self.chunks if chunk.owner == round.me]
        self._turns = {chunk.index: 0 for chunk in self._mine}
        """How many foreign parts of a chunk have been added."""
        self._unfinished = len(self._mine)
        foreign = [round.parts[part] for part in self.mean.foreign]
        self._parts_owed = {member: len(self._mine) * foreign.count(member) for member in round.others}
        self._means_owed = {
            member: sum(chunk.owner == member for chunk in self.chunks) for member in round.others
        }
        self._parts_out: dict[str, deque[Outgoing]] = {member: deque() for member in round.others}
        self._means_out: dict[str, deque[Outgoing]] = {member: deque() for member in round.others}
        for chunk in self.chunks:
            if chunk.owner != round.me:
                for part in sorted(own):
                    frame = self._frame(PART, part, chunk)
                    contents = partial(self.mean.own_bytes, part, chunk)
                    self._parts_out[chunk.owner].append((frame, contents))
        self._unsent = {member: len(self._parts_out[member]) + len(self._mine) for member in round.others}

    @property
    def ended(self) -> bool:
        """Successfully or not. The result is complete, and no buffer of the round is still being sent."""
        return self.failure is not None or not (
            self._unfinished or any(self._means_owed.values()) or any(self._unsent.values())
        )

    def waits_for(self, member: str) -> bool:
        """Whether the end of a connection to ``member`` is a loss. Not when all but one frame to it has been
        sent: it may have that one and have left, and we not have noted it yet."""
        return bool(self._parts_owed[member] or self._means_owed[member] or self._unsent[member] > 1)

    def late(self) -> list[str]:
        """Who keeps the round from ending. A member that owes contributions is the cause of what others
        owe."""
        return [member for member, count in self._parts_owed.items() if count] or [
            member for member in self.round.others if self._means_owed[member] or self._unsent[member]
        ]

    def fail(self, error: Exception) -> None:
        if not self.ended:
            self.failure = error
            self._changed.notify_all()
            self._wake()

    def lose(self, member: str, reason: str, *, while_sending: bool = False) -> None:
        """A connection to ``member`` has ended, or a frame to it could not be sent."""
        if member in self._unsent and (while_sending or self.waits_for(member)):
            self.fail(PeerLost(member, reason))

    def next_for(self, member: str) -> Outgoing | None:
        """What is to be sent next. Means first: they were made just now and are still in the cache."""
        for queue in (self._means_out.get(member), self._parts_out.get(member)):
            if queue and self.failure is None:
                return queue.popleft()
        return None

    def sent(self, member: str) -> None:
        self._unsent[member] -= 1
        if not self._unsent[member] and self.ended:
            self._wake()

    def place(self, frame: Frame, member: str) -> Chunk:
        """The chunk that a frame of this round carries.

        Raises:
            HostMismatch: ``member`` averages something else than we do, or is not the one to send this.
        """
        if frame.check != self.check:
            raise HostMismatch(
                f"{member} and {self.round.me} do not mean to average the same arrays and parts"
            )
        chunk = self.chunks[frame.chunk] if frame.chunk < len(self.chunks) else None
        if chunk is not None and chunk.size_bytes == frame.length:
            if frame.kind == MEAN and chunk.owner == member:
                return chunk
            if (
                frame.kind == PART
                and chunk.owner == self.round.me
                and frame.part in self.mean.foreign[self._turns[chunk.index] :]
                and self.round.parts[frame.part] == member
            ):
                return chunk
        raise HostMismatch(f"{member} sent what is not its to send: {frame}")

    def received_mean(self, member: str) -> None:
        self._means_owed[member] -= 1
        if not self._means_owed[member] and self.ended:
            self._wake()

    def receive_part(self, frame: Frame, chunk: Chunk, data: np.ndarray | None) -> None:
        """Add a part of a chunk that we own, after those before it; ``data`` as for ``OrderedMean.add``.
        Returns early when the round has failed."""
        turn = self.mean.foreign.index(frame.part)
        with self._changed:
            self._parts_owed[self.round.parts[frame.part]] -= 1
            while self._turns[chunk.index] != turn:
                if self.failure is not None:
                    return
                self._changed.wait()
        self.mean.add(chunk, frame.part, data)
        with self._changed:
            self._turns[chunk.index] += 1
            if turn == len(self.mean.foreign) - 1:
                self._distribute(chunk)
            else:
                self._changed.notify_all()

    def compute_own(self) -> None:
        """The results when every part is our own; there are no owners then but us."""
        if self.mean.foreign:
            return
        for chunk in self._mine:
            if self.failure is not None:
                return
            self.mean.add_own(chunk)
            with self._changed:
                self._distribute(chunk)

    def _distribute(self, chunk: Chunk) -> None:
        self._unfinished -= 1
        outgoing = self._frame(MEAN, 0, chunk), partial(self.mean.result_bytes, chunk)
        for member in self.round.others:
            self._means_out[member].append(outgoing)
        self._changed.notify_all()
        if not self._unfinished and self.ended:
            self._wake()

    def _frame(self, kind: int, part: int, chunk: Chunk) -> Frame:
        return Frame(kind, part, chunk.index, *self.round.key, self.check, chunk.size_bytes)


def _check(round: Round, own: Mapping[int, Sequence[Source]], specs: tuple[ArraySpec, ...]) -> None:
    mine = {part for part, member in enumerate(round.parts) if member == round.me}
    if set(own) != mine:
        raise SpecError(f"{round.me} computes parts {sorted(mine)}, but contributes {sorted(own)}")
    if strangers := set(round.parts) - set(round.peers) - {round.me}:
        raise SpecError(f"no address of {', '.join(sorted(strangers))}")
    if not round.parts:
        raise SpecError("there are no parts to average")
    for part, arrays in own.items():
        if specs_of(arrays) != specs:
            raise SpecError(f"part {part} has other shapes or dtypes than the arrays to be averaged")
