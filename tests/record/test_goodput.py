"""Every second of a run is in one bucket."""

from __future__ import annotations

import random

import pytest

from raytpu.record import (
    BADPUT_TYPES,
    Bucket,
    CheckpointDurable,
    CheckpointRestored,
    CheckpointSaved,
    Evaluated,
    HostsStuck,
    PhaseTimed,
    ProgramCompiled,
    ReplicaLost,
    StateChanged,
    StepFinished,
    split_wall_time,
)
from raytpu.record.goodput import steps_of
from tests.record.logbook import Logbook


def seconds_of(book, end_s=None):
    """The buckets that are not empty, rounded."""
    split = split_wall_time(book.records, end_s)
    assert sum(split.seconds.values()) == pytest.approx(split.wall_s, abs=1e-6)
    return {bucket: round(seconds, 6) for bucket, seconds in split.seconds.items() if seconds > 1e-9}


def test_a_simple_run_is_split_into_start_up_steps_and_taking_down():
    """The picture that everybody expects."""
    book = Logbook().start().start_attempt(1).at(1008.0).steps(1, 10).at(1020.0).end_attempt().end()

    assert seconds_of(book) == {Bucket.STARTUP: 8, Bucket.STEP: 10, Bucket.IDLE: 2}
    assert split_wall_time(book.records).fraction == pytest.approx(0.5)


def test_waiting_for_slices_is_not_start_up():
    """A full cluster is nobody's slow import."""
    book = Logbook().start().start_attempt(1)
    book.at(1007.0).add(PhaseTimed(name="hold slices", seconds=6.0)).at(1009.0).steps(
        1, 1
    ).end_attempt().end()

    assert seconds_of(book) == {Bucket.STARTUP: 3, Bucket.IDLE: 6, Bucket.STEP: 1}


def test_compilation_inside_the_first_step_is_no_step_time():
    """A cold cache would count as progress."""
    book = Logbook().start().start_attempt(1).at(1005.0).add(ProgramCompiled(name="step", seconds=4.0))
    book.records[-1] = book.records[-1].__class__(1005.0, "slice-0/0", 1, book.records[-1].event)
    book.at(1000.5).steps(1, 1, seconds=5.5).steps(2, 3).end_attempt().end()

    assert seconds_of(book) == {Bucket.STARTUP: 0.5, Bucket.COMPILE: 4.0, Bucket.STEP: 3.5}


def test_the_longest_wait_for_data_of_all_hosts_counts():
    """Every host waits in the collective for the one whose data is late."""
    book = Logbook().start().start_attempt(1).steps(1, 4, data_wait_s=0.25)
    book.add(StepFinished(step=4, seconds=1.0, data_wait_s=0.75), writer="slice-0/1").end_attempt().end()

    assert seconds_of(book) == {Bucket.STEP: 2.5, Bucket.DATA_WAIT: 1.5}


def test_saves_and_evaluation_inside_a_step_are_taken_out_of_it():
    """A step that stands still for a save is not productive."""
    book = Logbook().start().start_attempt(1).steps(1, 1)
    book.at(1003.0).add(CheckpointSaved(step=1, blocked_s=0.5), "slice-0/0")
    book.at(1004.0).add(Evaluated(step=1, seconds=0.75), "slice-0/0").at(1001.0).steps(2, 2, seconds=5.0)
    book.end_attempt().end()

    assert seconds_of(book) == {Bucket.STEP: 4.75, Bucket.CHECKPOINT: 0.5, Bucket.EVALUATION: 0.75}


def test_steps_made_again_after_a_loss_are_lost_work():
    """The price of a checkpoint interval must be seen to be chosen."""
    book = Logbook().start().start_attempt(1).steps(1, 8).at(1010.0).end_attempt("slice_lost")
    book.at(1013.0).start_attempt(2).at(1016.0)
    book.add(CheckpointRestored(step=5, seconds=1.0), "slice-0/0").steps(6, 10).end_attempt().end()

    assert seconds_of(book) == {
        Bucket.STEP: 10,
        Bucket.LOST: 3,
        Bucket.DETECTION: 2,
        Bucket.REPLACEMENT: 5,
        Bucket.RESTORE: 1,
    }


def test_a_run_that_was_stuck_knows_it_before_its_processes_are_gone():
    """How fast a loss is found and how fast it is mended are two figures, with two cures."""
    book = Logbook().start().start_attempt(1).steps(1, 8).at(1014.0)
    book.add(HostsStuck(cause="silent", hosts=("slice-0/1",), step=9, seconds=6.0, limit_s=6.0))
    book.at(1015.0).end_attempt("slice_lost").at(1016.0).start_attempt(2)
    book.at(1017.0).add(PhaseTimed(name="hold slices", seconds=0.5)).at(1018.0).steps(9, 10)
    book.end_attempt().end()

    assert seconds_of(book) == {Bucket.STEP: 10, Bucket.DETECTION: 6, Bucket.REPLACEMENT: 4}


def test_the_wait_for_the_last_save_is_a_checkpoint_stall():
    """A run of an hour that saves for a minute at its end has not been idle."""
    book = Logbook().start().start_attempt(1).steps(1, 4).at(1007.0)
    book.add(CheckpointDurable(step=4), "slice-0/0").at(1008.0).end_attempt().end()

    assert seconds_of(book) == {Bucket.STEP: 4, Bucket.CHECKPOINT: 3, Bucket.IDLE: 1}


def test_a_replica_that_is_lost_costs_the_others_the_time_until_it_is_known():
    """Replicas make no new attempt: the loss is inside a step."""
    book = Logbook().start().start_attempt(1).steps(1, 8).at(1010.5)
    book.add(ReplicaLost(slice="slice-1")).at(1008.0).steps(9, 9, seconds=4.0).steps(10, 10)
    book.end_attempt().end()

    assert seconds_of(book) == {Bucket.STEP: 11.5, Bucket.DETECTION: 1.5}


def test_a_replica_that_joins_compiles_while_the_others_make_steps():
    """Nobody waits for it."""
    book = Logbook().start().start_attempt(1).steps(1, 8)
    book.at(1006.0).add(ProgramCompiled(name="step", seconds=4.0), "slice-2/0").at(1008.0)
    book.end_attempt().end()

    assert seconds_of(book) == {Bucket.STEP: 8}


def test_a_pause_in_the_middle_of_a_step_takes_nothing_else_from_it():
    """A step's seconds leave its pauses out, so it began earlier than they say."""
    book = Logbook().start().start_attempt(1).steps(1, 1)
    book.at(1004.0).add(CheckpointSaved(step=1, blocked_s=2.0), "slice-0/0").at(1003.0)
    book.steps(2, 2, seconds=2.0, data_wait_s=1.5).end_attempt().end()

    assert seconds_of(book) == {Bucket.STEP: 1.5, Bucket.CHECKPOINT: 2, Bucket.DATA_WAIT: 1.5}


def test_every_bucket_has_its_name_in_ml_goodput_measurement():
    """Figures of two systems can be compared only under the same names."""
    book = Logbook().start().start_attempt(1).at(1002.0).steps(1, 4, data_wait_s=0.25)
    split = split_wall_time(book.at(1008.0).end_attempt("slice_lost").end("failed").records)

    assert BADPUT_TYPES.keys() == set(Bucket)
    assert {name: seconds for name, seconds in split.badput_s.items() if seconds} == {
        "DATA_LOADING_SYNC": 1.0,
        "TPU_INITIALIZATION": 2.0,
        "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": 2.0,
    }
    assert sum(split.badput_s.values()) + split.seconds[Bucket.STEP] == pytest.approx(split.wall_s)


def test_steps_beyond_the_resume_are_lost_before_they_are_made_again():
    """Half-way through the repetition the goodput would otherwise be too good."""
    book = (
        Logbook().start().start_attempt(1).steps(1, 8).end_attempt("slice_lost").start_attempt(2).steps(6, 6)
    )

    assert [step.kept for step in steps_of(book.records)] == [True] * 5 + [False] * 3 + [True]


def test_time_without_a_driver_is_idle():
    """A weekend between two runs of a file is no fault of the machine."""
    book = Logbook().start().start_attempt(1).steps(1, 4)  # killed: nobody writes its end
    book.at(1104.0).start().start_attempt(2).at(1106.0).steps(5, 6).end_attempt().end()

    assert seconds_of(book) == {Bucket.STEP: 6, Bucket.IDLE: 100, Bucket.STARTUP: 2}


def test_a_live_run_is_counted_up_to_now():
    """A run that hangs would keep the goodput it had."""
    book = Logbook().start().start_attempt(1).steps(1, 5)

    assert seconds_of(book, end_s=1020.0) == {Bucket.STEP: 5, Bucket.IDLE: 15}


def test_a_run_without_steps_is_all_start_up():
    """The usual first failure: it never got there."""
    book = Logbook().start().start_attempt(1).at(1030.0).end_attempt("failed").end("failed")

    assert seconds_of(book) == {Bucket.STARTUP: 30}


def test_no_events_are_no_time():
    """A run that was just made has a status as well."""
    assert split_wall_time([]).fraction == 0.0
    assert seconds_of(Logbook()) == {}


@pytest.mark.parametrize("seed", range(200))
def test_the_parts_sum_to_the_wall_time_whatever_the_events_say(seed):
    """Two buckets that count one second, or none, make every percentage wrong."""
    random_ = random.Random(seed)
    book = Logbook()
    kinds = [
        lambda: book.start(),
        lambda: book.start_attempt(random_.randint(1, 4)),
        lambda: book.end_attempt(random_.choice(["completed", "slice_lost", "program_failed"])),
        lambda: book.add(ReplicaLost(slice="slice-1")),
        lambda: book.add(CheckpointDurable(step=1), "slice-0/1"),
        lambda: book.add(HostsStuck(cause="silent", hosts=("slice-0/1",), step=1, seconds=6.0, limit_s=6.0)),
        lambda: book.end(),
        lambda: book.add(StateChanged(state="running")),
        lambda: book.add(
            PhaseTimed(name=random_.choice(["hold", "import jax"]), seconds=random_.uniform(0, 9))
        ),
        lambda: book.add(ProgramCompiled(name="step", seconds=random_.uniform(0, 20)), "slice-0/0"),
        lambda: book.add(CheckpointSaved(step=1, blocked_s=random_.uniform(0, 5)), "slice-0/1"),
        lambda: book.add(Evaluated(step=1, seconds=random_.uniform(0, 5)), "slice-0/1"),
        lambda: book.add(CheckpointRestored(step=1, seconds=random_.uniform(0, 5)), "slice-0/1"),
        lambda: book.steps(
            first := random_.randint(1, 9), first + random_.randint(0, 9), random_.uniform(0, 2)
        ),
        lambda: book.add(
            StepFinished(step=3, seconds=random_.uniform(0, 50), data_wait_s=random_.uniform(0, 90)),
            "slice-0/0",
        ),
    ]
    for _ in range(random_.randint(1, 60)):
        book.at(book.now_s + random_.choice([0.0, random_.uniform(0, 10), random_.uniform(-5, 5)]))
        random_.choice(kinds)()

    split = split_wall_time(book.records, random_.choice([None, book.now_s + 5]))

    assert sum(split.seconds.values()) == pytest.approx(split.wall_s, abs=1e-6)
    assert min(split.seconds.values()) >= 0.0
    assert 0.0 <= split.fraction <= 1.0


def test_a_long_run_is_added_up_quickly():
    """`raytpu status` of a week of training must not take minutes."""
    book = Logbook().start().start_attempt(1).steps(1, 20_000, seconds=0.1, hosts=4).end_attempt().end()

    assert seconds_of(book)[Bucket.STEP] == pytest.approx(2000.0)
