"""Where the ledger is kept while no book runs: in the cluster's own key-value store."""

from __future__ import annotations

import pickle
import sys
from importlib.metadata import version

from raytpu.gang import ray_internals
from raytpu.plan.ledger import Ledger

_KEY = "book"


def write_ledger(ledger: Ledger) -> None:
    """On return, a book that starts reads this one."""
    ray_internals.store(_KEY, pickle.dumps((version("raytpu"), pickle.dumps(ledger))))


def read_ledger() -> Ledger:
    """The ledger written last; empty when there is none, or when another version of raytpu wrote it.

    A version may mean something else by the same fields. Who replaces raytpu on a cluster that lives on, ends
    its leases: their owners are told, and their slices are free.
    """
    written = ray_internals.stored(_KEY)
    if written is None:
        return Ledger()
    by, pickled = pickle.loads(written)
    if by != version("raytpu"):
        print(f"raytpu: the ledger of raytpu {by} is not read by {version('raytpu')}", file=sys.stderr)
        return Ledger()
    ledger: Ledger = pickle.loads(pickled)
    return ledger
