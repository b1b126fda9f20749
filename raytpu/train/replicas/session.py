"""Steps that count only when every living replica has made them, on the host's side.

A step is made of parts of its global batch. This host's replica computes the parts that the view deals to it,
exchanges them with the hosts at the same position of the other replicas, and votes. When all have voted the
step is committed, and every host applies the average. Until then the contributions are kept, so that a step
is made again, by those who are left, without computing anything twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from raytpu.errors import DeadlineExceeded, RunFailed
from raytpu.plan import ProcessAssignment
from raytpu.plan.replica_messages import Committed, Pulled, Ready, ViewChanged, Voted
from raytpu.plan.replica_view import View
from raytpu.spec import Deadlines
from raytpu.train.job import ReplicaPlace
from raytpu.train.replicas.array_layout import ArraySpec, Source
from raytpu.train.replicas.averaging_round import Round
from raytpu.train.replicas.endpoint import Endpoint
from raytpu.train.replicas.frames import PeerLost
from raytpu.train.replicas.membership import Membership
from raytpu.train.replicas.peer_exchange import PeerExchange, RoundCancelled
from raytpu.train.replicas.state_transfer import pull_state, serve_state
from raytpu.train.replicas.talk import Closed, Started

Arrays = Sequence[np.ndarray]

EXCHANGE_S = 3600.0
"""For one average: longer than any save or evaluation for which a peer may pause. Peers that are gone or
stuck are noticed far sooner, by the coordinator; this is the last resort against one that is neither."""


class ReplicaSession:
    """One host's part in a run of replicas. Used by one thread, that of the train function."""

    def __init__(self, place: ReplicaPlace, assignment: ProcessAssignment, deadlines: Deadlines) -> None:
        self.place, self._deadlines = place, deadlines
        self._endpoint = Endpoint(
            me=place.member,
            bind=(assignment.address, place.settings.port),
            token=place.coordinator.token,
        )
        self._exchange = PeerExchange(self._endpoint)
        serve_state(self._endpoint, self._state_at)
        self.membership = Membership(
            place,
            assignment.position,
            self._endpoint.address,
            lambda epoch: self._exchange.cancel(epoch - 1),
        )
        self._me = place.member
        self._view: View | None = None
        self._said_pulled = -1
        self._state: Callable[[], Arrays] | None = None
        self._applied = -1
        self.rounds = 0
        """Averages that were committed here."""
        self.state_changed = threading.Condition()
        """Held while the state is being changed or copied: a copy of an array that is donated is lost."""

    # -- before the first step ---------------------------------------------------------------------------

    def begin(self, step: int, position: Mapping[str, Any]) -> None:
        """This replica has the state after ``step`` by itself; wait until the run begins."""
        self.membership.say(Started(step, dict(position)))
        self._say_ready()
        while self._view is None:
            self._hear("the other replicas to be ready")

    def join(self, like: Sequence[ArraySpec]) -> tuple[int, list[np.ndarray]]:
        """Take the state from a living replica: the step that it is after, and its arrays on this host."""
        self._say_ready()
        while True:
            while self._view is None or self._me not in self._view.donors:
                self._hear("a place among the replicas")
            view = self._view
            donor = view.donors[self._me]
            try:
                arrays = pull_state(
                    self._endpoint,
                    donor,
                    self.membership.peers(view)[donor],
                    step=view.step - 1,
                    epoch=view.epoch,
                    like=like,
                    deadline_s=self._deadlines.checkpoint_s,
                )
            except PeerLost:
                while self._view is view:
                    self._hear("another replica to take the state from")
                continue
            self._applied = view.step - 1
            self._say_pulled()
            return view.step - 1, arrays

    def _say_ready(self) -> None:
        self.membership.say(Ready(member=self._me, position=self.membership.position))

    # -- steps -------------------------------------------------------------------------------------------

    @property
    def parts(self) -> tuple[int, ...]:
        """The parts that this replica computes as things stand; any thread may ask."""
        view = self._view
        return () if view is None else view.parts_of(self._me)

    def parts_to_read(self) -> tuple[int, ...]:
        """The parts whose rows are wanted soon; with ``every_steps`` others wait for the outer step."""
        return self.parts if self.place.settings.every_steps == 1 else self.parts[:1]

    @property
    def sent_bytes(self) -> int:
        """What this host has sent to its peers for averages."""
        return self._exchange.sent_bytes

    @property
    def leads(self) -> bool:
        """Whether this replica speaks for all: it saves, and its metrics are recorded."""
        view = self._view
        return view is not None and view.full[:1] == (self._me,)

    def commit(
        self, step: int, compute: Callable[[int], Sequence[Source]], like: Sequence[ArraySpec]
    ) -> list[np.ndarray]:
        """The average over all parts of ``step``, once every living replica has it.

        Args:
            compute: contribution of one part; the arrays must stay as they are until this returns.
            like: shapes and dtypes of what it gives.

        Raises:
            SliceLost: this replica was given up.
            RunFailed: the driver is gone, or no replica has the state any more.
        """
        contributions: dict[int, Sequence[Source]] = {}
        averages: list[np.ndarray] | None = None
        while True:
            view = self._view
            assert view is not None, "begin or join comes first"
            if view.step != step:
                raise RunFailed(f"{self._me} is at step {step}, and the replicas are at step {view.step}")
            if view.running and averages is None:
                for part in view.parts_of(self._me):
                    if part not in contributions:
                        contributions[part] = compute(part)
                with self.membership.exchanging():
                    averages = self._average(view, contributions, like)
            with self.membership.exchanging():
                word = self._hear(f"the replicas to commit step {step}")
            if isinstance(word, Committed):
                if averages is None:
                    raise RunFailed(f"step {step} was committed without {self._me}: a bug of raytpu's")
                self.rounds += 1
                return averages
            averages = None

    def applied(self, step: int, state: Callable[[], Arrays]) -> None:
        """The state is now that after ``step``; ``state`` copies this host's part. The caller holds
        ``state_changed``."""
        self._applied, self._state = step, state
        self.state_changed.notify_all()

    def finish(self, save: Callable[[], None]) -> None:
        """The train function is done. Returns when the last save is durable: the one who leads has made it,
        and whoever comes to lead because that one is lost makes it with ``save``. Collective."""
        led = self.leads
        while not led:
            word = self.membership.next("the last save of the replica that leads")
            if isinstance(word, Closed):
                break
            self._view = word.view
            led = self.leads
            if led:
                save()
        self.membership.finish()

    def close(self) -> None:
        """Leave: a host that has not finished is lost to the others."""
        self.membership.close()
        self._endpoint.close()

    def _average(
        self, view: View, contributions: Mapping[int, Sequence[Source]], like: Sequence[ArraySpec]
    ) -> list[np.ndarray] | None:
        mine = {part: contributions[part] for part in view.parts_of(self._me)}
        peers = self.membership.peers(view)
        round = Round(epoch=view.epoch, step=view.step, me=self._me, peers=peers, parts=view.parts)
        try:
            averages = self._exchange.average(mine, round, deadline_s=EXCHANGE_S, like=like)
        except RoundCancelled:
            return None
        except PeerLost as lost:
            self.membership.accuse(lost.member, view.epoch, lost.reason)
            return None
        self.membership.say(
            Voted(member=self._me, position=self.membership.position, epoch=view.epoch, step=view.step)
        )
        return averages

    def _hear(self, waited_for: str) -> Committed | ViewChanged:
        word = self.membership.next(waited_for)
        if isinstance(word, Closed):
            raise RunFailed("the others have finished the run")
        self._view = word.view
        self._say_pulled()
        return word

    def _say_pulled(self) -> None:
        """Again in every view in which this replica counts as one without the state."""
        view = self._view
        if view is None or self._me not in view.donors or self._applied != view.step - 1:
            return
        if self._said_pulled < view.epoch:
            self._said_pulled = view.epoch
            self.membership.say(
                Pulled(member=self._me, position=self.membership.position, epoch=view.epoch, step=view.step)
            )

    def _state_at(self, step: int) -> Arrays:
        """For a replica that joins: this host's part of the state after exactly ``step``. Any thread."""
        with self.state_changed:
            there = self.state_changed.wait_for(lambda: self._applied >= step, self._deadlines.checkpoint_s)
            if not there:
                raise DeadlineExceeded(f"the state after step {step}", self._deadlines.checkpoint_s)
            if self._applied != step or self._state is None:
                raise RunFailed(f"asked for the state after step {step}, this is after step {self._applied}")
            return self._state()
