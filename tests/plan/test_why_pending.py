"""One sentence first, then a line for each slice, then what to do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from raytpu.plan import Inventory, diagnose
from raytpu.plan import ledger as entries
from raytpu.plan.book_view import BookView
from raytpu.plan.ledger import Ledger
from raytpu.plan.occupancy import seen_with
from raytpu.plan.why_pending import (
    Explanation,
    explain_owner,
    explain_wish,
    explanations_document,
    owners,
    render_explanations,
)
from raytpu.spec import Slices
from tests.plan.books import view
from tests.plan.builders import slice_state, slices
from tests.plan.ledgers import holding, inventory, queue_of, request

NOW_S = 500.0

GOLDEN = Path(__file__).parent / "golden"


def book(ledger: Ledger, cluster: Inventory | None = None) -> BookView:
    seen = seen_with(inventory(2) if cluster is None else cluster, ledger, suspects={})
    return BookView(ledger=ledger, inventory=seen, orphans=frozenset(), now_s=NOW_S)


def explained(found: BookView, name: str) -> Explanation:
    [explanation] = explain_owner(found, name)
    return explanation


@pytest.mark.parametrize("owner", ["llm", "gone", "small", "urgent"])
def test_an_explanation_reads_as_agreed(owner: str) -> None:
    text = render_explanations(explain_owner(view(), owner))

    assert f"{text}\n" == (GOLDEN / f"explain_{owner}.txt").read_text(encoding="utf-8")


def test_a_waiting_owner_is_told_the_diagnosis_that_its_program_is_told() -> None:
    """Two accounts of one wait are two riddles."""
    found = book(queue_of(request("big", 2), ledger=holding(Ledger(), "llm", ["slice-0"])))

    explanation = explained(found, "big")

    diagnosis = diagnose(slices(2), found.inventory)
    assert explanation.sentence == f"big waits: {diagnosis.sentence}"
    assert [(line.name, line.state, line.why) for line in explanation.slices] == [
        (verdict.name, verdict.state, verdict.why) for verdict in diagnosis.slices
    ]
    assert explanation.next_step == diagnosis.next_step


def test_whoever_comes_later_learns_who_is_ahead_and_what_is_kept_for_them() -> None:
    ledger = holding(Ledger(), "llm", ["slice-0"])
    ledger = queue_of(
        request("big", 2),
        request("first", 2, priority=3),
        *map(request, "abc"),
        request("last"),
        ledger=ledger,
    )

    explanation = explained(book(ledger), "last")

    assert dict(explanation.notes)["queue"].startswith("number 6 in the queue, behind 2 others, a, b, c; ")
    assert "kept for first" in explanation.slices[1].why
    assert explanation.facts["ahead"] == ["first", "big", "a", "b", "c"]


def test_a_priority_that_differs_is_named() -> None:
    """Else nobody understands why somebody who came later goes first."""
    ledger = queue_of(request("mine", 3), request("urgent", 3, priority=2))

    assert "behind urgent (priority 2)" in dict(explained(book(ledger), "mine").notes)["queue"]


def test_a_request_that_fits_is_about_to_be_served() -> None:
    explanation = explained(book(queue_of(request("quick"))), "quick")

    assert explanation.sentence == (
        "quick is about to get its slices: 1 whole v6e 2x4 (2 × 4 chips) slice can be had now: slice-0"
    )


def test_a_request_past_its_deadline_still_has_its_reasons() -> None:
    """The book refuses it within a quarter of a second; who looks in between must not see a traceback."""
    ledger = queue_of(
        request("late", deadline_s=1.0), ledger=holding(Ledger(), "llm", ["slice-0", "slice-1"])
    )

    assert explained(book(ledger), "late").sentence.endswith(": 2 busy")


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ("placing", "llm was granted slice-0, and Ray has been placing it for 3 s: 1 whole v6e 2x4 slice"),
        ("ending", "llm is giving back slice-0: 1 whole v6e 2x4 slice"),
    ],
)
def test_a_lease_that_comes_or_goes_says_so(state: str, sentence: str) -> None:
    ledger = holding(Ledger(), "llm", ["slice-0"], now_s=NOW_S - 3)
    ledger = replace(ledger, leases=tuple(replace(each, state=state) for each in ledger.leases))  # type: ignore[arg-type]

    assert explained(book(ledger), "llm").sentence == sentence


def test_a_held_slice_that_is_not_well_says_what_is_wrong() -> None:
    """The moment between a host's death and its owner's knowing it."""
    ledger = holding(Ledger(), "llm", ["slice-0"])
    found = book(ledger, Inventory(slices=(slice_state("slice-0", hosts=1),)))

    [line] = explained(found, "llm").slices

    assert (line.state, line.why) == ("held", "1 of 2 hosts alive (missing host 1)")
    assert line.fix


def test_a_held_slice_that_ray_does_not_show_is_still_held() -> None:
    found = book(holding(Ledger(), "llm", ["slice-0"]), Inventory(slices=()))

    assert explained(found, "llm").slices[0].why == "2 of 2 hosts; Ray does not show the slice"


def test_an_owner_with_several_leases_and_requests_is_told_all() -> None:
    """A serving job holds what it has and waits for more."""
    ledger = holding(Ledger(), "serve", ["slice-0"])
    ledger = queue_of(replace(request("more", 2), owner="serve"), ledger=ledger)

    found = book(ledger)

    assert [each.state for each in explain_owner(found, "serve")] == ["holds", "waits"]
    assert [each.state for each in explain_owner(found, "more")] == ["waits"], "by id, only what is meant"
    assert explain_owner(found, "somebody") == ()
    assert owners(found) == ("serve",)


WISHES = {
    "it fits": (slices(), 0, False, "fits", "file fits: 1 whole"),
    "it does not": (slices(2), 0, False, "does not fit", "file does not fit now: need 2 whole"),
    "it never will": (slices(3), 0, False, "never fits", "file can never fit on this cluster: need 3 whole"),
    "the cluster can grow": (slices(3), 0, True, "does not fit", "file does not fit now: need 3 whole"),
}


@pytest.mark.parametrize(
    ("want", "priority", "growable", "state", "begin"), WISHES.values(), ids=WISHES.keys()
)
def test_a_workload_is_told_whether_it_would_fit(
    want: Slices, priority: int, growable: bool, state: str, begin: str
) -> None:
    found = book(holding(Ledger(), "llm", ["slice-0"]))

    explanation, fits = explain_wish(found, "file", want, priority=priority, growable=growable)

    assert explanation.state == state
    assert explanation.sentence.startswith(begin)
    assert fits == (state == "fits")
    assert ("autoscaler" in str(explanation.notes)) == growable


def test_a_workload_counts_the_queue_before_it() -> None:
    """An idle slice that an earlier request claims cannot be had, whatever the table shows."""
    found = book(queue_of(request("big", 2), ledger=holding(Ledger(), "llm", ["slice-0"])))

    explanation, fits = explain_wish(found, "file", slices(), priority=0, growable=False)

    assert not fits
    assert dict(explanation.notes)["queue"] == "it would be number 2 in the queue, behind big"
    assert explanation.slices[1].state == "kept"


def test_a_workload_of_a_higher_priority_learns_whom_it_would_preempt() -> None:
    """Nobody should learn afterwards whose work was thrown away."""
    found = book(holding(Ledger(), "llm", ["slice-0", "slice-1"]))

    explanation, fits = explain_wish(found, "file", slices(), priority=1, growable=False)

    assert not fits
    assert dict(explanation.notes)["preempts"] == "llm (slice-0, slice-1), which gets 30 s to save"


def test_a_thousand_slices_stay_on_a_screen() -> None:
    others = [slice_state(f"other-{index}", topology="2x2", hosts=1) for index in range(200)]
    cluster = Inventory(slices=(*others, slice_state("slice-0")))
    ledger = queue_of(request("big", 2), ledger=holding(Ledger(), "llm", ["slice-0"]))

    text = render_explanations(explain_owner(book(ledger, cluster), "big"))

    assert "  slice-0   busy   held by llm" in text
    assert "  … and 161 more; --output json has all" in text


def test_the_document_has_the_keys_of_a_diagnosis_and_the_facts() -> None:
    found = view()

    document = json.loads(json.dumps(explanations_document(explain_owner(found, "urgent"))))

    [each] = document["explanations"]
    assert {"sentence", "slices", "next_step"} <= each.keys()
    assert (each["owner"], each["state"], each["position"], each["preempts"]) == (
        "urgent",
        "waits",
        1,
        ["llm"],
    )
    [held] = explanations_document(explain_owner(found, "llm"))["explanations"]
    assert held["notice"] == {"by": "urgent", "until_s": 1012.0}
    assert [(line["name"], line["state"]) for line in held["slices"]] == [
        ("slice-0", "held"),
        ("slice-1", "lost"),
    ]


def test_an_orphan_is_told_how_to_end() -> None:
    gone = entries.owner_gone(holding(Ledger(), "llm", ["slice-0"], orphan_grace_s=60.0), "llm", NOW_S - 10)

    explanation = explained(book(gone), "llm")

    assert dict(explanation.notes)["owner"] == "gone for 10 s; the lease ends in 50 s"
    assert "`raytpu slices gc`" in explanation.next_step
