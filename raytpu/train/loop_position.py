"""Where the train loop of this process is, for whoever asks while it runs or hangs."""

from __future__ import annotations

import faulthandler
import os
import re
import statistics
import sys
import sysconfig
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from raytpu.plan import Whereabouts

STEPS_REMEMBERED = 50
"""Steps whose median says what is usual."""

# What is in these folders is no line of the user's program.
_FOREIGN = (
    *(os.path.join(path, "") for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")}),
    os.path.join(Path(__file__).parents[1], ""),
    "<frozen",
)

_FRAME = re.compile(r' +File "(.+)", line (\d+) in (.+)')


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the user's program."""

    line: str
    """``file.py:12``"""
    function: str
    """``file.py:train``: the same for a loop on whichever line it is seen."""


class LoopPosition:
    """Kept by the thread of the train function; asked by others."""

    def __init__(self) -> None:
        self._thread: int | None = None
        self._began = self._ended = False
        self._waiting = self._calls = 0
        self._pauses: list[tuple[str, float]] = []
        self._steps: deque[float] = deque(maxlen=STEPS_REMEMBERED)
        self._waited_s = 0.0

    @contextmanager
    def running(self, *, reports: bool) -> Iterator[None]:
        """While the block runs, this thread is that of the train function.

        One that does not ``reports`` its steps to the context is never said to have begun, so nobody waits
        for its first.
        """
        self._thread, self._began = threading.get_ident(), reports
        try:
            yield
        finally:
            self._ended = True

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While the block runs, this host waits for devices or peers: it has entered the step."""
        began = time.perf_counter()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            self._calls += 1
            if not self._pauses:
                self._waited_s += time.perf_counter() - began

    @contextmanager
    def pausing(self, what: str) -> Iterator[None]:
        """While the block runs, this host is kept from its step by intent."""
        self._pauses.append((what, time.monotonic()))
        try:
            yield
        finally:
            self._pauses.pop()

    def step_took(self, seconds: float) -> None:
        """A step is finished."""
        self._steps.append(seconds)

    def take_waited_s(self) -> float:
        """Seconds spent waiting outside of pauses since the last call."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s

    def whereabouts(self, step: int, steps_here: int) -> Whereabouts:
        """For the driver. Any thread."""
        pause, since_s = next(iter(self._pauses[:1]), ("", 0.0))
        return Whereabouts(
            step=step,
            steps_here=steps_here,
            began=self._began,
            ended=self._ended,
            waits=self._waiting > 0,
            calls=self._calls,
            pause=pause,
            pause_s=time.monotonic() - since_s if pause else 0.0,
            usual_s=statistics.median(self._steps) if self._steps else 0.0,
        )

    def place(self) -> Place | None:
        """Where the train function is; ``None`` before and after it, and when no line of its is known.

        By faulthandler, which reads all stacks without letting go of Python's lock. Frames that are walked in
        Python may end under the walk: Python 3.11 crashed in ``PyFrame_GetBack``, in a run that was well.
        """
        if self._thread is None or self._ended:
            return None
        with tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file=file, all_threads=True)
            file.seek(0)
            return place_in(file.read().decode(errors="replace"), self._thread)


def place_in(stacks: str, thread: int) -> Place | None:
    """The innermost line of the user's program in the stack of one thread, as faulthandler writes it."""
    _, _, stack = stacks.partition(f"hread 0x{thread:016x} ")
    for line in stack.splitlines()[1:]:
        frame = _FRAME.fullmatch(line)
        if frame is None:
            return None
        path, number, function = frame.groups()
        if not path.startswith(_FOREIGN):
            file = os.path.basename(path)
            return Place(line=f"{file}:{number}", function=f"{file}:{function}")
    return None


def show_stacks(reason: str) -> None:
    """To standard error, which is in the host's log. Works while Python code runs or waits in C."""
    print(f"raytpu: {reason}; what the threads of this host are doing:", file=sys.stderr, flush=True)
    faulthandler.dump_traceback(file=sys.stderr.fileno(), all_threads=True)
