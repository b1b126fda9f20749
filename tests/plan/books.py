"""A book of slices in which everything happens at once."""

from __future__ import annotations

from dataclasses import replace

from raytpu.plan import Inventory, SliceState, plan_gang
from raytpu.plan import ledger as entries
from raytpu.plan.book_view import BookView, Growing
from raytpu.plan.inventory import Outsider
from raytpu.plan.ledger import Ledger, Notice, Quarantine
from raytpu.plan.occupancy import seen_with
from raytpu.plan.outsiders import ChipUse, with_outsiders
from raytpu.plan.slices_report import StrayGroup
from tests.plan.builders import host, slice_state, slices
from tests.plan.ledgers import holding, queue_of, request

NOW_S = 1000.0

MINE = Outsider(who="placement group mine", since_s=900.0, fix="it ends with job 02000000 (python serve.py)")
STRAY = StrayGroup(name="raytpu/old/feed/slice-7", owner="old", slice_name="slice-7")


def whole(name: str, **changes: object) -> SliceState:
    """A v6e 2x4 slice whose node ids tell its hosts from others."""
    hosts = tuple(host(worker_id, node_id=f"{name}-{worker_id}") for worker_id in range(2))
    return replace(slice_state(name, host_states=hosts), **changes)  # type: ignore[arg-type]


def divided() -> SliceState:
    """A v6e 4x4 slice; somebody outside raytpu has one chip of host 3."""
    hosts = [host(worker_id, node_id=f"slice-6-{worker_id}") for worker_id in range(4)]
    hosts[3] = replace(hosts[3], chips_free=3)
    return slice_state("slice-6", topology="4x4", host_states=tuple(hosts))


def cluster() -> Inventory:
    used = tuple(host(worker_id, node_id=f"slice-2-{worker_id}", chips_free=0) for worker_id in range(2))
    lame = (host(0, node_id="slice-5-0"), host(1, node_id="slice-5-1", alive=False, chips=0, chips_free=0))
    bare = host(None, node_id="bare", address="10.0.0.9")
    return Inventory(
        slices=(
            whole("slice-0"),
            whole("slice-1"),
            slice_state("slice-2", host_states=used),
            whole("slice-3"),
            whole("slice-4"),
            slice_state("slice-5", host_states=lame),
            divided(),
            whole("slice-7"),
            slice_state(
                "unlabelled-10.0.0.9", host_states=(bare,), named=False, generation=None, topology=None
            ),
        )
    )


def ledger() -> Ledger:
    book = holding(Ledger(), "llm", ["slice-0", "slice-1"], now_s=400.0, save_s=60.0)
    book = entries.noticed(book, "llm", Notice(by="urgent", until_s=1012.0))
    book = entries.slice_lost(book, "llm", "slice-1", "slice-1/1: its raylet refuses connections")
    book = holding(book, "gone", ["slice-3"], now_s=100.0, orphan_grace_s=300.0)
    book = entries.owner_gone(book, "gone", 880.0)
    part = slices(topology="2x2", chips_per_host=None, sub_slice=True)
    book = queue_of(request("small", want=part), ledger=book)
    only = Inventory(slices=tuple(each for each in cluster().slices if each.name == "slice-6"))
    book = entries.placed(entries.granted(book, "small", plan_gang(part, only), 990.0), "small", 990.0)
    book = entries.quarantined(
        book, Quarantine(slice_name="slice-4", reason="flaky optics", since_s=1000.0 - 3 * 3600)
    )
    waiting = {"arrived_s": 940.0, "deadline_s": 4600.0}
    return queue_of(
        request("big", 2, **waiting),
        request("urgent", 3, priority=1, **waiting),
        request("next", **waiting),
        ledger=book,
    )


def view() -> BookView:
    uses = [ChipUse(node_id=f"slice-2-{worker_id}", lease_id=None, outsider=MINE) for worker_id in range(2)]
    book = ledger()
    seen = seen_with(cluster(), book, suspects={"slice-5-0": "its raylet does not answer"})
    return BookView(
        ledger=book,
        inventory=with_outsiders(seen, book, uses),
        orphans=frozenset({"gone"}),
        growing=(Growing(request_id="big", owner="big", generation="v6e", topology="2x4"),),
        now_s=NOW_S,
    )
