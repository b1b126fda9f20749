"""The order of rows: a pure function of (seed, position), with random access.

Positions count the rows that a run has consumed, over all epochs: position ``p`` lies in epoch
``p // row_count`` and holds the row that this epoch's permutation puts at ``p % row_count``. So every
epoch holds every row exactly once, a batch may cross the border of two epochs, and seeking costs the same
anywhere. Hosts, meshes and blocks do not appear here: the order cannot depend on them.

The permutation is a Feistel network on a rectangle of just over ``row_count`` cells, each round moving the
columns by a keyed function of the lines or the other way round, walked along its cycle until it falls below
``row_count`` (generalised Feistel and cycle walking: Black and Rogaway, "Ciphers with Arbitrary Finite
Domains", 2002). Nearly every walk has one step.
"""

from __future__ import annotations

import math

import numpy as np

# Four rounds make a pseudo-random permutation of a pseudo-random function (Luby and Rackoff, 1988); six
# leave a margin for the small domains that tests and evaluation sets have.
_ROUNDS = 6
_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 0xFFFFFFFFFFFFFFFF


def rows_for_step(seed: int, row_count: int, global_batch: int, step: int) -> np.ndarray:
    """Row numbers of one global batch, int64 ``[global_batch]``, when every step took ``global_batch`` rows.

    Raises:
        ValueError: a count below 1 or a negative step.
    """
    if global_batch < 1 or step < 0:
        raise ValueError(f"need global_batch >= 1 and step >= 0, got {global_batch} and {step}")
    first = step * global_batch
    return rows_at(seed, row_count, np.arange(first, first + global_batch, dtype=np.int64))


def rows_at(seed: int, row_count: int, positions: np.ndarray) -> np.ndarray:
    """Row numbers at ``positions``, int64 of the same length, each in ``[0, row_count)``.

    Raises:
        ValueError: ``row_count`` below 1 or a negative position.
    """
    if row_count < 1:
        raise ValueError(f"need row_count >= 1, got {row_count}")
    positions = np.asarray(positions, dtype=np.int64)
    if positions.size and positions.min() < 0:
        raise ValueError(f"positions start at 0, got {positions.min()}")
    epochs, offsets = np.divmod(positions, row_count)
    keys = _round_keys(seed, epochs.astype(np.uint64))
    rows = offsets.astype(np.uint64)
    width = math.isqrt(row_count - 1) + 1
    height = -(-row_count // width)
    outside = np.arange(rows.size)
    while outside.size:
        rows[outside] = _permute(rows[outside], keys[:, outside], np.uint64(width), np.uint64(height))
        outside = outside[rows[outside] >= row_count]
    return rows.astype(np.int64)


def _permute(cells: np.ndarray, keys: np.ndarray, width: np.uint64, height: np.uint64) -> np.ndarray:
    """Permute ``[0, width * height)``; ``keys`` is uint64 ``[rounds, len(cells)]``."""
    lines, columns = np.divmod(cells, width)
    for turn, key in enumerate(keys):
        if turn % 2 == 0:
            columns = (columns + _mix(lines + key) % width) % width
        else:
            lines = (lines + _mix(columns + key) % height) % height
    return lines * width + columns


def _round_keys(seed: int, epochs: np.ndarray) -> np.ndarray:
    """uint64 ``[rounds, len(epochs)]``: keys that differ in every round, epoch and seed."""
    start = _mix(_mix(np.full(epochs.shape, seed & _WORD, dtype=np.uint64)) + epochs)
    return np.stack([_mix(start + np.uint64((turn * _GOLDEN) & _WORD)) for turn in range(1, _ROUNDS + 1)])


def _mix(words: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every input bit moves every output bit."""
    words = words + np.uint64(_GOLDEN)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = words ^ (words >> np.uint64(31))
    return mixed
