"""End a gang whose driver is gone, when nobody else would notice.

Ray itself ends the processes of a driver that died, within seconds. A driver that is frozen, or cut off,
looks alive to Ray and would hold its slices for ever. Each host process therefore watches the driver's
heartbeat in the run's directory; the first to miss it for too long gives the whole placement group back, and
every process of the gang ends with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from raytpu.errors import StorageError
from raytpu.record import RunDirectory, read_driver


class HeartbeatWatch:
    """Tells from successive looks at a driver's heartbeat whether the gang is orphaned. Pure.

    Heartbeats are compared with each other, never with this host's clock: only their standing still counts.
    """

    def __init__(self, token: str, grace_s: float, now_s: float) -> None:
        self._token, self._grace_s = token, grace_s
        self._heartbeat_s: float | None = None
        self._moved_s = now_s

    def verdict(self, token: str | None, heartbeat_s: float | None, now_s: float) -> str | None:
        """Why the gang is orphaned; ``None`` while it is not.

        Args:
            token: of the driver that the run's directory names; ``None`` when it names none.
            heartbeat_s: that driver's last heartbeat, by its clock.
            now_s: by this host's monotonic clock, taken before looking.
        """
        if token is not None and token != self._token:
            return "another driver has taken the run"
        if token is not None and heartbeat_s != self._heartbeat_s:
            self._heartbeat_s, self._moved_s = heartbeat_s, now_s
            return None
        silent_s = now_s - self._moved_s
        if silent_s > self._grace_s:
            return f"the driver has not been heard of for {silent_s:.0f} s"
        return None

    def cannot_tell(self, now_s: float) -> None:
        """The storage did not answer: silence of the storage says nothing about the driver."""
        self._moved_s = now_s


def guard(directory: RunDirectory, token: str, grace_s: float, end: Callable[[str], None]) -> None:
    """Call ``end`` with the reason once this process is orphaned. Returns at once; a daemon thread looks."""

    def look() -> None:
        watch = HeartbeatWatch(token, grace_s, time.monotonic())
        while True:
            time.sleep(grace_s / 5)
            now_s = time.monotonic()  # before looking: a thaw in between must not count as silence
            try:
                driver = read_driver(directory)
            except StorageError:
                watch.cannot_tell(now_s)
                continue
            reason = watch.verdict(
                None if driver is None else driver.token,
                None if driver is None else driver.heartbeat_s,
                now_s,
            )
            if reason is not None:
                end(reason)
                return

    threading.Thread(target=look, name="raytpu-orphan-guard", daemon=True).start()
