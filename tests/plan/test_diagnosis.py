"""What each slice is to a request, how to mend it."""

from __future__ import annotations

import json
import random
from typing import Any, get_args

import pytest

from raytpu.errors import SliceVerdict, Unplaceable, VerdictState
from raytpu.plan import (
    Diagnosis,
    HostState,
    Inventory,
    SliceState,
    diagnose,
    diagnosis_document,
    plan_gang,
)
from raytpu.spec import Slices
from tests.plan.builders import host, slice_state, slices


def inventory(*states: SliceState) -> Inventory:
    return Inventory(slices=states)


def verdict(state: SliceState, want: Slices | None = None, *others: SliceState) -> SliceVerdict:
    return diagnose(want or slices(), inventory(state, *others)).slices[0]


def second(**changes: Any) -> SliceState:
    """A slice whose second host is changed."""
    return slice_state("a", host_states=(host(0), host(1, **changes)))


LARGE = slice_state("a", 4, topology="4x4")
A_PART = slices(topology="2x2", chips_per_host=None, sub_slice=True)

NO_CHIPS = (
    "Ray found no TPU chips there (/dev/accel*, /dev/vfio): mend the device plugin or driver, or start Ray "
    "with --resources '{\"TPU\": 4}'"
)

VERDICTS: dict[str, tuple[SliceState, Slices, VerdictState, str, str]] = {
    "usable": (slice_state("a"), slices(), "usable", "whole and idle", ""),
    "usable in a zone": (
        slice_state("a", zone="us-east5-b"),
        slices(2, same_zone=True),
        "usable",
        "whole and idle, in us-east5-b",
        "",
    ),
    "a usable part": (LARGE, A_PART, "usable", "2x2 on host 0 of v6e 4x4 is idle", ""),
    "held": (slice_state("a", held_by="run llm"), slices(), "busy", "held by run llm", ""),
    "in use by somebody unknown": (
        second(chips_free=1),
        slices(),
        "busy",
        "host 1 has 1 of 4 chips free",
        "`raytpu slices` shows who has the others",
    ),
    "held in part": (
        slice_state("a", 4, topology="4x4", host_states=(*LARGE.hosts[:3], host(3, held_by="small"))),
        slices(topology="4x4"),
        "busy",
        "host 3 is held by small",
        "",
    ),
    "no part left": (
        slice_state("a", host_states=(host(0, held_by="x"), host(1, held_by="x"))),
        A_PART,
        "busy",
        "no 2x2 part of it is idle; hosts 0, 1 are held by x",
        "",
    ),
    "kept": (slice_state("a", kept_for="big"), slices(), "kept", "kept for big, which comes first", ""),
    "suspect": (
        second(suspect="has not answered for 3 s"),
        slices(),
        "suspect",
        "host 1: has not answered for 3 s",
        "",
    ),
    "host gone": (
        second(alive=False, chips=0, chips_free=0),
        slices(),
        "broken",
        "1 of 2 hosts alive (missing host 1)",
        "start Ray on host 1 again; GKE replaces a lost host by itself",
    ),
    "chips gone": (
        second(chips=3, chips_free=3),
        slices(),
        "broken",
        "host 1 has 3 chips, expected 4",
        "a chip may be sick: replace the host",
    ),
    "quarantined": (
        slice_state("a", quarantined="a/1 failed to start 3 times"),
        slices(),
        "quarantined",
        "under quarantine: a/1 failed to start 3 times",
        "`raytpu slices release a` lifts it, once the cause is gone",
    ),
    "no generation": (
        slice_state("a", generation=None),
        slices(),
        "unlabelled",
        "generation unknown (its hosts have no label ray.io/accelerator-type)",
        "start Ray there with TPU_ACCELERATOR_TYPE set, or with --labels ray.io/accelerator-type=…",
    ),
    "no topology": (
        slice_state("a", topology=None),
        slices(),
        "unlabelled",
        "topology unknown (its hosts have no label ray.io/tpu-topology)",
        "start Ray there with TPU_TOPOLOGY set, or with --labels ray.io/tpu-topology=…",
    ),
    "no name": (
        slice_state("a", named=False, host_states=(host(0),)),
        slices(),
        "unlabelled",
        "its host has no label ray.io/tpu-slice-name",
        "start Ray there with TPU_NAME set, or with --labels ray.io/tpu-slice-name=…",
    ),
    "no worker id": (
        slice_state("a", host_states=(host(0), host(None, address="10.0.0.9"))),
        slices(),
        "unlabelled",
        "1 of 2 hosts alive (missing host 1); host at 10.0.0.9 has no label ray.io/tpu-worker-id",
        "start Ray there with TPU_WORKER_ID set, or with --labels ray.io/tpu-worker-id=…",
    ),
    "no resource on a host": (
        second(chips=0, chips_free=0),
        slices(),
        "unlabelled",
        "host 1 has no resource TPU",
        NO_CHIPS,
    ),
    "no resource anywhere": (
        slice_state("a", chips_per_host=0, host_states=tuple(host(i, chips=0, chips_free=0) for i in (0, 1))),
        slices(),
        "unlabelled",
        "its hosts have no resource TPU",
        NO_CHIPS,
    ),
    "no zone where it matters": (
        slice_state("a"),
        slices(2, same_zone=True),
        "unlabelled",
        "zone unknown (its hosts have no label ray.io/availability-zone)",
        "start Ray there with RAY_NODE_ZONE set, or with --labels ray.io/availability-zone=…",
    ),
    "another shape": (
        slice_state("a", 1, topology="2x2"),
        slices(alternatives=["4x4"]),
        "other",
        "wrong topology: 2x2, not 2x4 or 4x4",
        "",
    ),
    "a larger shape": (
        LARGE,
        slices(),
        "other",
        "wrong topology: 4x4, not 2x4",
        "with slices.sub_slice: true, a part of it would do",
    ),
    "no such part": (
        slice_state("a", 1, topology="2x2"),
        slices(sub_slice=True),
        "other",
        "wrong topology: 2x2, which has no part of 2x4",
        "",
    ),
    "excluded": (
        slice_state("a"),
        slices(exclude=["a"]),
        "other",
        "excluded by this request",
        "take a out of slices.exclude",
    ),
    "held, and broken besides": (
        slice_state("a", held_by="x", host_states=(host(0),)),
        slices(),
        "broken",
        "held by x; 1 of 2 hosts alive (missing host 1)",
        "start Ray on host 1 again; GKE replaces a lost host by itself",
    ),
}


@pytest.mark.parametrize(("state", "want", "kind", "why", "fix"), VERDICTS.values(), ids=VERDICTS.keys())
def test_a_verdict_tells_what_is_wrong_and_how_to_mend_it(
    state: SliceState, want: Slices, kind: VerdictState, why: str, fix: str
) -> None:
    """Told only "pending", people wait for days on a missing label."""
    assert verdict(state, want) == SliceVerdict("a", kind, why, fix)


def test_every_kind_of_verdict_is_met() -> None:
    assert {kind for _, _, kind, _, _ in VERDICTS.values()} == set(get_args(VerdictState))


def test_a_slice_that_cannot_be_had_always_has_a_reason() -> None:
    """And one that can be had has none: what a verdict says is what ``plan_gang`` does."""
    chance = random.Random(0)
    wishes = [
        slices(),
        slices(sub_slice=True),
        A_PART,
        slices(alternatives=["4x4"], same_zone=True),
        slices(topology="1x1", chips_per_host=None, sub_slice=True),
    ]
    for _ in range(1000):
        state, want = any_slice(chance), chance.choice(wishes)
        found = verdict(state, want)
        try:
            plan_gang(want, inventory(state))
        except Unplaceable:
            assert found.state != "usable", state
            assert found.why
        else:
            assert found.state == "usable", state


def any_slice(chance: random.Random) -> SliceState:
    def maybe(value: Any, otherwise: Any, share: float = 0.15) -> Any:
        return value if chance.random() < share else otherwise

    def any_host(worker_id: int) -> HostState:
        alive = maybe(False, True, 0.1)
        chips = maybe(chance.choice([0, 1, 3, 8]), 4, 0.1) if alive else 0
        return host(
            maybe(None, worker_id, 0.05),
            alive=alive,
            chips=chips,
            chips_free=maybe(chance.randint(0, chips), chips),
            held_by=maybe("x", None),
            suspect=maybe("silent", None, 0.1),
        )

    count = chance.choice([0, 1, 2, 4])
    return slice_state(
        "a",
        host_states=tuple(any_host(maybe(chance.randint(0, 4), index, 0.05)) for index in range(count)),
        topology=chance.choice([None, "2x2", "2x4", "4x4", "2x8"]),
        generation=maybe(chance.choice([None, "v5e"]), "v6e", 0.1),
        chips_per_host=maybe(chance.choice([0, 8]), 4, 0.1),
        named=maybe(False, True, 0.05),
        held_by=maybe("x", None, 0.1),
        kept_for=maybe("x", None, 0.1),
        quarantined=maybe("x", None, 0.1),
        zone=maybe("east", None, 0.5),
    )


SENTENCES = {
    "it fits": (slices(2), "2 whole v6e 2x4 (2 × 4 chips) slices can be had now: a, b"),
    "too few": (slices(3), "need 3 whole v6e 2x4 (2 × 4 chips) slices: 2 usable, 1 busy, 1 broken"),
    "a range, alternatives, a zone": (
        slices(5, min_count=4, alternatives=["4x4"], same_zone=True),
        "need 4 to 5 whole v6e 2x4 (2 × 4 chips) or 4x4 (4 × 4 chips) slices in one zone: "
        "1 busy, 1 broken, 2 unlabelled",
    ),
    "a part": (
        slices(topology="1x1", chips_per_host=None, sub_slice=True, exclude=["a", "b", "c", "d"]),
        "need 1 v6e 1x1 (1 × 1 chip) slice, whole or a part of a larger one: 4 other",
    ),
}


@pytest.mark.parametrize(("want", "sentence"), SENTENCES.values(), ids=SENTENCES.keys())
def test_one_sentence_says_what_is_wanted_and_what_there_is(want: Slices, sentence: str) -> None:
    states = (
        slice_state("a"),
        slice_state("b"),
        slice_state("c", held_by="x", zone="east"),
        slice_state("d", host_states=(host(0),), zone="east"),
    )

    assert diagnose(want, inventory(*states)).sentence == sentence


NEXT_STEPS = {
    "nothing when it fits": (slices(), [slice_state("a")], ""),
    "a smaller range": (
        slices(3, min_count=2),
        [slice_state("a")],
        "the cluster has 1 such slice, 2 are wanted; slices.min_count: 1 fits now",
    ),
    "slices in too many zones": (
        slices(2, same_zone=True),
        [slice_state("a", zone="east"), slice_state("b", zone="west")],
        "the cluster has 1 such slice in one zone, 2 are wanted; slices.count: 1 fits now",
    ),
    "what is idle in another shape": (
        slices(),
        [slice_state("a", held_by="x"), slice_state("b", 1, topology="2x2")],
        "the cluster has 1 such slice: the request fits when enough of them are whole and idle; "
        "idle in another shape: 1 × v6e 2x2 with 4 chips per host",
    ),
}


@pytest.mark.parametrize(("want", "states", "step"), NEXT_STEPS.values(), ids=NEXT_STEPS.keys())
def test_the_next_step_is_what_would_make_it_fit(want: Slices, states: list[SliceState], step: str) -> None:
    assert diagnose(want, inventory(*states)).next_step == step


def test_a_refusal_and_a_diagnosis_say_the_same() -> None:
    """Two wordings of one fact are two facts to whoever compares them."""
    cluster = inventory(slice_state("a"), slice_state("b", held_by="x"))

    with pytest.raises(Unplaceable) as caught:
        plan_gang(slices(2), cluster)

    found = diagnose(slices(2), cluster)
    assert str(caught.value) == str(found.refusal())
    assert Diagnosis.of(caught.value) == found


def test_the_text_of_a_refusal_stays_on_a_screen() -> None:
    """A thousand lines of other slices hide the one that is nearly right."""
    others = [slice_state(f"other-{index}", topology="2x2", hosts=1) for index in range(200)]

    text = str(diagnose(slices(), inventory(*others, slice_state("z", held_by="x"))).refusal())

    assert "\n  z: held by x\n" in text
    assert "… and 161 more" in text
    assert len(text.splitlines()) < 50


def test_the_document_is_json() -> None:
    found = diagnose(slices(), inventory(slice_state("a", quarantined="sick")))

    document = json.loads(json.dumps(diagnosis_document(found)))

    assert document == {
        "sentence": "need 1 whole v6e 2x4 (2 × 4 chips) slice: 1 quarantined",
        "slices": [
            {
                "name": "a",
                "state": "quarantined",
                "why": "under quarantine: sick",
                "fix": "`raytpu slices release a` lifts it, once the cause is gone",
            }
        ],
        "next_step": found.next_step,
    }
