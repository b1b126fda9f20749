"""Hosts of replicas around a coordinator, simulated message by message. What may never happen is asserted.

The state of a host is a number that every step makes anew out of the state, the step, and what was computed
of each part. So a host that skips a step, applies one twice or computes with another state has another
number than ``expected``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random

from raytpu.plan.replica_messages import (
    Attached,
    Committed,
    Event,
    Evicted,
    Leaving,
    Lost,
    Message,
    Over,
    Pulled,
    Ready,
    Told,
    ViewChanged,
    Voted,
)
from raytpu.plan.replica_protocol import advance, begin, recovering
from raytpu.plan.replica_view import View

FIRST_STEP = 1
PARTS = 3


def gradient(value: int, position: int, step: int, part: int) -> int:
    return hash((value, position, step, part))


def after_step(value: int, average: tuple[int, ...]) -> int:
    return hash((value, average))


@cache
def expected(position: int, step: int) -> int:
    """The state after ``step`` of every host at ``position``."""
    if step < FIRST_STEP:
        return position
    value = expected(position, step - 1)
    return after_step(value, tuple(gradient(value, position, step, part) for part in range(PARTS)))


@dataclass(kw_only=True, eq=False)
class SimHost:
    member: str
    position: int
    applied: int | None = None
    value: int | None = None
    alive: bool = True
    was_ready: bool = False
    connected: bool = True
    attached: bool = False
    """The coordinator has the first word of this connection."""
    view: View | None = None
    computed: bool = False
    average: tuple[int, ...] | None = None
    voted: tuple[int, int] | None = None
    inbox: deque[Message] = field(default_factory=deque)
    outbox: deque[Told] = field(default_factory=deque)

    @property
    def joins(self) -> bool:
        return self.view is not None and self.member in self.view.donors

    @property
    def has_state(self) -> bool:
        """The state from which the step of its view is made."""
        return self.view is not None and self.applied == self.view.step - 1

    def forget_step(self) -> None:
        self.computed, self.average, self.voted = False, None, None


class World:
    """A coordinator, its supervisor, and all hosts that there ever were."""

    def __init__(self, founders: int, hosts: int, least: int) -> None:
        self.size, self.least = hosts, least
        self.hosts: dict[tuple[str, int], SimHost] = {}
        self.founders = tuple(self.start_member(has_state=True) for _ in range(founders))
        self.state = begin(self.founders, hosts, PARTS, least, FIRST_STEP)
        self.records: list[View] = []
        """Every view that a coordinator made, written down before it was sent."""
        self.ever_lost: set[str] = set()
        self.restarts = 0
        self.sent: dict[tuple[int, int, int, int], int] = {}
        """What was computed, by (epoch, step, part, position); it may arrive after its sender is dead."""
        self.cast: dict[tuple[int, int], set[tuple[str, int]]] = {}
        """Who voted, by (epoch, step)."""
        self.views: dict[tuple[int, int], View] = {}

    # -- what happens to them --------------------------------------------------------------------------

    def start_member(self, *, has_state: bool = False) -> str:
        name = f"slice-{len(self.hosts) // self.size}"
        for position in range(self.size):
            host = SimHost(member=name, position=position)
            if has_state:
                host.applied, host.value = FIRST_STEP - 1, expected(position, FIRST_STEP - 1)
            self.hosts[name, position] = host
        return name

    def kill(self, host: SimHost) -> None:
        """What it has sent may still arrive."""
        host.alive = host.attached = False
        host.inbox.clear()

    def break_connection(self, host: SimHost) -> None:
        host.connected = host.attached = False
        host.inbox.clear()
        host.outbox.clear()

    def declare_lost(self, member: str) -> None:
        self.ever_lost.add(member)
        self.feed(Lost(member=member, reason="gone"))

    def notice(self, member: str) -> None:
        """It goes away soon; its hosts work until they are told to end."""
        self.ever_lost.add(member)
        self.feed(Leaving(member=member, reason="preempted"))

    def kill_coordinator(self, *, old_record: bool = False) -> None:
        """Another one knows the record, or the one before the last entry, and not who was lost."""
        for host in self.hosts.values():
            self.break_connection(host)
        self.restarts += 1
        if not self.records:
            self.state = begin(self.founders, self.size, PARTS, self.least, FIRST_STEP)
            return
        record = self.records[-2] if old_record and len(self.records) > 1 else self.records[-1]
        self.state = recovering(record.members, self.size, PARTS, self.least, self.restarts)

    def broken(self) -> list[str]:
        """Members with a dead host that this coordinator does not know to be lost."""
        dead = dict.fromkeys(host.member for host in self.hosts.values() if not host.alive)
        return [member for member in dead if member not in self.state.lost]

    def healthy(self) -> list[str]:
        """Members of which every host lives and that were never called lost."""
        dead = {host.member for host in self.hosts.values() if not host.alive} | self.ever_lost
        return [member for member in dict.fromkeys(member for member, _ in self.hosts) if member not in dead]

    def with_state(self) -> list[str]:
        """Those of the healthy that are full members."""
        full = self.records[-1].full if self.records else self.founders
        return [member for member in self.healthy() if member in full]

    # -- what they do by themselves --------------------------------------------------------------------

    def enabled(self) -> list[Callable[[], None]]:
        return [action for host in self.hosts.values() for action in self._enabled(host)]

    def _enabled(self, host: SimHost) -> Iterator[Callable[[], None]]:
        if host.outbox:
            yield partial(self._tell, host)
        if not host.alive:
            return
        if host.inbox:
            yield partial(self._hear, host)
        if not host.connected:
            yield partial(self._connect, host)
        elif not host.was_ready:
            yield partial(self._be_ready, host)
        view = host.view
        if view is None:
            return
        if host.joins and not host.has_state:
            donor = self.hosts[view.donors[host.member], host.position]
            if donor.alive and donor.applied == view.step - 1:
                yield partial(self._pull, host, donor)
        if not view.running:
            return
        if view.parts_of(host.member) and not host.computed:
            yield partial(self._compute, host)
        if host.average is None:
            keys = [(view.epoch, view.step, part, host.position) for part in range(PARTS)]
            if all(key in self.sent for key in keys):
                yield partial(self._finish, host, keys)
        elif host.voted is None and host.has_state:
            yield partial(self._vote, host)

    def run(self, chance: Random, most: int, until: Callable[[], bool] = lambda: False) -> None:
        """Up to ``most`` actions in any order."""
        for _ in range(most):
            actions = self.enabled()
            if not actions or until():
                return
            chance.choice(actions)()
            self.check()

    def run_fairly(self, done: Callable[[], bool]) -> None:
        """Everybody acts in turn; whoever is broken is found to be, and replaced when too few are left."""
        for _ in range(100):
            if done():
                return
            for member in self.broken():
                self.declare_lost(member)
            actions = self.enabled()
            for host in list(self.hosts.values()):
                for action in list(self._enabled(host))[:1]:
                    action()
                    self.check()
            if not actions and not done():
                assert len(self.healthy()) < self.least, "nobody can do anything"
                self.start_member()
        raise AssertionError("no progress")

    # -- a host ----------------------------------------------------------------------------------------

    def _connect(self, host: SimHost) -> None:
        host.connected = True
        if host.was_ready:
            host.outbox.append(
                Attached(
                    member=host.member,
                    position=host.position,
                    view=host.view,
                    applied=host.applied,
                    voted=host.voted,
                )
            )

    def _be_ready(self, host: SimHost) -> None:
        host.was_ready = True
        host.outbox.append(Ready(member=host.member, position=host.position))

    def _pull(self, host: SimHost, donor: SimHost) -> None:
        host.applied, host.value = donor.applied, donor.value
        self._say_pulled(host)

    def _say_pulled(self, host: SimHost) -> None:
        assert host.view is not None
        if host.connected:
            host.outbox.append(
                Pulled(member=host.member, position=host.position, epoch=host.view.epoch, step=host.view.step)
            )

    def _compute(self, host: SimHost) -> None:
        view = host.view
        assert view is not None
        assert host.has_state, "computes from another state"
        assert host.value == expected(host.position, view.step - 1)
        host.computed = True
        for part in view.parts_of(host.member):
            key = view.epoch, view.step, part, host.position
            assert key not in self.sent, "a part computed twice in one epoch"
            self.sent[key] = gradient(host.value, host.position, view.step, part)

    def _finish(self, host: SimHost, keys: list[tuple[int, int, int, int]]) -> None:
        host.average = tuple(self.sent[key] for key in keys)

    def _vote(self, host: SimHost) -> None:
        assert host.view is not None
        epoch, step = host.voted = host.view.epoch, host.view.step
        assert host.value == expected(host.position, step - 1)
        self.cast.setdefault(host.voted, set()).add((host.member, host.position))
        if host.connected:
            host.outbox.append(Voted(member=host.member, position=host.position, epoch=epoch, step=step))

    def _hear(self, host: SimHost) -> None:
        match host.inbox.popleft():
            case Committed(step=step, view=view):
                self._apply(host, step)
                host.view = view
                assert host.member not in view.donors
            case ViewChanged(view=view):
                self._change(host, view)
            case Evicted() | Over():
                self.kill(host)

    def _apply(self, host: SimHost, step: int) -> None:
        assert host.applied == step - 1, "a step is skipped or applied twice"
        assert host.voted is not None
        assert host.voted[1] == step
        view = self.views[host.voted]
        everyone = {(member, position) for member in view.members for position in range(self.size)}
        assert self.cast[host.voted] >= everyone, "applied what not everybody voted for"
        assert host.value is not None
        assert host.average is not None
        host.applied, host.value = step, after_step(host.value, host.average)
        assert host.value == expected(host.position, step)
        host.forget_step()

    def _change(self, host: SimHost, view: View) -> None:
        known = host.view
        if known is not None and (known.epoch, known.step) == (view.epoch, view.step):
            assert known == view, "two views of one name"
            return
        assert known is None or known.epoch < view.epoch, "an older view"
        host.forget_step()
        host.view = view
        if host.joins and host.has_state:
            self._say_pulled(host)
        assert host.joins or host.has_state, "a member without the state"

    # -- the coordinator -------------------------------------------------------------------------------

    def _tell(self, host: SimHost) -> None:
        event = host.outbox.popleft()
        if isinstance(event, Ready | Attached):
            host.attached = host.alive
        self.feed(event)

    def feed(self, event: Event) -> None:
        was_over = self.state.over is not None
        before = self.state.view
        self.state, told = advance(self.state, event)
        if self.state.view is not None and self.state.view != before:
            self._check_view(self.state.view)
            self.records.append(self.state.view)
        if self.state.over is not None and not was_over:
            known = self.records[-1].full if self.records else self.founders
            assert not set(known) & set(self.healthy()), "over although somebody has the state"
        for to in told:
            assert not isinstance(to.message, Evicted) or to.member in self.ever_lost, f"{to.member} is well"
            for (member, position), host in self.hosts.items():
                if member == to.member and to.position in (None, position) and host.attached:
                    host.inbox.append(to.message)

    def _check_view(self, view: View) -> None:
        name = view.epoch, view.step
        assert name not in self.views, "two views of one name"
        self.views[name] = view
        if self.records:
            # A joiner of a view that nobody heard of may have to join again.
            dropped = set(self.records[-1].full) - set(view.members)
            assert dropped <= self.ever_lost, "dropped, and well"
        assert len(set(view.members)) == len(view.members)
        assert set(view.donors.values()) <= set(view.full)
        assert view.running == (len(view.full) >= self.least)
        assert len(view.parts) == (PARTS if view.running else 0)
        assert set(view.parts) <= set(view.full), "a part of nobody who has the state"
        if view.running:
            loads = [len(view.parts_of(member)) for member in view.full]
            assert max(loads) - min(loads) <= 1
        for member in view.members:
            for position in range(self.size):
                host = self.hosts[member, position]
                if host.alive and member in view.full:
                    up_to_date = host.applied == view.step - 1
                    can_be = host.applied == view.step - 2 and (host.voted or (0, 0))[1] == view.step - 1
                    assert up_to_date or can_be, f"{member} has not the state"

    def check(self) -> None:
        """Members with state are never more than one step apart, and never have another state."""
        if not self.records:
            return
        view = self.records[-1]
        for host in self.hosts.values():
            if host.alive and host.applied is not None:
                assert host.value == expected(host.position, host.applied)
                if host.member in view.full:
                    assert view.step - 2 <= host.applied <= view.step - 1
