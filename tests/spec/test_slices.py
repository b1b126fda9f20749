"""What may be asked of slices, and what a training run may not ask yet."""

from __future__ import annotations

from typing import Any

import pytest

from raytpu.errors import WorkloadInvalid
from raytpu.spec import Slices
from tests.spec.documents import VALID, changed, only_problem, problems


def slices(**changes: Any) -> Slices:
    return Slices(**({"generation": "v6e", "topology": "4x4"} | changes))


WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a topology that does not exist": (
        {"alternatives": ["4x8", "9x9"]},
        ["alternatives.1: topology '9x9' does not exist on v6e"],
    ),
    "the topology itself": (
        {"alternatives": ["4x4"]},
        ["alternatives.0: 4x4 is slices.topology itself; leave it out here"],
    ),
    "an alternative twice": (
        {"alternatives": ["4x8", "4x8"]},
        ["alternatives.1: 4x8 is listed twice"],
    ),
    "unclear hosts": (
        {"topology": "1x1", "alternatives": ["2x4"]},
        ["alternatives.0: v6e 2x4 is one host of 8 chips or two hosts of 4 chips: say which"],
    ),
    "text where a list belongs": ({"alternatives": "4x8"}, ["alternatives: expected a list, got '4x8'"]),
    "more at least than at most": (
        {"count": 3, "min_count": 4},
        ["min_count: 4 is more than count, which is 3"],
    ),
    "none at least": ({"min_count": 0}, ["min_count: expected at least 1"]),
    "a slice without a name": ({"exclude": ["a", ""]}, ["exclude.1: expected the name of a slice, got ''"]),
    "everything at once": (
        {"alternatives": ["9x9"], "min_count": 2, "exclude": [""], "same_zone": "yes", "sub_slice": 1},
        [
            "alternatives.0: topology '9x9'",
            "min_count: 2 is more than count",
            "exclude.0: expected the name",
            "same_zone: expected true or false",
            "sub_slice: expected true or false",
        ],
    ),
}


@pytest.mark.parametrize(("changes", "expected"), WRONG.values(), ids=WRONG.keys())
def test_every_wrong_wish_is_refused_by_name(changes: dict[str, Any], expected: list[str]) -> None:
    """A wish that is dropped in silence shows as a job that waits for ever."""
    with pytest.raises(WorkloadInvalid) as caught:
        slices(**changes)

    found = sorted(map(str, caught.value.problems))
    assert len(found) == len(expected)
    for problem, text in zip(found, sorted(expected), strict=True):
        assert problem.startswith(text)


def test_alternatives_stand_behind_the_topology_in_the_order_given() -> None:
    want = slices(alternatives=["8x8", "4x8"])

    assert [shape.topology for shape in want.shapes] == ["4x4", "8x8", "4x8"]


@pytest.mark.parametrize(("topology", "chips", "kinds"), [("4x4", None, [4, 4]), ("2x4", 8, [8, 4])])
def test_an_alternative_has_hosts_like_those_of_the_topology_where_it_has_a_choice(
    topology: str, chips: int | None, kinds: list[int]
) -> None:
    """A program that was written for hosts of four chips would start half as many processes."""
    other = "2x4" if topology == "4x4" else "4x4"

    want = slices(topology=topology, chips_per_host=chips, alternatives=[other])

    assert [shape.chips_per_host for shape in want.shapes] == kinds


def test_exactly_count_slices_are_wanted_unless_fewer_will_do() -> None:
    assert slices(count=3).least == 3
    assert slices(count=3, min_count=2).least == 2


@pytest.mark.parametrize(
    ("field", "path", "says"),
    [
        ("alternatives: [4x4]", "slices.alternatives", "laid out for one topology"),
        ("min_count: 1", "slices.min_count", "laid out for a fixed number of slices"),
    ],
)
def test_a_training_run_is_told_what_it_cannot_ask_yet(field: str, path: str, says: str) -> None:
    """Its mesh has sizes for one number of devices: on others it would fail inside JAX, on every host."""
    problem = only_problem(changed("count: 2}", f"count: 2, {field}}}"))

    assert problem.path == path
    assert problem.line == 2
    assert says in problem.message
    assert "leave it out" in problem.message


def test_a_training_run_may_ask_where_its_slices_come_from() -> None:
    wishes = "count: 2, min_count: 2, same_zone: true, exclude: [slice-3], sub_slice: true}"

    assert problems(VALID.replace("count: 2}", wishes)) == []
