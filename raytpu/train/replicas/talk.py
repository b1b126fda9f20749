"""What hosts of replicas and the coordinator say to each other, over the streams of ``gang.stream``.

The protocol's own messages are those of ``plan.replica_protocol``; here is what carries them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Endpoint = tuple[str, int]
"""Address and port at which a host exchanges arrays with its peers."""


# -- a host says -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first word on every stream. ``attached`` is what a host knows that comes back to a coordinator."""

    member: str
    position: int
    endpoint: Endpoint
    attached: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A sign of life, once a second."""

    step: int
    """The step that the host is at."""
    phase: str = ""
    """What keeps it from the step by intent, such as compiling or saving; empty when nothing does."""
    exchanging: bool = False
    """It has computed its contribution and waits for its peers or for the decision."""


@dataclass(frozen=True, slots=True)
class Started:
    """Where the run's data stood before the first step of this start, for those that join later."""

    step: int
    position: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuses:
    """A peer cannot be reached, in this epoch."""

    member: str
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The train function is done and so is the last save: the end of the stream is no loss."""


# -- the coordinator says ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Closed:
    """A replica has finished with all its hosts, so the last save is durable: the others may end as well."""


@dataclass(frozen=True, slots=True)
class ShowStacks:
    """Print what every thread is doing: somebody keeps the others waiting."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A message of the protocol, and what a host needs to act on it."""

    message: Any
    endpoints: Mapping[str, tuple[Endpoint, ...]] = field(default_factory=dict)
    """Of every member, by position."""
    started: Started | None = None
