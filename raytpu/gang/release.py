"""Giving back to a Ray that may be gone: bounded, because there may be nobody left to answer."""

from __future__ import annotations

import threading
from collections.abc import Callable

RELEASE_S = 10.0
"""For Ray to take a placement group or a process away; it takes milliseconds, or its head is gone."""


def within_s(deadline_s: float, work: Callable[[], object]) -> bool:
    """Do ``work``, waiting for it no longer than ``deadline_s``; whether it was done by then.

    Calls to a Ray whose head is gone block for a minute and then end the process.
    """
    thread = threading.Thread(target=work, name="raytpu-release", daemon=True)
    thread.start()
    thread.join(deadline_s)
    return not thread.is_alive()
