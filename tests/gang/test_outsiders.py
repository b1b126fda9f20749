"""What Ray's tables say of chips becomes words about who has them."""

from __future__ import annotations

from typing import Any

from raytpu.gang.outsiders import uses_of
from raytpu.gang.ray_internals import Taker
from raytpu.plan.outsiders import ChipUse


def taker(**changes: Any) -> Taker:
    values: dict[str, Any] = {
        "kind": "placement group",
        "name": "mine",
        "resources": {"node-0": {"TPU": 4.0, "CPU": 1.0}},
        "since_s": 900.0,
        "job": "02000000",
        "detached": False,
    }
    return Taker(**(values | changes))


def used(*takers: Taker, entrypoint: str = "python serve.py", over: bool = False) -> list[ChipUse]:
    return list(uses_of(takers, {"02000000": entrypoint}, ended={"02000000"} if over else set()))


def test_a_placement_group_is_named_on_each_of_its_hosts():
    uses = used(taker(resources={"node-0": {"TPU": 4.0}, "node-1": {"TPU": 4.0}}))

    assert [use.node_id for use in uses] == ["node-0", "node-1"]
    assert {(use.outsider.who, use.outsider.since_s, use.lease_id) for use in uses} == {
        ("placement group mine", 900.0, None)
    }


def test_what_has_no_chips_is_left_out():
    """A group for CPUs on a TPU host keeps nobody from the chips."""
    assert used(taker(resources={"node-0": {"CPU": 4.0}, "node-1": {"TPU": 0.0}})) == []


def test_how_to_get_the_chips_back_depends_on_who_made_it():
    """`remove it` is wrong for what ends by itself, and `wait` for what never ends."""

    def fix(*, over: bool = False, **changes: Any) -> str:
        [use] = used(taker(**changes), over=over)
        return use.outsider.fix

    assert fix() == "it ends with job 02000000 (python serve.py)"
    assert fix(detached=True) == "job 02000000 (python serve.py) made it, and it outlives that job"
    assert fix(detached=True, over=True).endswith("ray.util.remove_placement_group ends it")
    assert fix(kind="actor", detached=True, over=True).endswith("ray.kill ends it")


def test_a_command_is_shown_on_one_line_and_not_whole():
    """Notebooks and `python -c` have pages of it."""
    [use] = used(taker(), entrypoint="python -c '\nimport ray\n" + "x" * 100)

    assert "\n" not in use.outsider.fix
    assert use.outsider.fix.endswith("…)")


def test_a_group_with_the_name_of_a_lease_says_which():
    """Whether somebody still has that lease, only the book can tell."""
    [use] = used(taker(name="raytpu/llm/0f3a/slice-0", detached=True))

    assert use.lease_id == "0f3a"
    assert use.outsider.fix == "no lease knows it: `raytpu slices gc` ends it"


def test_an_actor_may_have_any_name():
    [use] = used(taker(kind="actor", name="raytpu/a/b/c"))

    assert use.lease_id is None
