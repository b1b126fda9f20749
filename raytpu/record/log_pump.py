"""The process that takes the output of one host process line by line; started by ``HostLog`` only.

A process of its own, not a thread of the host process, for three reasons. What XLA prints just before it
aborts, and what is in the pipe at a SIGKILL, still reaches the log. C++ code that prints while it holds
Python's lock cannot fill the pipe and wait for ever for a thread that needs that lock. And a line has the
time at which it was printed, even while the host process compiles.

It ends when nobody holds the other ends of its pipes any more, at the latest a few seconds after the host
process. Signals that end the host process do not end it. It is started without site-packages and imports,
for a local log, only what is imported here.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from typing import Protocol

# A line longer than this is cut in pieces, each with a head of its own.
LONGEST_LINE_BYTES = 1 << 16


# How long what the host process started may go on printing after it has ended. Whatever outlives it longer
# is a leak, and must not keep the pump as a second one.
ORPHANS_S = 5.0

# What the host process printed is in the pipes, at most 64 kB each: milliseconds. The limit is for children
# of it that print without end.
DRAIN_S = 1.0


# What the host process reads when all lines are stored.
STORED = b"stored"


class Log(Protocol):
    """What takes the lines: a ``LocalLog``, or an ``appending.SegmentAppender``."""

    def append(self, lines: bytes) -> None: ...
    def flush(self) -> None: ...


class LocalLog:
    """Appends to a file, which is made if it is not there."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def append(self, lines: bytes) -> None:
        _write_all(self._file, lines)

    def flush(self) -> None:
        """Nothing to do: the system has it."""


class LineSplitter:
    """Bytes in any pieces → whole lines. ``\\r`` ends a line as well: progress bars never send ``\\n``."""

    def __init__(self) -> None:
        self._rest = b""

    def split(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes, without their ends."""
        data = self._rest + data
        held = b""
        if data.endswith(b"\r"):  # may be the first half of \r\n
            data, held = data[:-1], b"\r"
        lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop() + held
        while len(self._rest) > LONGEST_LINE_BYTES:
            lines.append(self._rest[:LONGEST_LINE_BYTES])
            self._rest = self._rest[LONGEST_LINE_BYTES:]
        return lines

    def rest(self) -> list[bytes]:
        """What is left when nothing more will come."""
        last, self._rest = self._rest.rstrip(b"\r"), b""
        return [last] if last else []


class Pump:
    """Copies lines from pipes to a log, and on to where they went before.

    Args:
        host: goes into the head of each line.
        log: takes the lines.
        pipes: read end → (stream name, file descriptor where the lines go on to).
        flush_interval_s: how often ``log`` is flushed.
        failures: what ``log`` raises when the storage does not take the lines.
    """

    def __init__(
        self,
        host: str,
        log: Log,
        pipes: dict[int, tuple[str, int]],
        flush_interval_s: float,
        failures: tuple[type[Exception], ...] = (OSError,),
    ) -> None:
        self._host, self._log, self._pipes = host, log, pipes
        self._interval_s, self._failures = flush_interval_s, failures
        self._failure = ""
        self._splitters = {pipe: LineSplitter() for pipe in pipes}
        self._open = list(pipes)
        self._flush_at_s = time.monotonic() + flush_interval_s

    def run(self, control: int, done: int) -> None:
        """Copy until every pipe is at its end, at most a while longer than ``control`` is open.

        The host process holds the other end of ``control``. When it closes it, or dies, everything that it
        wrote before is copied and flushed; then ``done`` gets ``STORED``, or the reason why not all lines
        are stored.
        """
        while self._open and not self._copy(self._interval_s, control):
            pass
        drained_by_s = time.monotonic() + DRAIN_S
        while self._copy(0.0) and time.monotonic() < drained_by_s:
            pass
        self._flush()
        _pass_on(done, self._failure.encode() or STORED)
        os.close(done)
        end_s = time.monotonic() + ORPHANS_S
        while self._open and (left_s := end_s - time.monotonic()) > 0:
            self._copy(min(left_s, self._interval_s))
        self._flush()

    def _copy(self, patience_s: float, control: int | None = None) -> bool:
        """Copy what is there now. True when ``control`` ended; without control, when something was there."""
        watched = self._open if control is None else [*self._open, control]
        ready, _, _ = select.select(watched, [], [], patience_s)
        for pipe in ready:
            if pipe != control:
                self._copy_pipe(pipe)
        if time.monotonic() >= self._flush_at_s:
            self._flush()
        return bool(ready) if control is None else control in ready

    def _copy_pipe(self, pipe: int) -> None:
        data = os.read(pipe, 1 << 16)
        lines = self._splitters[pipe].split(data) if data else self._splitters[pipe].rest()
        if not data:
            self._open.remove(pipe)
        if lines:
            stream, onward = self._pipes[pipe]
            text = with_heads(lines, self._host, stream, time.time())
            self._store(text)
            _pass_on(onward, text)

    def _store(self, text: bytes) -> None:
        try:
            self._log.append(text)
        except self._failures as error:
            self._fail(error)

    def _flush(self) -> None:
        self._flush_at_s = time.monotonic() + self._interval_s
        try:
            self._log.flush()
        except self._failures as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Go on copying: a full disk must not fill the pipe and stop the host. Told once, and at the end."""
        if not self._failure:
            text = f"raytpu: not all lines of this host can be stored: {error}"
            _, onward = self._pipes[max(self._pipes)]
            _pass_on(onward, with_heads([text.encode()], self._host, "log", time.time()))
        self._failure = str(error)


def with_heads(lines: list[bytes], host: str, stream: str, time_s: float) -> bytes:
    """``HH:MM:SS.mmm slice-0/1 out| text`` for each line, with its end; the time of day is UTC."""
    clock = time.strftime("%H:%M:%S", time.gmtime(time_s))
    head = f"{clock}.{int(time_s % 1 * 1000):03d} {host} {stream}| ".encode()
    return b"".join(head + line + b"\n" for line in lines)


def _pass_on(onward: int, text: bytes) -> None:
    try:
        _write_all(onward, text)
    except OSError:
        # Whoever watched the original output is gone. The log is what counts: go on.
        return


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def main(arguments: list[str]) -> None:
    """Run the pump in a grandchild of the host process; return in the child at once.

    Args:
        arguments: host, folder, stem, flush interval, then file descriptors: the pipe of stdout, where
            stdout went before, the same for stderr, control, done.
    """
    host, folder, stem, interval = arguments[:4]
    out_pipe, out_onward, err_pipe, err_onward, control, done = map(int, arguments[4:])
    # A child of the host process would be killed with it by Ray (kill_child_processes_on_worker_exit);
    # a grandchild whose parent is gone lives until it has drained the pipes.
    if os.fork():
        return
    for ends_host in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ends_host, signal.SIG_IGN)
    pipes = {out_pipe: ("out", out_onward), err_pipe: ("err", err_onward)}
    log, failures = _open_log(folder, stem)
    Pump(host, log, pipes, float(interval), failures).run(control, done)


def _open_log(folder: str, stem: str) -> tuple[Log, tuple[type[Exception], ...]]:
    if "://" not in folder:
        return LocalLog(f"{folder}/{stem}.log"), (OSError,)
    from raytpu.errors import StorageError
    from raytpu.record.appending import SegmentAppender

    return SegmentAppender(folder, stem, ".log"), (StorageError,)


if __name__ == "__main__":
    main(sys.argv[1:])
