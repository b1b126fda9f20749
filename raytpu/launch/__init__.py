"""The composition root: what the command line does, as functions."""

from __future__ import annotations
