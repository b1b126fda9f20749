"""What the hosts of replicas and their coordinator tell each other. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from raytpu.plan.replica_view import View

# -- what hosts and the supervisor tell ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A host has compiled its programs and waits to take part."""

    member: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """A host of a joiner has the state after ``step - 1``."""

    member: str
    position: int
    epoch: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Voted:
    """A host has the state after ``step - 1`` and the complete average of ``step``."""

    member: str
    position: int
    epoch: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """A host that was ready before is connected again, to this coordinator or to the one after it."""

    member: str
    position: int
    view: View | None
    """The last one it heard of."""
    applied: int | None
    """The step after which its state is; ``None`` while it has no whole state."""
    voted: tuple[int, int] | None
    """Epoch and step of its last vote, while it holds that average and has not applied it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A member is no more, whatever its hosts still say. Told of a joiner that is not ready yet as well."""

    member: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A member goes away soon, and is released at the end of the step that is under way."""

    member: str
    reason: str


Told = Ready | Pulled | Voted | Attached
Event = Told | Lost | Leaving


# -- what the coordinator tells --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewChanged:
    """Go on in this view; what belongs to another epoch is void."""

    view: View


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Apply the average of ``step`` that you voted for, then go on in ``view``."""

    step: int
    view: View


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted:
    """The member is not one any more: end."""

    member: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """No member has the state any more."""

    reason: str


Message = ViewChanged | Committed | Evicted | Over


@dataclass(frozen=True, slots=True, kw_only=True)
class To:
    """A message and who gets it: one host, or every host of the member that is attached.

    A host is attached once its ``Ready`` or ``Attached`` on its present connection was given to the machine,
    not when it is connected: what is sent to it before would be out of order with what it is told then. A
    host gets its messages in the order in which ``advance`` gave them. Whoever is not attached misses them,
    and hears of what counts when it attaches. What arrives from a connection that is not a host's latest is
    not given to the machine.
    """

    member: str
    position: int | None
    message: Message
