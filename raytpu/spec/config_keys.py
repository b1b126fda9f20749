"""The keys of ``train.config`` that raytpu itself reads; all others belong to the entrypoint."""

from __future__ import annotations

WELL_KNOWN = {"steps": 1, "global_batch": 1, "sequence_length": 1, "seed": 0}
"""Each is a whole number; the value is the least it may be."""

MOST = 2**63 - 1
"""A step or a seed beyond it fits no 64-bit counter of an array, a checkpoint or a random key."""

NEEDED_WITH_DATA = ("steps", "global_batch", "sequence_length")
"""Without these a data stream cannot be laid out."""
