"""The machine of replicas, with few words for the events that tests need."""

from __future__ import annotations

from typing import Any

from raytpu.plan.replica_messages import (
    Attached,
    Leaving,
    Lost,
    Pulled,
    Ready,
    To,
    Voted,
)
from raytpu.plan.replica_protocol import State, advance, begin, recovering
from raytpu.plan.replica_view import View

HOSTS = 2


def machine(*founders: str, parts: int = 2, least: int = 1) -> State:
    """Nobody is ready yet; the first step is 7."""
    return begin(founders, hosts=HOSTS, parts=parts, least=least, step=7)


def restarted(*members: str, least: int = 1) -> State:
    return recovering(members, hosts=HOSTS, parts=2, least=least, restart=1)


def after(state: State, *events: Any) -> tuple[State, list[To]]:
    """The state after all of them, and everything told meanwhile."""
    told: list[To] = []
    for event in events:
        state, more = advance(state, event)
        told += more
    return state, told


def ready(*members: str) -> list[Ready]:
    return [Ready(member=member, position=position) for member in members for position in range(HOSTS)]


def votes(state: State, *members: str) -> list[Voted]:
    """Of every host of ``members`` in the view as it is."""
    view = view_of(state)
    return [
        Voted(member=member, position=position, epoch=view.epoch, step=view.step)
        for member in members
        for position in range(HOSTS)
    ]


def pulled(state: State, *members: str) -> list[Pulled]:
    view = view_of(state)
    return [
        Pulled(member=member, position=position, epoch=view.epoch, step=view.step)
        for member in members
        for position in range(HOSTS)
    ]


def attached(
    view: View | None, *members: str, applied: int | None, voted: tuple[int, int] | None = None
) -> list[Attached]:
    return [
        Attached(member=member, position=position, view=view, applied=applied, voted=voted)
        for member in members
        for position in range(HOSTS)
    ]


def lost(member: str) -> Lost:
    return Lost(member=member, reason="gone")


def leaving(member: str) -> Leaving:
    return Leaving(member=member, reason="preempted")


def view_of(state: State) -> View:
    assert state.view is not None
    return state.view


def running(*members: str, **options: Any) -> State:
    state, _ = after(machine(*members, **options), *ready(*members))
    return state


def with_joiner(*members: str, **options: Any) -> State:
    """Step 7 is committed, and ``new`` joins at step 8."""
    state = running(*members, **options)
    state, _ = after(state, *ready("new"))
    state, _ = after(state, *votes(state, *members))
    return state


def to_all(message: Any, *members: str) -> list[To]:
    return [To(member=member, position=None, message=message) for member in members]
