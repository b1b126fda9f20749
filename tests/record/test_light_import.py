"""The record is read by commands that must answer at once, and written by processes that must start fast."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"fsspec", "jax", "numpy", "psutil", "pydantic", "ray", "yaml"}


def test_reading_a_local_run_loads_nothing_heavy(tmp_path):
    """Each of these costs `raytpu status`, and every host process, its import."""
    code = f"""
import sys
from raytpu.record import EventLog, RunDirectory, StateChanged, read_events, render_summary, summarise
directory = RunDirectory.newest({str(tmp_path)!r}, "demo")
with EventLog(directory, "driver") as log:
    log.write(StateChanged(state="running"))
render_summary(summarise(read_events(directory)))
print(sorted({HEAVY!r} & set(sys.modules)))
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
