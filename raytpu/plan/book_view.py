"""What a book of slices tells whoever looks at it: the ledger, the cluster, and who is there. Data only."""

from __future__ import annotations

from dataclasses import dataclass

from raytpu.plan.inventory import Inventory
from raytpu.plan.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Growing:
    """One more slice of a shape, which the cluster was asked to bring up for a request that waits."""

    request_id: str
    owner: str
    generation: str
    topology: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BookView:
    """The book as it is at a moment."""

    ledger: Ledger
    inventory: Inventory
    """With the marks of the book."""
    orphans: frozenset[str]
    """Ids of requests and leases whose owner is not connected, or has been silent for too long."""
    awaited: frozenset[str] = frozenset()
    """Those orphans whose owner may still come back to a book that was restarted a moment ago."""
    growing: tuple[Growing, ...] = ()
    now_s: float
    """By the book's clock."""
