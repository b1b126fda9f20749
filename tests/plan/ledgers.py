"""Ledgers with owners in them; a test changes one thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raytpu.plan import Inventory, plan_gang
from raytpu.plan import ledger as entries
from raytpu.plan.ledger import Ledger, Request
from tests.plan.builders import slice_state, slices


def inventory(count: int) -> Inventory:
    """Slices of v6e 2x4, ``slice-0`` onwards, whole and idle."""
    return Inventory(slices=tuple(slice_state(f"slice-{index}") for index in range(count)))


def request(owner: str, count: int = 1, **changes: Any) -> Request:
    """For slices of v6e 2x4; its id is the name of its owner."""
    plain = Request(
        id=owner, owner=owner, want=slices(count), arrived=0, arrived_s=0.0, deadline_s=1000.0, save_s=30.0
    )
    return replace(plain, **changes)


def queue_of(*requests: Request, ledger: Ledger | None = None) -> Ledger:
    """These requests, in the order in which they came."""
    ledger = ledger if ledger is not None else Ledger()
    for each in requests:
        ledger = entries.with_request(ledger, each)
    return ledger


def holding(ledger: Ledger, owner: str, names: list[str], now_s: float = 0.0, **changes: Any) -> Ledger:
    """``owner`` holds these slices, Ray has given them."""
    ledger = queue_of(request(owner, len(names), **changes), ledger=ledger)
    others = inventory(10)
    plan = plan_gang(slices(len(names)), Inventory(slices=tuple(s for s in others.slices if s.name in names)))
    return entries.placed(entries.granted(ledger, owner, plan, now_s), owner, now_s)
