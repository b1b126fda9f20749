"""Whether a slice is whole, whoever has it."""

from __future__ import annotations

import pytest

from raytpu.errors import VerdictState
from raytpu.plan import SliceState
from raytpu.plan.verdict import health
from tests.plan.builders import host, slice_state

DEAD = {"alive": False, "chips": 0, "chips_free": 0}

CASES: dict[str, tuple[SliceState, VerdictState, str, str]] = {
    "whole": (slice_state(), "usable", "whole", ""),
    "held, under quarantine and busy": (
        slice_state(held_by="llm", quarantined="sick", host_states=(host(0, chips_free=0), host(1))),
        "usable",
        "whole",
        "",
    ),
    "a host is gone": (
        slice_state(held_by="llm", host_states=(host(0), host(1, **DEAD))),
        "broken",
        "1 of 2 hosts alive (missing host 1)",
        "start Ray on host 1 again; GKE replaces a lost host by itself",
    ),
    "a host does not answer": (
        slice_state(host_states=(host(0), host(1, suspect="its raylet does not answer"))),
        "suspect",
        "host 1: its raylet does not answer",
        "",
    ),
    "all hosts are gone, and nobody knows what they had": (
        slice_state(chips_per_host=0, host_states=(host(0, **DEAD), host(1, **DEAD))),
        "broken",
        "no host alive",
        "start Ray on its hosts again; GKE replaces lost hosts by itself",
    ),
    "a host without any label": (
        slice_state(host_states=(host(None),), named=False, generation=None, topology=None),
        "unlabelled",
        "generation unknown (its hosts have no label ray.io/accelerator-type); "
        "topology unknown (its hosts have no label ray.io/tpu-topology); "
        "its host has no label ray.io/tpu-slice-name",
        "start Ray there with TPU_ACCELERATOR_TYPE and TPU_TOPOLOGY and TPU_NAME set, or with --labels "
        "ray.io/accelerator-type=…,ray.io/tpu-topology=…,ray.io/tpu-slice-name=…",
    ),
    "hosts without chips": (
        slice_state(topology="4x4", chips_per_host=0, host_states=(host(0, chips=0, chips_free=0),)),
        "unlabelled",
        "its hosts have no resource TPU",
        "Ray found no TPU chips there (/dev/accel*, /dev/vfio): mend the device plugin or driver, or start "
        "Ray with --resources '{\"TPU\": 4}'",
    ),
    "labels that fit no hardware": (
        slice_state(topology="3x5"),
        "other",
        "there is no v6e 3x5 with 4 chips per host",
        "",
    ),
}


@pytest.mark.parametrize(("state", "kind", "why", "fix"), CASES.values(), ids=CASES.keys())
def test_the_health_of_a_slice_is_told_without_a_request(
    state: SliceState, kind: VerdictState, why: str, fix: str
) -> None:
    """A slice that broke while nobody wanted it is found broken by the one who does."""
    found = health(state)

    assert (found.state, found.why, found.fix) == (kind, why, fix)
