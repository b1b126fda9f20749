"""The environment, read here and handed down as values."""

from __future__ import annotations

import os


def raytpu_home() -> str:
    """raytpu's folder on this machine: ``RAYTPU_HOME``, or ``~/.raytpu``."""
    return os.environ.get("RAYTPU_HOME") or os.path.expanduser("~/.raytpu")
