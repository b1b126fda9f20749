"""Stop a run from anywhere that sees its directory."""

from __future__ import annotations

import getpass
import socket
import time

from raytpu.errors import DeadlineExceeded, Refused
from raytpu.record import RunDirectory, is_alive, read_driver, request_stop

POLL_S = 0.3


def stop_run(directory: RunDirectory, *, reason: str, deadline_s: float) -> None:
    """Ask the driver of a run to end it, and wait until it has.

    Raises:
        Refused: nobody drives the run.
        DeadlineExceeded: the driver did not end within ``deadline_s``.
    """
    driver = read_driver(directory)
    if driver is None or not is_alive(driver, time.time()):
        raise Refused(f"run {directory.run} is not running; nothing to stop")
    request_stop(directory, reason, who=f"{getpass.getuser()}@{socket.gethostname()}")
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        present = read_driver(directory)
        if present is None or present.token != driver.token or not is_alive(present, time.time()):
            return
        time.sleep(POLL_S)
    raise DeadlineExceeded(
        f"{driver} to end run {directory.run}",
        deadline_s,
        late=[str(driver)],
        hint=f"if it is frozen, end that process; its slices are freed with it (cluster {driver.cluster})",
    )
