"""Requests of every kind that the cluster of ``chip_world`` may see."""

from __future__ import annotations

from hypothesis import strategies as st

from raytpu.plan.ledger import Request
from raytpu.spec import Slices
from tests.plan.chip_world import CLUSTER

TOPOLOGIES = [
    ("2x4", 4, ["4x4"]),
    ("2x4", 4, ["2x2"]),
    ("2x4", 8, ["2x2"]),
    ("4x4", 4, ["2x4"]),
    ("2x2", 4, ["2x4"]),
    ("1x1", 1, []),
]
"""With chips per host, and alternatives."""


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """With times from now on, and still without a name."""
    topology, chips, others = draw(st.sampled_from(TOPOLOGIES))
    count = draw(st.sampled_from([1, 1, 2, 3]))
    seldom = st.sampled_from([False, False, False, True])
    want = Slices(
        generation="v6e",
        topology=topology,
        chips_per_host=chips,
        count=count,
        alternatives=others if draw(seldom) else [],
        min_count=draw(st.integers(1, count)) if draw(seldom) else None,
        same_zone=draw(seldom),
        exclude=[draw(st.sampled_from(sorted(CLUSTER)))] if draw(seldom) else [],
        sub_slice=topology in ("2x2", "1x1") or draw(st.booleans()),
    )
    return Request(
        id="",
        owner="",
        want=want,
        arrived=0,
        arrived_s=0.0,
        deadline_s=draw(st.sampled_from([500.0, 500.0, 20.0, 3.0, 0.0])),
        priority=draw(st.integers(0, 2)),
        save_s=draw(st.sampled_from([5.0, 0.0])),
        orphan_grace_s=draw(st.sampled_from([0.0, 7.0])),
    )
