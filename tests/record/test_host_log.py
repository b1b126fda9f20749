"""Everything that a host process prints, and how it is read back."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import threading
import time
import uuid

import pytest

from raytpu.errors import StorageError, WrongRequest
from raytpu.record import LogTail, RunDirectory, hosts_with_logs, read_logs
from raytpu.record.appending import SegmentAppender
from raytpu.record.log_pump import LONGEST_LINE_BYTES, STORED, LineSplitter, Pump, with_heads
from raytpu.record.storage import file_sizes, join_url, write_bytes

LINE = re.compile(r"^\d\d:\d\d:\d\d\.\d{3} slice-0/1 (out|err|log)\| (.*)$")

PRELUDE = """
import ctypes, os, signal, subprocess, sys
from raytpu.record import HostLog, RunDirectory
log = HostLog(RunDirectory.at(sys.argv[1]), 1, "slice-0/1")
"""


@pytest.fixture
def directory(tmp_path):
    return RunDirectory.newest(str(tmp_path), "demo")


def run_host(directory, body, expected_code=0):
    """Run ``body`` in a process whose output is captured; what arrived at its original stdout."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + body, directory.url],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == expected_code, done.stderr
    return done


def stored(directory, wanted=None):
    """(stream, text) of each line of the log; waits until ``wanted`` is among them."""
    end = time.monotonic() + 10
    while True:
        lines = [LINE.match(line.text) for line in read_logs(directory, 1)]
        found = [(match[1], match[2]) for match in lines if match is not None]
        assert len(found) == len(lines)
        if wanted is None or wanted in found or time.monotonic() > end:
            return found[1:]  # the first line tells the date
        threading.Event().wait(0.01)


def test_each_line_has_time_host_and_stream(directory):
    """Of lines from 16 hosts without their host, none is of use."""
    run_host(directory, 'print("from python"); print("trouble", file=sys.stderr); log.close()')

    assert sorted(stored(directory)) == [("err", "trouble"), ("out", "from python")]


def test_the_first_line_tells_date_attempt_and_process(directory):
    """The other lines tell only the time of day."""
    run_host(directory, "log.close()")

    first = read_logs(directory, 1)[0].text
    assert re.search(r"slice-0/1 log\| \d{4}-\d\d-\d\d UTC, attempt 1, process \d+ on ", first)


def test_what_c_code_and_children_print_is_captured(directory):
    """XLA and gloo print what matters, and they do not ask Python."""
    run_host(
        directory,
        """
ctypes.CDLL(None).dprintf(2, b"from C\\n")
os.write(1, b"from the descriptor\\n")
subprocess.run(["echo", "from a child"])
log.close()
""",
    )

    assert set(stored(directory)) == {
        ("err", "from C"),
        ("out", "from the descriptor"),
        ("out", "from a child"),
    }


@pytest.mark.parametrize("death", ["os.kill(os.getpid(), signal.SIGKILL)", "os.abort()", "os._exit(9)"])
def test_the_last_words_before_a_death_are_in_the_log(directory, death):
    """XLA prints the reason and aborts: the last line is the one that explains the death."""
    body = 'for n in range(3000): print("line", n)\nos.write(2, b"last words\\n")\n' + death
    code = {"k": -9, "a": -6, "_": 9}[death[3]]
    run_host(directory, body, expected_code=code)

    found = stored(directory, wanted=("err", "last words"))

    assert [text for stream, text in found if stream == "out"] == [f"line {n}" for n in range(3000)]
    assert ("err", "last words") in found


def test_lines_go_on_to_where_they_went_before(directory):
    """Ray's dashboard shows the original output of a worker."""
    done = run_host(directory, 'print("hello"); log.close(); print("after")')

    assert LINE.match(done.stdout.splitlines()[0])[2] == "hello"
    assert done.stdout.splitlines()[1] == "after"
    assert [text for _, text in stored(directory)] == ["hello"]


def test_equal_lines_of_one_host_are_all_kept(directory):
    """A deduplication that eats the line of a rank hides the rank that differs."""
    run_host(directory, 'for _ in range(50): print("same")\nlog.close()')

    assert [text for _, text in stored(directory)] == ["same"] * 50


def test_a_line_without_its_end_is_kept(directory):
    """The last thing that a program prints often has none."""
    run_host(directory, 'os.write(1, b"no end"); log.close()')

    assert stored(directory, wanted=("out", "no end")) == [("out", "no end")]


def test_output_that_nobody_reads_does_not_stop_the_host(directory):
    """A closed terminal must not end a training run."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + 'print("on"); log.close()', directory.url],
        stdout=write_end,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    os.close(write_end)

    assert done.returncode == 0, done.stderr
    assert stored(directory) == [("out", "on")]


def test_printing_while_pythons_lock_is_held_does_not_hang(directory):
    """C++ code that prints more than a pipe holds would wait for ever for a thread of this process."""
    run_host(
        directory,
        """
library = ctypes.PyDLL(None)  # PyDLL keeps Python's lock during the call
for _ in range(30):
    library.dprintf(2, b"%s\\n", b"x" * 10_000)
log.close()
""",
    )

    assert len(stored(directory)) == 30


def test_no_process_outlives_the_host_for_long(directory):
    """Every run would leave one process per host behind."""
    done = run_host(directory, "print(os.getpid(), flush=True)\nos._exit(0)")
    marker = directory.logs(1)

    def pumps():
        listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
        return [line for line in listed.splitlines() if "log_pump" in line and marker in line]

    end = time.monotonic() + 10
    while pumps() and time.monotonic() < end:
        threading.Event().wait(0.02)
    assert pumps() == [], done.stdout


def test_a_child_that_outlives_the_host_does_not_keep_it_from_closing(directory):
    """Closing would wait for a daemon that was started in passing."""
    body = """
child = subprocess.Popen(["sleep", "60"])
print("done")
log.close()
child.kill()
"""
    began = time.monotonic()
    run_host(directory, body)

    assert time.monotonic() - began < 30
    assert stored(directory) == [("out", "done")]


def test_a_log_that_cannot_be_written_is_told_before_anything_is_captured(tmp_path):
    """Once stderr is captured there is nowhere to say so."""
    (tmp_path / "file").write_text("")
    code = """
import sys
from raytpu.record import HostLog, RunDirectory
HostLog(RunDirectory.at(sys.argv[1]), 1, "slice-0/1")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, f"{tmp_path}/file/demo/001"], capture_output=True, text=True, check=False
    )

    assert "StorageError: cannot make" in done.stderr
    assert "Not a directory" in done.stderr


class Pipes:
    """The ends of a pump's pipes, for a pump in a thread of the test."""

    def __init__(self, log, failures=(OSError,)):
        self.out, self.to_out = os.pipe()
        self.control, self.to_control = os.pipe()
        self.done, to_done = os.pipe()
        self.onward = os.open(os.devnull, os.O_WRONLY)
        pump = Pump("slice-0/1", log, {self.out: ("out", self.onward)}, 0.01, failures)
        self.thread = threading.Thread(target=pump.run, args=(self.control, to_done))
        self.thread.start()

    def finish(self):
        """What the pump answers when the host lets go of it."""
        os.close(self.to_control)
        answer = os.read(self.done, 1000)
        os.close(self.to_out)
        self.thread.join(timeout=10)
        assert not self.thread.is_alive()
        for number in (self.out, self.control, self.done, self.onward):
            os.close(number)
        return answer


def test_on_an_object_store_lines_come_in_segments_while_the_host_prints():
    """The log of a hanging host is needed while it hangs."""
    directory = RunDirectory.newest(f"memory://{uuid.uuid4().hex}", "demo")
    pipes = Pipes(SegmentAppender(directory.logs(1), "slice-0-host1", ".log"), (StorageError,))
    os.write(pipes.to_out, b"one\n")

    end = time.monotonic() + 10
    while not read_logs(directory, 1) and time.monotonic() < end:
        threading.Event().wait(0.005)
    os.write(pipes.to_out, b"two\n")
    assert pipes.finish() == STORED

    assert [line.text[13:] for line in read_logs(directory, 1)] == [
        "slice-0/1 out| one",
        "slice-0/1 out| two",
    ]
    assert list(file_sizes(directory.logs(1))) == ["slice-0-host1.000001.log"]


def test_a_full_disk_does_not_stop_the_host_and_is_told_at_the_end():
    """A host that waits in print() for the log looks like a hang of the program."""

    class FullDisk:
        def append(self, _lines):
            raise OSError(28, "No space left on device")

        def flush(self):
            """Nothing to do."""

    pipes = Pipes(FullDisk())
    for _ in range(200):
        os.write(pipes.to_out, b"x" * 1000 + b"\n")

    assert b"No space left on device" in pipes.finish()


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"a\nb", b"c\n"], [b"a", b"bc"]),
        ([b"a\r", b"\nb\n"], [b"a", b"b"]),
        ([b"10%\r20%\r", b"30%\n"], [b"10%", b"20%", b"30%"]),
        ([b"\n\n"], [b"", b""]),
        ([b"end"], [b"end"]),
        ([b"end\r"], [b"end"]),
        ([b"x" * (LONGEST_LINE_BYTES + 1)], [b"x" * LONGEST_LINE_BYTES, b"x"]),
    ],
)
def test_bytes_become_lines_wherever_they_are_cut(pieces, lines):
    """Pipes cut where they like; progress bars never end a line."""
    splitter = LineSplitter()

    assert [*(line for piece in pieces for line in splitter.split(piece)), *splitter.rest()] == lines


def write_log(directory, host, *lines):
    slice_name, number = host.split("/")
    text = "".join(f"{clock} {host} out| {word}\n" for clock, word in lines)
    write_bytes(join_url(directory.logs(1), f"{slice_name}-host{number}.log"), text.encode())


def words(lines):
    return [line.text.rpartition("| ")[2] for line in lines]


def test_lines_of_all_hosts_are_merged_by_time(directory):
    """Which host failed first is the question."""
    write_log(directory, "slice-0/0", ("12:00:00.000", "a"), ("12:00:02.000", "c"))
    write_log(directory, "slice-1/0", ("12:00:01.000", "b"), ("12:00:03.000", "d"))

    assert words(read_logs(directory, 1)) == ["a", "b", "c", "d"]
    assert words(read_logs(directory, 1, host="slice-1/0")) == ["b", "d"]
    assert words(read_logs(directory, 1, tail=3)) == ["b", "c", "d"]
    assert words(read_logs(directory, 1, tail=0)) == []


@pytest.mark.parametrize("tail", [None, 4])
def test_midnight_does_not_mix_the_days(directory, tail):
    """Lines tell only the time of day; a run does not end at midnight."""
    write_log(directory, "slice-0/0", ("23:59:58.000", "a"), ("00:00:01.000", "c"))
    write_log(directory, "slice-0/1", ("00:00:00.000", "b"), ("00:00:02.000", "d"))

    assert words(read_logs(directory, 1, tail=tail)) == ["a", "b", "c", "d"]


def test_the_last_lines_of_a_long_log_are_found_without_its_begin(directory):
    """Reading gigabytes to show ten lines."""
    lines = [("12:00:00.000", f"{number} " + "x" * 90) for number in range(5000)]
    write_log(directory, "slice-0/0", *lines)

    last = read_logs(directory, 1, tail=2500)

    assert [word.split()[0] for word in words(last)] == [str(number) for number in range(2500, 5000)]


def test_half_a_line_of_a_dead_host_stands_where_it_is(directory):
    """A torn line must not hide the lines around it."""
    path = join_url(directory.logs(1), "slice-0-host0.log")
    text = (
        with_heads([b"a"], "slice-0/0", "out", 0.0)
        + b"12:0\n"
        + with_heads([b"\xff"], "slice-0/0", "out", 1.0)
    )
    write_bytes(path, text)

    assert [line.text for line in read_logs(directory, 1)] == [
        "00:00:00.000 slice-0/0 out| a",
        "12:0",
        "00:00:01.000 slice-0/0 out| \N{REPLACEMENT CHARACTER}",
    ]


def test_a_host_without_log_is_refused_with_those_that_have_one(directory):
    """An empty answer would look like a host that printed nothing."""
    for host in ("slice-0/0", "slice-0/10", "slice-0/2"):
        write_log(directory, host, ("12:00:00.000", "a"))

    assert hosts_with_logs(directory, 1) == ["slice-0/0", "slice-0/2", "slice-0/10"]
    with pytest.raises(WrongRequest, match=r"'slice-0/3'.*hosts with logs: slice-0/0, slice-0/2, slice-0/10"):
        read_logs(directory, 1, host="slice-0/3")


def test_a_tail_gives_new_lines_only(directory):
    """--follow that repeats itself cannot be read."""
    write_log(directory, "slice-0/0", ("12:00:00.000", "a"), ("12:00:01.000", "b"))
    tail = LogTail(directory, 1, tail=1)
    assert words(tail.poll()) == ["b"]

    write_log(directory, "slice-0/0", ("12:00:00.000", "a"), ("12:00:01.000", "b"), ("12:00:02.000", "c"))

    assert words(tail.poll()) == ["c"]
    assert tail.poll() == []


def test_the_c_library_is_there():
    """The tests above print through it; without it they would prove nothing."""
    assert ctypes.CDLL(None).getpid() == os.getpid()
