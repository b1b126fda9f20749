"""Wait for something to become true, with a deadline that says what was waited for."""

from __future__ import annotations

import time
from collections.abc import Callable


def await_true(what: str, condition: Callable[[], object], deadline_s: float = 20) -> float:
    """Poll ``condition``; the seconds that it took.

    Raises:
        AssertionError: it was not true by the deadline.
    """
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < deadline_s, f"waited {deadline_s} s for {what}"
        time.sleep(0.05)
    return time.monotonic() - began
