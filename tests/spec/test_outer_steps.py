"""Which numbers of steps go with replicas that average every few steps."""

from __future__ import annotations

import pytest

from raytpu.errors import WorkloadInvalid
from raytpu.spec import parse_workload
from tests.spec.documents import VALID


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ([], r"train.replicas.every_steps: .* set train.across_slices to replicas"),
        (
            ["train.across_slices=replicas"],
            r"checkpoint.every_steps: 50 is not a multiple of train.replicas.every_steps, which is 20; "
            r"40 or 60 would do",
        ),
        (
            ["train.across_slices=replicas", "checkpoint.every_steps=60", "train.config.steps=10"],
            r"train.config.steps: 10 is not a multiple .*; 20 would do",
        ),
    ],
    ids=["lockstep", "checkpoints", "steps"],
)
def test_a_run_is_saved_and_ends_after_an_average(overrides: list[str], says: str) -> None:
    """Between averages replicas have states of their own."""
    with pytest.raises(WorkloadInvalid, match=says):
        parse_workload(VALID, overrides=["train.replicas.every_steps=20", *overrides])
