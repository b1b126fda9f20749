"""Members of a run that average with each other: real sockets on loopback, threads of one process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import ml_dtypes
import numpy as np

from raytpu.train.replicas.array_layout import specs_of
from raytpu.train.replicas.endpoint import Endpoint
from raytpu.train.replicas.frames import TlsFiles
from raytpu.train.replicas.peer_exchange import PeerExchange, Round

TOKEN = b"t" * 32
DEADLINE_S = 20.0

Arrays = list[np.ndarray]


class Members:
    """Members of one run, each with an endpoint, and a thread to call it from."""

    def __init__(self, names: Sequence[str], tls: TlsFiles | None = None) -> None:
        self.endpoints = {name: Endpoint(name, token=TOKEN, tls=tls) for name in names}
        self.exchanges = {name: PeerExchange(endpoint) for name, endpoint in self.endpoints.items()}
        self.pool = ThreadPoolExecutor(16)

    def round(self, me: str, parts: Sequence[str], epoch: int = 1, step: int = 0, among: str = "") -> Round:
        peers = {name: self.endpoints[name].address for name in (among or "".join(self.endpoints))}
        return Round(epoch=epoch, step=step, me=me, peers=peers, parts=tuple(parts))

    def start(
        self, me: str, deal: str, parts: Sequence[Arrays], *, deadline_s: float = DEADLINE_S, **which: object
    ) -> Future[Arrays]:
        """``deal[p]`` is the member that computes part ``p``."""
        own = {part: parts[part] for part, member in enumerate(deal) if member == me}
        work = self.round(me, deal, **which)  # type: ignore[arg-type]
        like = specs_of(parts[0])
        return self.pool.submit(self.exchanges[me].average, own, work, deadline_s=deadline_s, like=like)

    def average(self, deal: str, parts: Sequence[Arrays], **which: object) -> dict[str, Arrays]:
        among = str(which.get("among", "") or "".join(self.endpoints))
        running = {me: self.start(me, deal, parts, **which) for me in among}  # type: ignore[arg-type]
        return {me: future.result(DEADLINE_S) for me, future in running.items()}

    def close(self) -> None:
        for endpoint in self.endpoints.values():
            endpoint.close()
        self.pool.shutdown()


def arrays_of(seed: int, elements: int = 700_001) -> Arrays:
    """Odd sizes, an empty array, a scalar, and every dtype; over several chunks."""
    random = np.random.default_rng(seed)
    wide = random.standard_normal(elements) * 10.0 ** random.integers(-6, 6, elements)
    return [
        wide.astype(np.float32),
        np.empty((0, 3), np.float32),
        wide[:77].reshape(7, 11).astype(ml_dtypes.bfloat16),
        np.array(wide[0], np.float32),
        wide[: elements // 3].astype(ml_dtypes.bfloat16),
        wide[:777].astype(np.float64),
        np.clip(wide[:333], -100, 100).astype(np.float16),
    ]


def mean_of(parts: Sequence[Arrays]) -> Arrays:
    """What must come out, by plain numpy."""
    means = []
    for same in zip(*parts, strict=True):
        dtype = same[0].dtype
        wide = np.float64 if dtype == np.float64 else np.float32
        total = same[0].astype(wide)
        for each in same[1:]:
            total = total + each.astype(wide)
        means.append((total / wide(len(parts))).astype(dtype))
    return means


def assert_same_bits(got: Arrays, wanted: Arrays) -> None:
    assert [(a.shape, a.dtype) for a in got] == [(a.shape, a.dtype) for a in wanted]
    for one, other in zip(got, wanted, strict=True):
        assert one.tobytes() == other.tobytes()


def open_sockets() -> int:
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return sum(link.startswith("socket:") for link in links)
