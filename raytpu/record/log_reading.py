"""Reading the logs of all hosts of an attempt back, merged by time."""

from __future__ import annotations

import heapq
import re
from dataclasses import dataclass

from raytpu.errors import WrongRequest
from raytpu.record.appending import GrowingFiles, stem_of
from raytpu.record.run_directory import RunDirectory
from raytpu.record.storage import file_sizes
from raytpu.record.writer_name import LOG_SUFFIX, name_order, writer_of, writer_stem

_LINE = re.compile(r"(\d\d):(\d\d):(\d\d\.\d{3}) ")
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line as it stands in the log, with its head."""

    host: str
    text: str


def hosts_with_logs(directory: RunDirectory, attempt: int) -> list[str]:
    """Hosts that have a log in ``attempt``, in natural order."""
    names = file_sizes(directory.logs(attempt), LOG_SUFFIX)
    return sorted({writer_of(stem_of(name, LOG_SUFFIX)) for name in names}, key=name_order)


def check_host(directory: RunDirectory, attempt: int, host: str) -> None:
    """Make sure that ``host`` has a log in ``attempt``.

    Raises:
        WrongRequest: it has none; names those that have.
    """
    present = hosts_with_logs(directory, attempt)
    if host not in present:
        have = ", ".join(present) or "none"
        raise WrongRequest(
            f"no log of host {host!r} in attempt {attempt} of run {directory.run!r}; hosts with logs: {have}"
        )


def read_logs(
    directory: RunDirectory, attempt: int, host: str | None = None, tail: int | None = None
) -> list[LogLine]:
    """The lines of an attempt so far, of all hosts merged by time, or of one host.

    Args:
        directory: the run directory.
        attempt: number of the attempt.
        host: such as ``slice-0/1``; ``None`` for all.
        tail: only so many lines, the last ones.

    Raises:
        WrongRequest: that host has no log in that attempt.
        StorageError: a log cannot be read.
    """
    if host is not None:
        check_host(directory, attempt, host)
    return LogTail(directory, attempt, host, tail).poll()


class LogTail:
    """Incremental reader of the logs of one attempt: each ``poll`` gives what is new."""

    def __init__(
        self, directory: RunDirectory, attempt: int, host: str | None = None, tail: int | None = None
    ) -> None:
        """As ``read_logs``; ``tail`` limits the first poll only, and the host may come later."""
        stem = None if host is None else writer_stem(host)
        self._files = GrowingFiles(directory.logs(attempt), LOG_SUFFIX, only=stem)
        self._tail = tail
        if tail is not None:
            self._files.skip_to_last(tail)
        self._clocks: dict[str, _DayClock] = {}
        self._anchor_s: float | None = None

    def poll(self) -> list[LogLine]:
        """New lines, merged by time within this poll.

        Raises:
            StorageError: a log cannot be read.
        """
        timed = [
            self._timed(stem, [line.decode(errors="replace") for line in lines])
            for stem, lines in self._files.poll()
        ]
        merged = [line for _, line in heapq.merge(*timed, key=lambda pair: pair[0])]
        if self._tail is not None:
            merged, self._tail = merged[max(0, len(merged) - self._tail) :], None
        return merged

    def _timed(self, stem: str, lines: list[str]) -> list[tuple[float, LogLine]]:
        is_new = stem not in self._clocks
        clock = self._clocks.setdefault(stem, _DayClock())
        times = [clock.time_s(line) for line in lines]
        if is_new:
            # The lines tell no date. Hosts of one attempt start together and end together, so the first
            # lines of two of them, or the last, are less than half a day apart.
            anchor_s = times[0] if self._tail is None else times[-1]
            if self._anchor_s is None:
                self._anchor_s = anchor_s
            shift_s = _DAY_S * round((anchor_s - self._anchor_s) / _DAY_S)
            clock.day_s -= shift_s
            times = [time_s - shift_s for time_s in times]
        host = writer_of(stem)
        return [(time_s, LogLine(host, line)) for time_s, line in zip(times, lines, strict=True)]


@dataclass
class _DayClock:
    """Seconds that grow through midnight, from lines that tell only the time of day."""

    day_s: float = 0.0
    time_of_day_s: float = 0.0

    def time_s(self, line: str) -> float:
        match = _LINE.match(line)
        if match is not None:  # otherwise half a line, left by a machine that died: it stands where it is
            now_s = int(match[1]) * 3600 + int(match[2]) * 60 + float(match[3])
            if now_s < self.time_of_day_s - _DAY_S / 2:
                self.day_s += _DAY_S
            self.time_of_day_s = now_s
        return self.day_s + self.time_of_day_s
