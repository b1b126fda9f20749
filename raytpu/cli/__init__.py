"""Words in, words out: one file per command."""

from __future__ import annotations
