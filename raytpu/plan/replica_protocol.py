"""How replicas commit a step on all of them or on none, whoever dies. The coordinator's side, pure.

Step s is committed when every host of every member of the view has voted for it. A vote means: I hold the
state after s - 1 and the complete average of s. Applying needs no peers, so whatever happens after the last
vote, every host that lives can make the step. A loss makes another view; what was voted for in the old one is
void, and the step is made again by those who are left. Its result is a pure function of state and batch, so
it is the same bits.

``advance`` is the whole machine: a state and one event give the next state and the messages to send. There is
no clock here: whoever drives the machine decides when a host that is silent or does not attach is lost.

What a host does:

* It tells ``Ready`` once, when it waits for its first view. On every later connection it tells ``Attached``
  first. What it has told on a connection that broke may be lost; ``Attached`` says it all again.
* A view of another epoch voids its vote and its average. The average of an older epoch is dropped then, not
  before: until then a commit may still ask for it. A view that it has already changes nothing.
* As a joiner it pulls from the host of its donor at its own position, as soon as that holds exactly the state
  after ``step - 1``; a state of that step that it has already, from whatever donor, will do. It tells
  ``Pulled`` again in each epoch.
* It exchanges only with members of its view, by (epoch, step).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

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
    To,
    Told,
    ViewChanged,
    Voted,
)
from raytpu.plan.replica_view import View, next_view

EPOCHS_OF_ONE_COORDINATOR = 1_000_000
"""Epochs of a restarted coordinator start at a multiple of this: more losses and joins than one will see."""

Host = tuple[str, int]
"""Member and position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that the coordinator knows. Made by ``begin`` or ``recovering``."""

    hosts: int
    """Of each member."""
    parts: int
    least: int
    """Members with state without which nothing runs."""
    restart: int
    """How often the coordinator of this run was started anew; 0 in the first."""
    named: tuple[str, ...]
    """Members to wait for before the first view."""
    restored: int | None
    """Step after which the state of ``named`` is when they are ready; ``None``: not known from here."""
    view: View | None = None
    """``None`` until everybody who is waited for is there or lost."""
    heard: Mapping[Host, Attached] = field(default_factory=dict)
    """What hosts said that are in no view of this coordinator yet, in order of their first word."""
    pulled: frozenset[Host] = frozenset()
    """Hosts of joiners that have the state, told in this view."""
    votes: frozenset[Host] = frozenset()
    """For the step of the view, told in this view."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """Lost members, with the reason."""
    leaving: Mapping[str, str] = field(default_factory=dict)
    """Members that are released at the next commit which leaves somebody with the state, with the reason."""
    over: str | None = None
    """Why there is nothing left to do."""

    def is_here(self, member: str) -> bool:
        """Whether every host of it was heard of, and it is in no view of this coordinator yet."""
        return all(host in self.heard for host in self.hosts_of(member))

    def hosts_of(self, member: str) -> list[Host]:
        return [(member, position) for position in range(self.hosts)]


Answer = tuple[State, tuple[To, ...]]


def begin(founders: tuple[str, ...], hosts: int, parts: int, least: int, step: int) -> State:
    """A coordinator before the first view of a run, also when one before it died before it made that view.

    Args:
        founders: members that come with the state after ``step - 1``; at least one. Nothing runs until each
            is ready or lost.
        hosts: of each member.
        parts: that a batch is divided into.
        least: members with state without which nothing runs.
        step: the first to be made.

    Raises:
        ValueError: no founders, or a number below one.
    """
    if not founders:
        raise ValueError("replicas need at least one founder: nobody would have the state")
    return _checked(
        State(hosts=hosts, parts=parts, least=least, restart=0, named=founders, restored=step - 1)
    )


def recovering(members: tuple[str, ...], hosts: int, parts: int, least: int, restart: int) -> State:
    """A coordinator that takes over from one that died after it made a view; it learns from ``Attached``.

    It goes on when each of ``members``, and each member of the newest view that a host has, is attached with
    all its hosts or lost.

    Args:
        members: those of the last view that was recorded. A view is recorded before it is sent; one that is
            missing at the end does no harm. Without them, hosts that were evicted and have not noticed could
            be taken for all that there is.
        hosts: of each member.
        parts: that a batch is divided into.
        least: members with state without which nothing runs.
        restart: larger at every restart in this run. It keeps epochs apart: the last view of a coordinator
            may be known only to hosts that attach late, when the next coordinator has made others.

    Raises:
        ValueError: a number below one.
    """
    if restart < 1:
        raise ValueError(f"restart must be 1 or more, not {restart}")
    return _checked(
        State(hosts=hosts, parts=parts, least=least, restart=restart, named=members, restored=None)
    )


def _checked(state: State) -> State:
    for name in ("hosts", "parts", "least"):
        if getattr(state, name) < 1:
            raise ValueError(f"{name} must be 1 or more, not {getattr(state, name)}")
    return state


def advance(state: State, event: Event) -> Answer:
    """The state after ``event``, and what to send, in order; what does not count any more changes nothing."""
    if isinstance(event, Lost):
        return _lost(state, event) if state.over is None else (state, ())
    if isinstance(event, Leaving):
        known = event.member in state.lost or event.member in state.leaving
        leaving = {**state.leaving, event.member: event.reason}
        return (state if known else replace(state, leaving=leaving)), ()
    if state.over is not None:
        return state, (_answer(event, Over(reason=state.over)),)
    if event.member in state.lost:
        return state, (_answer(event, Evicted(member=event.member, reason=state.lost[event.member])),)
    match event:
        case Ready():
            applied = state.restored if event.member in state.named else None
            return _attached(
                state,
                Attached(
                    member=event.member, position=event.position, view=None, applied=applied, voted=None
                ),
            )
        case Attached():
            return _attached(state, event)
        case Pulled() | Voted():
            return _told(state, event)


def _told(state: State, event: Pulled | Voted) -> Answer:
    view, host = state.view, (event.member, event.position)
    if view is None or host in state.heard:
        return state, ()
    if event.member not in view.members:
        return state, (_answer(event, Evicted(member=event.member, reason="not a member")),)
    if (event.epoch, event.step) != (view.epoch, view.step):
        return state, ()
    if isinstance(event, Voted):
        return _committed_if_all(replace(state, votes=state.votes | {host})) if view.running else (state, ())
    after = replace(state, pulled=state.pulled | {host})
    # While nothing runs no commit will come that makes the joiner full.
    if not view.running and event.member in view.donors and event.member in _full(after, view):
        return _in_another_view(after, view)
    return after, ()


def _committed_if_all(state: State) -> Answer:
    view = state.view
    assert view is not None
    if not all(host in state.votes for member in view.members for host in state.hosts_of(member)):
        return state, ()
    joining = [member for member in _waiting(state) if member not in state.leaving]
    staying = [member for member in view.members if member not in state.leaving]
    # They have voted like all others: the step is made, and nobody needs them for the next one.
    released = {each: state.leaving[each] for each in view.members if staying and each in state.leaving}
    full = [member for member in view.members if member not in released]
    after = next_view(
        view,
        members=(*full, *joining),
        full=set(full),
        step=view.step + 1,
        parts=state.parts,
        least=state.least,
    )
    return _entered(replace(state, lost={**state.lost, **released}), after), (
        *_to_all(full, Committed(step=view.step, view=after)),
        *_to_all(joining, ViewChanged(view=after)),
        *(
            To(member=member, position=None, message=Evicted(member=member, reason=reason))
            for member, reason in released.items()
        ),
    )


def _lost(state: State, event: Lost) -> Answer:
    if event.member in state.lost:
        return state, ()
    heard = {host: fact for host, fact in state.heard.items() if fact.member != event.member}
    after = replace(state, lost={**state.lost, event.member: event.reason}, heard=heard)
    if state.view is None:
        after, told = _settled(after)
    elif event.member in state.view.members:
        after, told = _in_another_view(after, state.view)
    else:
        told = ()
    return after, (
        To(member=event.member, position=None, message=Evicted(member=event.member, reason=event.reason)),
        *told,
    )


def _in_another_view(state: State, view: View) -> Answer:
    """The step goes on with those who are not lost; over when none of them has the state."""
    full = _full(state, view)
    if not full:
        return _over(state, view.members)
    after = _without_lost(state, view, full)
    return _entered(state, after), _to_all(after.members, ViewChanged(view=after))


def _full(state: State, view: View) -> set[str]:
    """Members that are known to have the state after ``view.step - 1`` and are not lost."""
    have = state.pulled | state.votes
    return {
        member
        for member in view.members
        if member not in state.lost
        and (member not in view.donors or all(host in have for host in state.hosts_of(member)))
    }


def _without_lost(state: State, before: View, full: set[str]) -> View:
    living = tuple(member for member in before.members if member not in state.lost)
    # Who computes is not kept waiting for a joiner until the next commit; who waits anyway is.
    joining = _waiting(state) if len(full) < state.least else []
    members = (*living, *(member for member in joining if member not in living))
    return next_view(
        before, members=members, full=full, step=before.step, parts=state.parts, least=state.least
    )


def _waiting(state: State) -> list[str]:
    """New members that are ready with all hosts, in order of their first word."""
    return [member for member in dict.fromkeys(member for member, _ in state.heard) if state.is_here(member)]


def _entered(state: State, view: View) -> State:
    heard = {host: fact for host, fact in state.heard.items() if fact.member not in view.members}
    return replace(state, view=view, heard=heard, pulled=frozenset(), votes=frozenset())


# -- hosts that attach -----------------------------------------------------------------------------------


def _attached(state: State, fact: Attached) -> Answer:
    view, host = state.view, (fact.member, fact.position)
    if view is not None and fact.member in view.members:
        return _caught_up(state, view, fact)
    after = replace(state, heard={**state.heard, host: fact})
    if view is None:
        return _settled(after)
    # A member of a view that nobody else heard of is as good as a new one: it pulls what it lacks.
    if not view.running and after.is_here(fact.member):
        return _in_another_view(after, view)
    return after, ()


def _caught_up(state: State, view: View, fact: Attached) -> Answer:
    """A host of a member is back: it hears what it may have missed, and what it said may be news as well."""
    news = _news(view, fact)
    what: type[Voted | Pulled]
    if fact.voted == (view.epoch, view.step):
        what = Voted
    elif fact.member in view.donors and fact.applied == view.step - 1:
        what = Pulled
    else:
        return state, (news,)
    after, told = _told(
        state, what(member=fact.member, position=fact.position, epoch=view.epoch, step=view.step)
    )
    return after, (news, *told)


def _news(view: View, fact: Attached) -> To:
    """What brings a host up to ``view``, by what it said of itself."""
    if fact.member not in view.donors and _only_voted(view, fact):
        return _answer(fact, Committed(step=view.step - 1, view=view))
    return _answer(fact, ViewChanged(view=view))


def _only_voted(view: View, fact: Attached) -> bool:
    """Whether the host lacks just the commit before ``view.step``, and can apply it."""
    return fact.applied == view.step - 2 and fact.voted is not None and fact.voted[1] == view.step - 1


def _settled(state: State) -> Answer:
    """The first view of this coordinator, once everybody who is waited for is there or lost."""
    views = [fact.view for fact in state.heard.values() if fact.view is not None]
    newest = max(views, key=lambda view: (view.epoch, view.step), default=None)
    awaited = (*state.named, *(newest.members if newest is not None else ()))
    if not awaited or any(member not in state.lost and not state.is_here(member) for member in awaited):
        return state, ()
    before = newest if newest is not None else _never_begun(state)
    full = {
        member
        for member in before.members
        if member not in state.lost
        and _has_state(before, [state.heard[host] for host in state.hosts_of(member)])
    }
    if not full:
        return _over(state, ())
    view = _without_lost(state, before, full)
    view = replace(view, epoch=max(before.epoch + 1, state.restart * EPOCHS_OF_ONE_COORDINATOR))
    facts = [state.heard[host] for member in view.members for host in state.hosts_of(member)]
    return _entered(state, view), tuple(_news(view, fact) for fact in facts)


def _never_begun(state: State) -> View:
    """What stands for the view before the first one: those who were named, with the state they came with."""
    living = tuple(member for member in state.named if member not in state.lost)
    applied = [state.heard[host].applied for member in living for host in state.hosts_of(member)]
    step = max((each for each in applied if each is not None), default=0) + 1
    return View(epoch=0, step=step, members=living, parts=(), donors={}, running=False)


def _has_state(view: View, facts: list[Attached]) -> bool:
    """Whether the hosts of a member have the state after ``view.step - 1``, or will by the commit before.

    The view itself says that this commit was decided: no coordinator makes a view of a step before.
    """
    return all(
        fact.applied == view.step - 1 or (fact.member not in view.donors and _only_voted(view, fact))
        for fact in facts
    )


# -- answers ---------------------------------------------------------------------------------------------


def _over(state: State, members: Iterable[str]) -> Answer:
    reasons = "; ".join(f"{member}: {reason}" for member, reason in state.lost.items())
    why = f"no replica has the state any more ({reasons})"
    told = dict.fromkeys((*members, *(member for member, _ in state.heard)))
    return replace(state, over=why), _to_all(
        (each for each in told if each not in state.lost), Over(reason=why)
    )


def _answer(event: Told, message: Message) -> To:
    return To(member=event.member, position=event.position, message=message)


def _to_all(members: Iterable[str], message: Message) -> tuple[To, ...]:
    return tuple(To(member=member, position=None, message=message) for member in members)
