"""What the record of a run says, and whether its driver is there."""

from __future__ import annotations

import time
from dataclasses import dataclass

from raytpu.errors import SpecError
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
from raytpu.spec import Deadlines, parse_workload


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
        summary=summarise(
            records,
            run=directory.run,
            driver_alive=alive,
            silence=_silence(directory, driver, now_s) if driver is not None and alive else "",
            now_s=now_s,
        ),
        records=records,
        driver=driver,
        driver_alive=alive,
        now_s=now_s,
    )


def _silence(directory: RunDirectory, driver: Driver, now_s: float) -> str:
    """That the driver has been silent for longer than its slices are kept for it; else empty."""
    silent_s, grace_s = now_s - driver.heartbeat_s, _orphan_grace_s(directory)
    if silent_s <= grace_s:
        return ""
    return f"driver silent for {silent_s:.0f} s; its slices are taken back after {grace_s:g} s"


def _orphan_grace_s(directory: RunDirectory) -> float:
    """As the workload of the run says; the default for a run without a file, or one of another version."""
    text = directory.read_workload()
    try:
        return Deadlines().orphan_grace_s if text is None else parse_workload(text).deadlines.orphan_grace_s
    except SpecError:
        return Deadlines().orphan_grace_s
