"""What a person and a program are told about a run."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from raytpu.record import (
    AttemptEnded,
    CheckpointDurable,
    CheckpointQuarantined,
    CheckpointRestored,
    CheckpointVerified,
    Evaluated,
    HostsStuck,
    PhaseTimed,
    PreemptionNoticed,
    ProgramCompiled,
    Recorded,
    ReplicaLost,
    SampleWritten,
    StateChanged,
    StepFinished,
    duration_text,
    render_summary,
    summarise,
    summary_document,
)
from raytpu.record.events import Damaged, Unknown
from tests.record.logbook import Logbook

GOLDEN = Path(__file__).parent / "golden"


def whole_story() -> Logbook:
    """Two attempts: the first loses a slice after step 8, the second goes on from step 5 to the end."""
    book = Logbook().start().add(PhaseTimed(name="prepare data", seconds=0.0))
    book.start_attempt(1).at(1004.0).steps(1, 8).at(1009.0)
    book.add(CheckpointDurable(step=5, seconds=1.0, path="/runs/demo/001/checkpoints/5"), "slice-0/0")
    book.at(1014.0).end_attempt("slice_lost", "slice-0/1 died").add(StateChanged(state="holding slices"))
    book.at(1015.0).start_attempt(2)
    book.at(1016.0).add(PhaseTimed(name="hold slices", seconds=1.0))
    for index, seconds in enumerate((2.0, 2.5)):
        book.at(1018.5).add(PhaseTimed(name="import jax", seconds=seconds), f"slice-0/{index}")
        book.at(1021.0).add(ProgramCompiled(name="step", seconds=2.0, cache="miss"), f"slice-0/{index}")
    book.at(1021.5).add(CheckpointRestored(step=5, seconds=0.5), "slice-0/0")
    book.steps(6, 9).steps(10, 10, seconds=2.0, data_wait_s=0.25)
    book.add(Evaluated(step=10, metrics={"loss": 5.25}), "slice-0/0")
    book.add(CheckpointDurable(step=10, seconds=0.5, path="/runs/demo/001/checkpoints/10"), "slice-0/0")
    book.add(CheckpointVerified(step=10, size=1 << 20), "slice-0/0")
    book.add(SampleWritten(text="def main():\n    return 1"), "slice-0/0")
    return book.at(1030.0).end_attempt().end()


def compare_with_golden(text: str, name: str) -> None:
    path = GOLDEN / name
    if os.environ.get("RAYTPU_REWRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n")
    assert text + "\n" == path.read_text()


def test_the_summary_of_a_finished_run_reads_as_it_should():
    """It is the one page that everybody sees."""
    compare_with_golden(render_summary(summarise(whole_story().records)), "finished.txt")


def test_the_summary_of_a_run_whose_driver_was_killed_reads_as_it_should():
    """What to do next is the question, and where the run stands."""
    book = Logbook().start().start_attempt(1).at(1004.0).steps(1, 3)

    compare_with_golden(render_summary(summarise(book.records, driver_alive=False)), "driver_lost.txt")


def test_the_summary_of_a_run_that_never_got_to_a_step_reads_as_it_should():
    """Empty numbers must not look like zeros."""
    book = Logbook().start().start_attempt(1).at(1004.0)
    book.end_attempt("failed", "no module named 'foo'\n  at line 3").end("failed", "no module named 'foo'")

    compare_with_golden(render_summary(summarise(book.records)), "failed_early.txt")


def test_a_run_that_was_stuck_and_its_straggler_are_told():
    """Who looks at a slow run wants a name, an amount and a place to begin."""
    book = Logbook().start().start_attempt(1).steps(1, 4, seconds=1.0)
    book.add(HostsStuck(cause="silent", hosts=("a/0",), step=5, seconds=6, limit_s=6, reason="a/0 is silent"))
    book.end_attempt("slice_lost").start_attempt(2)
    for host, data_s in (("slice-0/0", 0.0), ("slice-0/1", 0.5)):
        book.add(StepFinished(step=5, seconds=1.0, data_wait_s=data_s, wait_s=1.0 - data_s), host)

    summary = summarise(book.records)
    text = render_summary(summary)

    assert "  stuck        a/0 is silent\n" in text
    told = "slice-0/1 is behind in data wait: 0.5 s a step more than the others' 0 s, 50% of a step\n"
    assert told in text
    assert summary_document(summary)["stragglers"][0]["phase"] == "data wait"


def checkpoint_lines(book: Logbook) -> str:
    text = render_summary(summarise(book.records))
    return text[text.index("  checkpoint ") : text.index("  attempts ")]


def test_a_checkpoint_that_is_not_verified_yet_says_so():
    """Who wants to delete older ones by hand must know."""
    book = Logbook().start().start_attempt(1).steps(1, 6)
    for step in (5, 6):
        book.add(CheckpointDurable(step=step), "slice-0/0")
    assert "step 6 is durable, not verified: /runs" in checkpoint_lines(book)

    book.add(CheckpointVerified(step=5), "slice-0/0")
    assert "step 6 is durable, not verified (step 5 is): /runs" in checkpoint_lines(book)
    book.add(CheckpointVerified(step=6), "slice-0/0").add(CheckpointDurable(step=6), "slice-0/1")
    assert "step 6 is durable and verified: /runs" in checkpoint_lines(book)


def test_a_damaged_checkpoint_is_shown_with_its_reason_and_counts_no_more():
    """Somebody has to look at the disk, and the run is further back than it was."""
    book = Logbook().start().start_attempt(1).steps(1, 10)
    for step in (5, 10):
        book.add(CheckpointDurable(step=step), "slice-0/0").add(CheckpointVerified(step=step), "slice-0/0")
    book.end_attempt("slice_lost").start_attempt(2)
    book.add(CheckpointQuarantined(step=10, reason="state/d/ab is missing", path="q/10-1"), "slice-0/0")
    book.add(CheckpointRestored(step=5, seconds=0.1, verified=True), "slice-0/0")

    summary = summarise(book.records)
    assert (summary.last_durable_step, summary.last_verified_step) == (5, 5)
    assert [each.step for each in summary.quarantined] == [10]
    lines = checkpoint_lines(book)
    assert "step 5 is durable and verified" in lines
    assert "step 10 was damaged and is under quarantine: q/10-1\n" in lines
    assert "state/d/ab is missing\n" in lines


def test_a_restored_step_is_durable_even_if_nobody_lived_to_write_that_down():
    book = Logbook().start().start_attempt(2)
    book.add(CheckpointRestored(step=5, seconds=0.1, path="/runs/demo/001/checkpoints/5"), "slice-0/0")

    summary = summarise(book.records)
    assert (summary.last_durable_step, summary.last_verified_step) == (5, None)
    assert "/runs/demo/001/checkpoints/5" in checkpoint_lines(book)


def test_a_summary_has_no_escape_codes():
    """It goes into logs and mails."""
    assert "\x1b" not in render_summary(summarise(whole_story().records))


def test_the_document_says_the_same_to_a_machine():
    """Scripts must not parse the text."""
    document = json.loads(json.dumps(summary_document(summarise(whole_story().records)), allow_nan=False))

    assert document["state"] == "finished"
    assert document["last_step"] == document["total_steps"] == document["last_durable_step"] == 10
    assert document["endings"] == ["slice_lost", "completed"]
    assert document["goodput"]["seconds"]["lost work"] == 3.0
    assert sum(document["goodput"]["seconds"].values()) == pytest.approx(document["goodput"]["wall_s"])
    assert document["phases"][1] == {"name": "import jax", "seconds": 2.5, "writer": "slice-0/1"}


def test_the_slices_that_were_lost_are_named():
    """One slice that is lost again and again is a slice to look at."""
    book = Logbook().start()
    for attempt, lost in enumerate((("slice-1",), ("slice-0", "slice-1")), start=1):
        book.start_attempt(attempt).add(AttemptEnded(ending="slice_lost", slices=lost))
    book.start_attempt(3).add(ReplicaLost(slice="slice-2"))  # the attempt goes on
    summary = summarise(book.records)

    assert summary.lost_slices == ("slice-1", "slice-0", "slice-1", "slice-2")
    assert (
        "  lost         4 slices: slice-1 2 times, slice-0, slice-2" in render_summary(summary).splitlines()
    )


def test_a_loss_that_is_no_number_is_strict_json_too():
    """The run that diverged is the one whose document is looked at."""
    book = Logbook().start().start_attempt(1)
    book.at(1001.0).add(StepFinished(step=1, seconds=1.0, metrics={"loss": math.nan}), "slice-0/0")

    assert summary_document(summarise(book.records))["loss_last"] == "nan"


def test_a_traceback_is_cut_in_the_text_and_whole_in_the_document():
    """Its sixty lines would push everything else off the screen."""
    reason = "\n".join(
        ["slice-0/0: KeyError: 'x'", *(f"frame {number}" for number in range(60)), "KeyError: 'x'"]
    )
    summary = summarise(Logbook().start().end("failed", reason).records)
    text = render_summary(summary)

    assert summary_document(summary)["reason"] == reason
    assert "slice-0/0: KeyError: 'x'\n" in text
    assert "… 54 lines …" in text
    assert "frame 59\n" in text
    assert "frame 50\n" not in text


def live(book: Logbook) -> str:
    return summarise(book.records, driver_alive=True).state


def test_a_live_run_is_in_the_state_that_its_driver_told_last():
    """Whether it waits or works is the first question."""
    book = Logbook()
    assert live(book) == "starting"
    assert live(book.start()) == "starting"
    assert live(book.add(StateChanged(state="holding slices", reason="slice-1 is busy"))) == "holding slices"
    assert live(book.start_attempt(1).add(StateChanged(state="running"))) == "running"


@pytest.mark.parametrize("outcome", ["finished", "failed", "stopped"])
def test_a_run_that_ended_is_in_the_state_in_which_it_ended(outcome):
    """Also while its driver still cleans up."""
    book = Logbook().start().start_attempt(1).end_attempt().end(outcome, "because")

    for alive in (True, False):
        summary = summarise(book.records, driver_alive=alive)
        assert (summary.state, summary.reason) == (outcome, "because")


def test_a_run_that_was_resumed_is_not_in_its_old_state():
    """`stopped` for a run that trains would make a person start it twice."""
    book = Logbook().start().start_attempt(1).end_attempt("stopped").end("stopped").start()

    assert live(book) == "starting"
    assert summarise(book.records).state == "driver lost"


def test_a_run_without_events_has_not_started():
    """Its directory may exist already."""
    summary = summarise([], run="demo")

    assert (summary.run, summary.state) == ("demo", "not started")
    assert "run demo: not started" in render_summary(summary)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("failed", "read `raytpu logs demo --tail 50`, then run the same file again to go on from step 5"),
        ("stopped", "run the same file again to go on from step 5"),
    ],
)
def test_the_next_step_is_named(outcome, expected):
    """An ended run leaves a person with a shell and no idea."""
    book = Logbook().start().start_attempt(1).add(CheckpointDurable(step=5)).end_attempt().end(outcome)

    assert summarise(book.records).next_step == expected


def test_the_loss_of_thrown_away_steps_is_not_shown():
    """After a resume from step 5 the loss of step 8 belongs to no state that exists."""
    book = (
        Logbook().start().start_attempt(1).steps(1, 8).end_attempt("slice_lost").start_attempt(2).steps(6, 6)
    )
    summary = summarise(book.records, driver_alive=True)

    assert summary.last_step == 6
    assert summary.loss_last == pytest.approx(5.4)


def test_the_present_speed_is_a_median():
    """One slow step, such as the first, must not spoil the number."""
    book = Logbook().start().start_attempt(1).steps(1, 1, seconds=30.0).steps(2, 10, seconds=0.5)
    summary = summarise(book.records, driver_alive=True)

    assert summary.tokens_per_s == pytest.approx(8192)
    assert summary.step_s == pytest.approx(0.5)
    assert summary.tokens_per_s_overall == pytest.approx(40960 / 34.5)


def test_what_could_not_be_read_is_counted():
    """A summary of half a record must say so."""
    records = [
        *Logbook().start().records,
        Recorded(1.0, "driver", None, Damaged(text="x", why="y")),
        Recorded(1.0, "driver", None, Unknown(document={}, why="y")),
    ]
    text = render_summary(summarise(records))

    assert "1 damaged line(s)" in text
    assert "1 event(s) of another version" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (60, "1 min 00 s"), (3599.6, "1 h 00 min"), (7620, "2 h 07 min")],
)
def test_durations_are_short_and_never_read_60_seconds(seconds, text):
    """`59 min 60 s` makes a person doubt every other number."""
    assert duration_text(seconds) == text


def test_a_loss_that_is_not_finite_is_told_with_the_step_where_it_began():
    """A run that is finished, with a model that is worth nothing, looks like one that went well."""
    book = Logbook().start(steps=6).start_attempt(1)
    metrics = [(6.0, 1.0), (5.0, math.inf), (math.nan, 1.0), (math.nan, 1.0)]
    for number, (loss, norm) in enumerate(metrics, 1):
        book.add(StepFinished(step=number, seconds=1.0, metrics={"loss": loss, "norm": norm}), "slice-0/0")

    assert summarise(book.records).warnings == (
        "loss is nan since step 3",
        "norm was not finite in 1 steps, first inf in step 2",
    )
    assert "  warning      loss is nan since step 3\n" in render_summary(summarise(book.records))


def test_a_train_function_that_ended_early_is_finished_with_a_word_about_it():
    """It may be meant, as when a loss is low enough; or its data was used up."""
    book = Logbook().start(steps=6).start_attempt(1).steps(1, 3)
    book.add(CheckpointDurable(step=2, path="/c/2"), "slice-0/0")
    summary = summarise(book.end_attempt().end().records)

    assert summary.state == "finished"
    assert summary.warnings == ("the train function ended after step 3 of 6",)
    assert summary.next_step == "run the same file again to go on from step 2"
    assert summarise(whole_story().records).warnings == ()


def test_notices_are_told_the_last_of_many():
    """Who was preempted, and how long before, is the first question after a night of moves."""
    book = Logbook().start()
    for worker_id in range(6):
        book.add(PreemptionNoticed(host=f"slice-1/{worker_id}", source="Ray drains its node", seconds=29.6))

    text = render_summary(summarise(book.records))

    assert (
        "notice       2 earlier\n               slice-1/2: Ray drains its node, 30 s before its end" in text
    )
    assert "slice-1/5" in text
