"""A joiner takes the state of a step from the memory of a member that has it, over the network."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Sequence

import numpy as np

from raytpu.errors import DeadlineExceeded, HostMismatch, RaytpuError
from raytpu.train.replicas.array_layout import ArraySpec, Chunk, as_bytes, cut, specs_of
from raytpu.train.replicas.endpoint import Address, Endpoint, accept
from raytpu.train.replicas.frames import (
    Frame,
    PeerLost,
    checksum,
    pack,
    receive_frame,
    receive_into,
    receive_json,
    send_all,
    send_json,
)

PURPOSE = "state"
STATE = 3
"""Kind of a frame, see ``averaging_round``."""

ASK_S = 5.0
"""For the question of a joiner, which it sends at once. By feel."""

DIFFERENCES_SHOWN = 3

Provider = Callable[[int], Sequence[np.ndarray]]
"""The arrays of the state after exactly that step, none of which changes while it is sent. May wait until the
step is there; raises ``RaytpuError`` when it will not be."""

_log = logging.getLogger(__name__)


def serve_state(endpoint: Endpoint, provider: Provider) -> None:
    """Give the state to whoever asks for it, each in a thread of its own, until the endpoint is closed.

    Never waits for an average, nor an average for it: the round that admits a joiner ends only when the
    joiner has both.
    """
    endpoint.serve(PURPOSE, lambda connection, joiner: _give(connection, joiner, endpoint.me, provider))


def pull_state(
    endpoint: Endpoint,
    donor: str,
    address: Address,
    *,
    step: int,
    epoch: int,
    like: Sequence[ArraySpec],
    deadline_s: float,
) -> list[np.ndarray]:
    """The state after ``step`` from ``donor``, every byte checked, in fresh arrays.

    Raises:
        PeerLost: the donor is gone, does not have the step, or sent damaged bytes; another one may do.
        HostMismatch: the donor's arrays are not ``like``; names the first that differ.
        DeadlineExceeded: it took longer than ``deadline_s``.
    """
    until = time.monotonic() + deadline_s
    try:
        connection = endpoint.dial(donor, address, PURPOSE, until)
        try:
            send_json(connection, {"step": step, "epoch": epoch})
            manifest = receive_json(connection, until)
            if "refused" in manifest:
                raise PeerLost(donor, f"it does not give its state: {manifest['refused']}")
            _compare(donor, manifest["arrays"], [str(spec) for spec in like])
            return _receive(connection, donor, (epoch, step), tuple(like), until)
        finally:
            endpoint.hang_up(connection)
    except TimeoutError as error:
        raise DeadlineExceeded(f"the state after step {step}", deadline_s, [donor]) from error
    except (OSError, ValueError) as error:
        raise PeerLost(donor, f"while it gave its state: {error}") from error


def _give(connection: socket.socket, joiner: str, me: str, provider: Provider) -> None:
    accept(connection)
    question = receive_json(connection, time.monotonic() + ASK_S)
    connection.settimeout(None)
    step, epoch = int(question["step"]), int(question["epoch"])
    try:
        arrays = [np.asarray(array, order="C") for array in provider(step)]
    except RaytpuError as error:
        send_json(connection, {"refused": str(error)})
        return
    specs = specs_of(arrays)
    send_json(connection, {"arrays": [str(spec) for spec in specs]})
    flat = [as_bytes(array) for array in arrays]
    began = time.monotonic()
    for chunk in cut(specs, (me,)):
        buffers = _buffers(flat, chunk)
        frame = Frame(STATE, 0, chunk.index, epoch, step, checksum(buffers), chunk.size_bytes)
        send_all(connection, [pack(frame), *buffers])
    size_mb, seconds = sum(spec.size_bytes for spec in specs) / 1e6, time.monotonic() - began
    _log.info("%s: gave %s the state after step %d: %.0f MB in %.2f s", me, joiner, step, size_mb, seconds)


def _receive(
    connection: socket.socket, donor: str, key: tuple[int, int], specs: tuple[ArraySpec, ...], until: float
) -> list[np.ndarray]:
    arrays = [np.empty(spec.shape, spec.dtype) for spec in specs]
    flat = [as_bytes(array) for array in arrays]
    for chunk in cut(specs, (donor,)):
        frame = receive_frame(connection, until)
        if (frame.kind, frame.chunk, frame.key, frame.length) != (STATE, chunk.index, key, chunk.size_bytes):
            raise PeerLost(donor, f"it sent something else than the next chunk of its state: {frame}")
        buffers = _buffers(flat, chunk)
        for buffer in buffers:
            receive_into(connection, buffer.data, until)
        if checksum(buffers) != frame.check:
            raise PeerLost(donor, f"chunk {chunk.index} of its state was damaged on the way")
    return arrays


def _buffers(flat: Sequence[np.ndarray], chunk: Chunk) -> list[np.ndarray]:
    return [flat[piece.array][piece.begin : piece.end] for piece in chunk.pieces]


def _compare(donor: str, theirs: Sequence[str], ours: Sequence[str]) -> None:
    if len(theirs) != len(ours):
        raise HostMismatch(f"the state of {donor} has {len(theirs)} arrays, ours {len(ours)}")
    differ = [
        f"array {index}: {their} there, {our} here"
        for index, (their, our) in enumerate(zip(theirs, ours, strict=True))
        if their != our
    ]
    if differ:
        more = f"; and {len(differ) - DIFFERENCES_SHOWN} more" if len(differ) > DIFFERENCES_SHOWN else ""
        raise HostMismatch(f"the state of {donor} is not ours: {'; '.join(differ[:DIFFERENCES_SHOWN])}{more}")
