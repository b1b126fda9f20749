"""A host's own ears: SIGTERM to its process, and what the metadata server says of its VM."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from raytpu.plan.hand_over import Pace, Source

SIGTERM_SETTLES_S = 1.5
"""Ray ends a process whose placement group is removed with SIGTERM, and kills it soon after: whoever lives
for longer was not meant by Ray. By feel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a host tells the driver of its future."""

    ages_s: Mapping[Source, float]
    """Seconds since each notice that its machine goes away."""
    pace: Pace


@dataclass(slots=True)
class HostNotices:
    """What was heard on this host, and when. For any thread."""

    heard_s: dict[Source, float] = field(default_factory=dict)
    """By the monotonic clock."""

    def hear(self, source: Source) -> None:
        """The first word of each counts."""
        self.heard_s.setdefault(source, time.monotonic())

    def ages_s(self) -> dict[Source, float]:
        """Seconds since each notice that counts."""
        now_s = time.monotonic()
        ages = {source: now_s - heard_s for source, heard_s in list(self.heard_s.items())}
        if ages.get(Source.SIGTERM, SIGTERM_SETTLES_S) < SIGTERM_SETTLES_S:
            del ages[Source.SIGTERM]
        return ages


def on_sigterm(act: Callable[[], None]) -> None:
    """From now on SIGTERM does not end this process: ``act`` is called, in a thread. For the main thread.

    A handler in Python runs in the main thread only, which in an actor of several threads stays in Ray's C++
    for ever. The part of Python that the system calls writes to this pipe at once, whoever runs.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def listen() -> None:
        while signal.SIGTERM not in os.read(reading, 64):
            pass
        act()

    threading.Thread(target=listen, name="raytpu-sigterm", daemon=True).start()
