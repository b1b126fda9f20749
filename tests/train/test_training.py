"""What a run waits for is told once, to whoever is there."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import pytest
from ray.train import RunConfig

from raytpu import JaxTrainer, RunDirectory, Slices, read_events
from raytpu.errors import SpecError, Unplaceable
from raytpu.record import EventLog, StateChanged
from raytpu.spec import Deadlines, Recovery
from raytpu.train.training import Training


class Diagnosed:
    def refusal(self) -> Unplaceable:
        return Unplaceable("slice-0 is held by other")


@pytest.mark.parametrize("followed", [False, True])
def test_a_wait_is_logged_where_nobody_shows_the_record(
    followed: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """`fit()` in a script seems to hang otherwise; the command line would say it twice."""
    directory = RunDirectory.newest(str(tmp_path), "mine")
    with EventLog(directory, "driver") as log:
        training = Training(
            name="mine",
            slices=Slices(generation="v6e", topology="2x4", chips_per_host=4),
            program="myloop:train",
            first_attempt=1,
            job_for=lambda _attempt, _gang: pytest.fail("nothing is held"),
            deadlines=Deadlines(),
            recovery=Recovery(),
            priority=0,
            run_config=RunConfig(name="mine", storage_path=str(tmp_path)),
            log=log,
            with_checkpoints=False,
            python_path=(),
            followed=followed,
        )
        training.waiting(cast(Any, Diagnosed()))

    [told] = read_events(directory)
    assert told.event == StateChanged(state="waiting", reason="slice-0 is held by other")
    lines = ["mine waits for its slices: slice-0 is held by other"]
    assert [each.message for each in caplog.records if each.name.startswith("raytpu")] == (
        [] if followed else lines
    )
    assert all(each.levelno == logging.WARNING for each in caplog.records)


@pytest.mark.parametrize("given", ["datasets", "callbacks"])
def test_what_only_ray_train_reads_is_refused_for_replicas(given: str, tmp_path: Path) -> None:
    """An option that is taken and does nothing is believed in."""
    from ray.train import UserCallback

    options: dict[str, Any] = {"datasets": {"train": object()}} if given == "datasets" else {}
    callbacks = [UserCallback()] if given == "callbacks" else None
    with pytest.raises(SpecError, match=f"{given} would do nothing: Ray Train has no part"):
        JaxTrainer(
            lambda: None,
            slices=Slices(generation="v6e", topology="2x4", chips_per_host=4, count=2),
            run_config=RunConfig(name="mine", storage_path=str(tmp_path), callbacks=callbacks),
            across_slices="replicas",
            **options,
        )
