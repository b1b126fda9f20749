"""Writing events and reading them back, on a local path and on an object store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid

import pytest

from raytpu.errors import StorageError
from raytpu.record import (
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    Damaged,
    EventLog,
    EventTail,
    RunDirectory,
    RunStarted,
    StateChanged,
    StepFinished,
    Unknown,
    appending,
    read_events,
)
from raytpu.record.storage import file_sizes, read_bytes, write_bytes


@pytest.fixture
def store():
    return RunDirectory.newest(f"memory://{uuid.uuid4().hex}", "demo")


def events_of(directory):
    return [recorded.event for recorded in read_events(directory)]


def test_what_is_written_is_read_back_in_order(directory):
    """The record is all that a later driver knows of a run."""
    written = [RunStarted(run="demo"), StateChanged(state="running"), CheckpointSaved(step=1, blocked_s=0.5)]
    with EventLog(directory, "driver") as log:
        for event in written:
            log.write(event)

    assert events_of(directory) == written


def test_events_of_several_writers_are_merged_by_time(directory):
    """A step shown before the attempt it belongs to is a riddle."""
    with EventLog(directory, "driver") as driver, EventLog(directory, "slice-0/1", attempt=1) as host:
        host.write(StepFinished(step=1, seconds=1), time_s=2.0)
        driver.write(AttemptStarted(attempt=1), time_s=1.0)
        driver.write(AttemptEnded(ending="completed"), time_s=3.0)

    assert [(r.time_s, r.writer, r.attempt) for r in read_events(directory)] == [
        (1.0, "driver", 1),
        (2.0, "slice-0/1", 1),
        (3.0, "driver", 1),
    ]


def test_the_order_of_one_writer_survives_a_clock_that_is_set_back(local):
    """After a clock correction the end of an attempt must not come before its begin."""
    times = iter([100.0, 50.0, 51.0])
    with EventLog(local, "driver", clock=lambda: next(times)) as log:
        for name in ("a", "b", "c"):
            log.write(StateChanged(state=name))

    assert [event.state for event in events_of(local)] == ["a", "b", "c"]


def test_a_local_event_is_readable_when_write_returns(local):
    """What a killed process wrote would otherwise be gone with its buffer."""
    log = EventLog(local, "driver")
    log.write(StateChanged(state="running"))

    assert events_of(local) == [StateChanged(state="running")]
    log.close()


def test_events_before_a_sigkill_are_all_there(local):
    """The last events before a death are the ones that explain it."""
    code = f"""
import os
from raytpu.record import EventLog, StepFinished
log = EventLog({local.url!r}, "slice-0/0", attempt=1)
for step in range(500):
    log.write(StepFinished(step=step, seconds=0.1))
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)

    assert done.returncode == -9
    assert [event.step for event in events_of(local)] == list(range(500))


def test_an_object_store_gets_the_events_without_anybody_asking(store):
    """A run would be invisible until its end."""
    log = EventLog(store, "driver", flush_interval_s=0.01)
    log.write(StateChanged(state="running"))

    deadline = time.monotonic() + 10
    while not events_of(store) and time.monotonic() < deadline:
        threading.Event().wait(0.005)

    assert events_of(store) == [StateChanged(state="running")]
    log.close()


def test_an_object_store_gets_numbered_segments_that_do_not_grow_without_limit(store, monkeypatch):
    """Objects cannot be appended to: rewriting one ever larger object costs quadratic traffic."""
    monkeypatch.setattr(appending, "SEGMENT_BYTES", 300)
    with EventLog(store, "driver", flush_interval_s=600) as log:
        for step in range(12):
            log.write(CheckpointSaved(step=step, blocked_s=0.0))
            log.flush()

    sizes = file_sizes(store.record)
    assert list(sizes) == [f"driver.{number:06d}.jsonl" for number in range(1, len(sizes) + 1)]
    assert len(sizes) > 2
    assert max(sizes.values()) < 600
    assert [event.step for event in events_of(store)] == list(range(12))


def test_a_second_log_of_the_same_writer_goes_on_after_the_first(directory):
    """A resumed driver that overwrote the record would erase the history of the run."""
    for name in ("first", "second"):
        with EventLog(directory, "driver") as log:
            log.write(StateChanged(state=name))

    assert [event.state for event in events_of(directory)] == ["first", "second"]


def test_a_torn_last_line_is_left_out_and_the_next_writer_is_not_spoilt_by_it(local):
    """A host that died in the middle of a line must not cost the first event of its successor."""
    with EventLog(local, "driver") as log:
        log.write(StateChanged(state="running"))
    path = os.path.join(local.record, "driver.jsonl")
    with open(path, "ab") as file:
        file.write(b'{"time":1.0,"event":{"ki')

    assert events_of(local) == [StateChanged(state="running")]

    with EventLog(local, "driver") as log:
        log.write(StateChanged(state="resumed"))

    first, damaged, last = events_of(local)
    assert (first, last) == (StateChanged(state="running"), StateChanged(state="resumed"))
    assert isinstance(damaged, Damaged)
    assert damaged.text == '{"time":1.0,"event":{"ki'


@pytest.mark.parametrize(
    "line", [b"\x00\x00\x00", b"[1, 2]", b"{}", b'{"time": "soon", "event": {}}', b"\xff{"]
)
def test_a_spoilt_line_in_the_middle_is_reported_and_the_rest_is_read(local, line):
    """One bad block on a disk must not make a whole run unreadable."""
    with EventLog(local, "driver") as log:
        log.write(StateChanged(state="before"))
    path = os.path.join(local.record, "driver.jsonl")
    before = read_bytes(path)
    write_bytes(path, before + line + b"\n" + before.replace(b"before", b"after"))

    events = events_of(local)

    assert [type(event) for event in events] == [StateChanged, Damaged, StateChanged]


def test_an_event_of_another_version_keeps_its_place(local):
    """A reader that stops at what it does not know shows half a run."""
    with EventLog(local, "driver") as log:
        log.write(StateChanged(state="running"))
    path = os.path.join(local.record, "driver.jsonl")
    line = json.dumps({"time": 5.0, "attempt": 2, "event": {"kind": "slice_replaced"}}).encode()
    write_bytes(path, line + b"\n" + read_bytes(path))

    recorded = read_events(local)

    assert isinstance(recorded[0].event, Unknown)
    assert (recorded[0].time_s, recorded[0].attempt) == (5.0, 2)


def test_many_threads_write_whole_lines(local):
    """Two lines mixed into one are two events lost."""
    with EventLog(local, "driver") as log:
        threads = [
            threading.Thread(
                target=lambda worker=worker: [
                    log.write(CheckpointSaved(step=worker * 100 + at, blocked_s=0.0)) for at in range(100)
                ]
            )
            for worker in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sorted(event.step for event in events_of(local)) == list(range(800))


def test_a_tail_gives_each_event_once(directory):
    """Progress that repeats itself, or skips a step, is not believed."""
    tail = EventTail(directory)
    assert tail.poll() == []
    with EventLog(directory, "driver", flush_interval_s=600) as log:
        seen = []
        for step in range(20):
            log.write(CheckpointSaved(step=step, blocked_s=0.0))
            if step % 3 == 0:
                log.flush()
                seen += tail.poll()
        log.flush()
        seen += tail.poll()

    assert [recorded.event.step for recorded in seen] == list(range(20))
    assert tail.poll() == []


def test_a_tail_waits_for_the_end_of_a_line(local):
    """Half a line is not damage while somebody still writes it."""
    tail = EventTail(local)
    os.makedirs(local.record)
    line = b'{"time":1.0,"attempt":null,"event":{"kind":"state_changed","state":"running"}}\n'
    with open(os.path.join(local.record, "driver.jsonl"), "ab", buffering=0) as file:
        file.write(line[:30])
        assert tail.poll() == []
        file.write(line[30:])
        assert [recorded.event for recorded in tail.poll()] == [StateChanged(state="running")]


def test_what_an_attempt_wrote_belongs_to_it_even_in_a_later_poll(local):
    """Progress would count the steps of a second attempt to the first."""
    tail = EventTail(local)
    with EventLog(local, "driver") as log:
        log.write(AttemptStarted(attempt=4))
        tail.poll()
        log.write(StateChanged(state="running"))
        assert [recorded.attempt for recorded in tail.poll()] == [4]
        log.write(AttemptEnded(ending="slice_lost"))
        log.write(StateChanged(state="waiting"))
        assert [recorded.attempt for recorded in tail.poll()] == [4, None]


def test_a_record_that_cannot_be_written_says_where_and_why(tmp_path):
    """The reason is needed by whoever must fix it."""
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match=f"{tmp_path}/file/demo/001/record.*Not a directory"):
        EventLog(RunDirectory.newest(str(tmp_path / "file"), "demo"), "driver")


def test_writing_after_the_end_is_a_bug_that_shows():
    """Events that vanish without a word are worse than a traceback."""
    log = EventLog(RunDirectory.newest(f"memory://{uuid.uuid4().hex}", "demo"), "driver")
    log.close()
    log.close()

    with pytest.raises(ValueError, match="closed"):
        log.write(StateChanged(state="late"))


def test_names_of_slices_with_any_characters_come_back(directory):
    """A slice named by a cloud may hold dots, dashes and slashes."""
    with EventLog(directory, "my.tpu-host3/x-1/12", attempt=7) as log:
        log.write(StateChanged(state="running"))

    assert [(r.writer, r.attempt) for r in read_events(directory)] == [("my.tpu-host3/x-1/12", 7)]
