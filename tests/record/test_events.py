"""Events and their JSON."""

from __future__ import annotations

import json
import math

import pytest

from raytpu.record import (
    AttemptEnded,
    AttemptStarted,
    Averaged,
    CheckpointDurable,
    CheckpointQuarantined,
    CheckpointRestored,
    CheckpointSaved,
    CheckpointSlow,
    CheckpointVerified,
    Evaluated,
    HostReady,
    HostsStuck,
    PhaseTimed,
    PreemptionNoticed,
    ProgramCompiled,
    ReplicaLost,
    RunEnded,
    RunStarted,
    SampleWritten,
    StateChanged,
    StepFinished,
    Unknown,
)
from raytpu.record.events import EVENT_KINDS, event_document, event_of

ONE_OF_EACH = (
    RunStarted(run="demo", lineage=2, cluster="127.0.0.1:6379", steps=200),
    StateChanged(state="holding slices", reason="slice-1 is busy"),
    AttemptStarted(attempt=3, slices=("slice-0", "slice-1"), processes=4),
    HostReady(host="slice-0/1", process_index=1, devices=4, platform="cpu"),
    PhaseTimed(name="import jax", seconds=3.25),
    ProgramCompiled(name="step", seconds=4.0, cache="miss"),
    StepFinished(step=7, seconds=0.1, data_wait_s=0.01, metrics={"loss": 2.5}, tokens=4096),
    CheckpointSaved(step=50, blocked_s=0.2),
    CheckpointDurable(step=50, seconds=1.5, path="/runs/demo/001/checkpoints/50"),
    CheckpointVerified(step=50, seconds=0.2, size=1 << 30),
    CheckpointSlow(step=100, seconds=61.0, limit_s=60.0),
    CheckpointQuarantined(step=100, reason="state/d/ab is missing", path="/runs/demo/001/q/100-1"),
    CheckpointRestored(step=50, seconds=0.4, verified=True),
    Evaluated(step=50, metrics={"loss": 2.6}, seconds=0.7),
    SampleWritten(text="def main():\n    return 'ä'"),
    AttemptEnded(ending="slice_lost", reason="slice-1/0 died"),
    HostsStuck(cause="silent", hosts=("slice-1/0",), step=7, seconds=6.5, limit_s=6.0),
    ReplicaLost(slice="slice-1", reason="the process of its host 0 has ended"),
    Averaged(rounds=10, sent_bytes=1 << 20),
    PreemptionNoticed(host="slice-1/0", source="its process got SIGTERM", seconds=25.0),
    RunEnded(outcome="finished"),
)


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: event.kind)
def test_an_event_comes_back_from_its_json_as_it_was(event):
    """A field that does not survive is missing from every summary."""
    assert event_of(json.loads(json.dumps(event_document(event)))) == event


def test_every_kind_of_event_is_tried():
    """A new kind whose fields cannot be read would be noticed only in a summary."""
    assert {type(event) for event in ONE_OF_EACH} == set(EVENT_KINDS.values())


def test_the_json_of_an_event_is_what_it_was_when_runs_were_first_written():
    """Old records must stay readable: a renamed field loses their numbers."""
    assert event_document(StepFinished(step=7, seconds=0.5, metrics={"loss": 2.5}, tokens=8)) == {
        "kind": "step_finished",
        "step": 7,
        "seconds": 0.5,
        "data_wait_s": 0.0,
        "wait_s": 0.0,
        "metrics": {"loss": 2.5},
        "tokens": 8,
    }


@pytest.mark.parametrize("loss", [math.inf, -math.inf, math.nan])
def test_a_loss_that_is_no_number_survives_strict_json(loss):
    """NaN is no JSON: jq and other readers would refuse the very line that tells of the trouble."""
    text = json.dumps(
        event_document(StepFinished(step=1, seconds=1, metrics={"loss": loss})), allow_nan=False
    )
    again = event_of(json.loads(text))

    assert isinstance(again, StepFinished)
    assert again.metrics["loss"] == pytest.approx(loss, nan_ok=True)


def test_scalars_of_array_libraries_become_plain_numbers():
    """A loop reports what JAX gives it; an event that cannot be written would end the run."""
    numpy = pytest.importorskip("numpy")
    document = event_document(StepFinished(step=1, seconds=1.0, metrics={"loss": numpy.float32(0.5)}))

    assert document["metrics"] == {"loss": 0.5}


def test_a_kind_of_a_newer_version_is_unknown_not_an_error():
    """`raytpu status` of last month must still read a run of today."""
    event = event_of({"kind": "slice_replaced", "slice": "slice-1"})

    assert event == Unknown(
        document={"kind": "slice_replaced", "slice": "slice-1"}, why="kind 'slice_replaced' is not known"
    )


def test_a_further_field_of_a_newer_version_does_not_hide_the_event():
    """One added field would otherwise make all steps of a run invisible to an older reader."""
    event = event_of({"kind": "checkpoint_saved", "step": 5, "blocked_s": 0.1, "bytes": 12})

    assert event == CheckpointSaved(step=5, blocked_s=0.1)


@pytest.mark.parametrize(
    "document",
    [
        {"kind": "step_finished", "seconds": 1.0},
        {"kind": "step_finished", "step": "seven", "seconds": 1.0},
        {"kind": "step_finished", "step": 7, "seconds": 1.0, "metrics": [1]},
        {"kind": None},
        {},
    ],
)
def test_an_event_that_cannot_be_understood_is_unknown(document):
    """A half-understood event would put a wrong number into a summary."""
    assert isinstance(event_of(document), Unknown)
