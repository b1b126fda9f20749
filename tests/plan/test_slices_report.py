"""Who has which slice, as a person and as a machine are told."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from raytpu.plan import Inventory
from raytpu.plan import ledger as entries
from raytpu.plan.book_view import BookView
from raytpu.plan.ledger import Ledger
from raytpu.plan.occupancy import seen_with
from raytpu.plan.slices_report import SlicesReport, slices_document, slices_report
from raytpu.plan.slices_text import render_slices
from tests.plan.books import STRAY, view
from tests.plan.builders import host, slice_state
from tests.plan.ledgers import holding, inventory, queue_of, request

NOW_S = 500.0

GOLDEN = Path(__file__).parent / "golden"


def report(ledger: Ledger, cluster: Inventory | None = None, **changes: object) -> SlicesReport:
    seen = seen_with(inventory(2) if cluster is None else cluster, ledger, suspects={})
    plain = BookView(ledger=ledger, inventory=seen, orphans=frozenset(), now_s=NOW_S)
    return slices_report(replace(plain, **changes))  # type: ignore[arg-type]


def test_the_table_reads_as_agreed() -> None:
    """It is where people look when something is wrong: what it garbles, costs them hours."""
    text = render_slices(slices_report(view(), [STRAY]))

    assert f"{text}\n" == (GOLDEN / "slices.txt").read_text(encoding="utf-8")


def test_where_nothing_happens_nothing_else_is_said() -> None:
    """Empty sections teach people to read over the full ones."""
    assert render_slices(report(Ledger())).splitlines() == [
        "  SLICE    GENERATION  TOPOLOGY  HOSTS ALIVE  CHIPS FREE  HOLDER  SINCE",
        "  slice-0  v6e         2x4       2 of 2       8 of 8      -",
        "  slice-1  v6e         2x4       2 of 2       8 of 8      -",
    ]


def test_a_cluster_without_a_book_or_without_slices_says_so() -> None:
    nothing = BookView(ledger=Ledger(), inventory=Inventory(slices=()), orphans=frozenset(), now_s=NOW_S)

    assert render_slices(slices_report(nothing, has_book=False)) == (
        "this cluster has no TPU slices\n\n"
        "this cluster has no book of slices yet: nothing is held or waited for through raytpu"
    )


STATES = {
    "being placed": ("placing", "llm (being placed)"),
    "held": ("held", "llm"),
    "being given back": ("ending", "llm (being given back)"),
}


@pytest.mark.parametrize(("state", "shown"), STATES.values(), ids=STATES.keys())
def test_a_lease_that_comes_or_goes_is_told_from_one_that_is_held(state: str, shown: str) -> None:
    """`slices` would else show a holder while the run says that it still waits."""
    ledger = holding(Ledger(), "llm", ["slice-0"], now_s=NOW_S - 5)
    ledger = replace(ledger, leases=tuple(replace(each, state=state) for each in ledger.leases))  # type: ignore[arg-type]

    [_, line, _] = render_slices(report(ledger)).splitlines()

    assert re.split("  +", line)[-2:] == [shown, "5 s ago"]


def test_an_owner_that_may_come_back_to_a_restarted_book_is_marked() -> None:
    """Ended as an orphan, a run that is well would lose its slices."""
    ledger = queue_of(request("waits"), ledger=holding(Ledger(), "llm", ["slice-0", "slice-1"]))
    both = frozenset({"llm", "waits"})

    text = render_slices(report(ledger, orphans=both, awaited=both))

    assert (
        "  llm    lease llm: slice-0, slice-1  may come back to the restarted book  unless it comes back"
        in text
    )
    assert (
        "  waits  request waits                may come back to the restarted book  unless it comes back"
        in text
    )


def test_what_is_being_given_back_is_no_orphan() -> None:
    """It ends anyway; shown, somebody would wait for `gc` to do what is done already."""
    ledger = entries.ending(holding(Ledger(), "llm", ["slice-0"]), "llm")

    assert report(ledger, orphans=frozenset({"llm"})).orphans == ()


def test_an_idle_slice_is_kept_for_the_first_who_claims_it() -> None:
    ledger = holding(Ledger(), "llm", ["slice-0"])
    ledger = queue_of(request("big", 2), request("next"), ledger=ledger)

    rows = report(ledger).slices

    assert [row.kept_for for row in rows] == [None, "big"]


def test_free_chips_are_those_that_nobody_has() -> None:
    """Of a slice held whole none; of one in part, those of its idle living hosts."""
    hosts = (host(0, chips_free=1), host(1, alive=False, chips=0, chips_free=0))
    cluster = Inventory(slices=(slice_state("slice-0"), slice_state("slice-1", host_states=hosts)))

    rows = report(holding(Ledger(), "llm", ["slice-0"]), cluster).slices

    assert [(row.chips_free, row.chips, row.hosts_alive, row.hosts) for row in rows] == [
        (0, 8, 2, 2),
        (1, 8, 1, 2),
    ]


def test_a_host_that_does_not_answer_counts_as_dead() -> None:
    """`2 of 2 hosts alive, 4 of 8 free` sends a person to look for somebody who has the others."""
    died = host(0, chips_free=0, suspect="its raylet refuses connections")
    cluster = Inventory(slices=(slice_state("slice-0", host_states=(died, host(1))),))

    [row] = report(Ledger(), cluster).slices

    assert (row.hosts_alive, row.hosts, row.chips_free, row.chips) == (1, 2, 4, 8)


def test_the_document_has_what_the_text_has() -> None:
    """A script must not parse a table."""
    document = json.loads(json.dumps(slices_document(slices_report(view(), [STRAY]))))

    by_name = {row["name"]: row for row in document["slices"]}
    assert [holder["who"] for holder in by_name["slice-6"]["holders"]] == ["small", "a task or actor"]
    assert by_name["slice-0"]["holders"][0]["notice"] == {"by": "urgent", "until_s": 1012.0}
    assert by_name["slice-5"]["health"]["state"] == "broken"
    assert [row["owner"] for row in document["queue"]] == ["urgent", "big", "next"]
    assert document["quarantines"] == [
        {"slice_name": "slice-4", "reason": "flaky optics", "since_s": -9800.0}
    ]
    assert [(each["owner"], each["kind"]) for each in document["orphans"]] == [
        ("gone", "lease"),
        ("old", "placement group"),
    ]
    assert document["growing"] == [
        {"request_id": "big", "owner": "big", "generation": "v6e", "topology": "2x4"}
    ]
