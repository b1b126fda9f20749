"""Capturing everything that a host process prints, Python and C++ alike.

A log is ``logs/<attempt>/<slice>-host<k>.log`` in the run directory (numbered segments on an object store).
Each line is ``HH:MM:SS.mmm slice-0/1 out| text``; the stream is ``out``, ``err``, or ``log`` for the first
line, which is ours and tells the date. Times are UTC, so that hosts compare. Nothing is deduplicated.
"""

from __future__ import annotations

import io
import os
import select
import socket
import subprocess
import sys
import time
from types import TracebackType
from typing import TextIO

from raytpu.errors import DeadlineExceeded, StorageError
from raytpu.record import log_pump
from raytpu.record.appending import FLUSH_INTERVAL_S, open_appender
from raytpu.record.run_directory import RunDirectory
from raytpu.record.storage import is_local
from raytpu.record.writer_name import LOG_SUFFIX, writer_stem

# The pump needs microseconds for a line, an object store a second for a segment: this is for one that hangs.
_DRAIN_DEADLINE_S = 30.0


class HostLog:
    """Sends file descriptors 1 and 2 of this process to the log of its host, until ``close``.

    The lines, with their heads, also go on to where stdout and stderr went before. What the process starts
    meanwhile is captured too. One HostLog per process at a time. Lines are taken by a process of their own
    (``log_pump`` says why), so they survive SIGKILL and abort of this one. What is still in a buffer of
    this process is not yet printed: Python's streams are set to flush at each line, C's stderr has no
    buffer, C's stdout keeps its own.
    """

    def __init__(
        self, directory: RunDirectory, attempt: int, host: str, flush_interval_s: float = FLUSH_INTERVAL_S
    ) -> None:
        """Begin to capture.

        Args:
            directory: the run directory.
            attempt: number of the attempt.
            host: such as ``slice-0/1``.
            flush_interval_s: how old lines may become before they reach an object store.

        Raises:
            StorageError: the log cannot be written.
        """
        folder, stem = directory.logs(attempt), writer_stem(host)
        _write_first_line(folder, stem, attempt, host)
        self._closed = False
        self._line_buffered = [(stream, _flush_each_line(stream)) for stream in (sys.stdout, sys.stderr)]
        self._saved = (os.dup(1), os.dup(2))
        pipes = [os.pipe() for _ in range(4)]  # each (read end, write end)
        (out, to_out), (err, to_err), (control, self._control), (self._done, done) = pipes
        numbers = (out, self._saved[0], err, self._saved[1], control, done)
        command = [*_pump_command(folder), host, folder, stem, str(flush_interval_s), *map(str, numbers)]
        try:
            starter = subprocess.Popen(command, pass_fds=numbers, stdin=subprocess.DEVNULL)
            os.dup2(to_out, 1)
            os.dup2(to_err, 2)
        finally:
            for number in (out, to_out, err, to_err, control, done):
                os.close(number)
        starter.wait()  # it only makes the pump an orphan: 20 ms

    def close(self) -> None:
        """Give stdout and stderr back, and wait until every line printed so far is in the log.

        Closing twice is not an error.

        Raises:
            StorageError: the storage did not take them all.
            DeadlineExceeded: it does not answer.
        """
        if self._closed:
            return
        self._closed = True
        for stream, was_line_buffered in self._line_buffered:
            stream.flush()
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=was_line_buffered)
        for saved, number in zip(self._saved, (1, 2), strict=True):
            os.dup2(saved, number)
            os.close(saved)
        os.close(self._control)
        try:
            answered, _, _ = select.select([self._done], [], [], _DRAIN_DEADLINE_S)
            if not answered:
                raise DeadlineExceeded("the last log lines to be stored", _DRAIN_DEADLINE_S)
            answer = os.read(self._done, 1 << 12)
        finally:
            os.close(self._done)
        if answer != log_pump.STORED:
            why = answer.decode(errors="replace") or "the process that writes it was killed"
            raise StorageError(f"not all lines of this host are in its log: {why}")

    def __enter__(self) -> HostLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _flush_each_line(stream: TextIO) -> bool:
    """Make ``stream`` flush at line ends, as far as it is a stream of Python's own; whether it did before."""
    stream.flush()
    before = stream.line_buffering
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(line_buffering=True)
    return bool(before)


def _write_first_line(folder: str, stem: str, attempt: int, host: str) -> None:
    """Say who, when and where; also finds out that the log cannot be written while stderr is still free."""
    now_s = time.time()
    date = time.strftime("%Y-%m-%d", time.gmtime(now_s))
    text = f"{date} UTC, attempt {attempt}, process {os.getpid()} on {socket.gethostname()}"
    appender = open_appender(folder, stem, LOG_SUFFIX)
    appender.append(log_pump.with_heads([text.encode()], host, "log", now_s))
    appender.close()


def _pump_command(folder: str) -> list[str]:
    if is_local(folder):
        # Isolated and without site-packages: starts in 10 ms.
        return [sys.executable, "-I", "-S", log_pump.__file__]
    return [sys.executable, "-m", log_pump.__name__]
