"""What the record of a run says, and whether its driver is there."""

from __future__ import annotations

import time
from dataclasses import dataclass

from raytpu.record import (
    Driver,
    Recorded,
    RunDirectory,
    RunSummary,
    is_alive,
    read_driver,
    read_events,
    summarise,
)


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """A run at a moment."""

    directory: RunDirectory
    summary: RunSummary
    records: list[Recorded]
    driver: Driver | None
    """Who drives this lineage, or did last."""
    driver_alive: bool
    now_s: float


def run_status(directory: RunDirectory) -> RunStatus:
    """Read the record of a run and add it up."""
    # The driver is read before the events: one that ends in between has then written its end.
    driver = read_driver(directory)
    if driver is not None and driver.lineage != directory.lineage:
        driver = None
    now_s = time.time()
    alive = driver is not None and is_alive(driver, now_s)
    records = read_events(directory)
    return RunStatus(
        directory=directory,
        summary=summarise(records, run=directory.run, driver_alive=alive, now_s=now_s),
        records=records,
        driver=driver,
        driver_alive=alive,
        now_s=now_s,
    )
