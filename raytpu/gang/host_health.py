"""Whether hosts are well, asked of their raylets: Ray's own health check, only sooner.

Ray's GCS asks every raylet every 3 s and gives a node up after 5 misses: 13 s after a SIGKILL and 62 s after
a freeze, when measured. The book asks the same question of the hosts that matter, those of held slices and of
slices about to be held: 0.5 ms a host. A killed raylet refuses the connection at once, a frozen one does not
answer. Nothing of raytpu's needs to run on the hosts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import grpc

from raytpu.gang import ray_internals

_METHOD = "/grpc.health.v1.Health/Check"
_REQUEST = b""
"""``HealthCheckRequest`` of the standard protocol, for the server as a whole."""

SILENCE_S = 6.0
"""No answer for this long is a lost host. By feel: raylets on 2 busy cores answered within 2.5 s; a host that
froze should be noticed within 10 s."""

REFUSALS = 2
"""Refused connections in a row that make a lost host: one may be a reset on the way."""


@dataclass(slots=True)
class _Record:
    well_s: float
    refused: int = 0
    well_now: bool = False


ASKED_AT_ONCE = 500
"""Each host costs a socket while it is asked, and a process may have 1,024 files open by default."""


def unwell(raylets: Mapping[str, str], timeout_s: float) -> dict[str, str]:
    """Ask each raylet once: the reason, by node id, of those that do not answer.

    Args:
        raylets: ``ip:port`` by node id.
        timeout_s: for one answer.
    """
    found: dict[str, str] = {}
    nodes = sorted(raylets)
    for first in range(0, len(nodes), ASKED_AT_ONCE):
        asked = {raylets[node]: node for node in nodes[first : first + ASKED_AT_ONCE]}
        health = HostHealth()
        found |= {asked[address]: reason for address, reason in health.ask(asked, timeout_s).items()}
        health.close()
    return found


class HostHealth:
    """Asks raylets and remembers the answers. Not for several threads at once.

    Args:
        silence_s: no answer for this long is a lost host.
    """

    def __init__(self, silence_s: float = SILENCE_S) -> None:
        self._silence_s = silence_s
        self._channels: dict[str, grpc.Channel] = {}
        self._records: dict[str, _Record] = {}

    def ask(self, addresses: Iterable[str], timeout_s: float) -> Mapping[str, str]:
        """Ask each raylet (``ip:port``) once, all at the same time; the reason of each that did not answer.

        Any answer counts, an error as well: a raylet that refuses our credentials is alive.
        """
        addresses = list(addresses)
        calls = {address: self._call(address, timeout_s) for address in addresses}
        failures: dict[str, str] = {}
        for address, call in calls.items():
            error = call.exception()
            now_s = time.monotonic()
            record = self._records.setdefault(address, _Record(well_s=now_s))
            code = error.code() if isinstance(error, grpc.RpcError) else None
            record.well_now = False
            if code is grpc.StatusCode.UNAVAILABLE:
                record.refused += 1
                failures[address] = "its raylet refuses connections"
            elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
                failures[address] = "its raylet does not answer"
            else:
                record.well_s, record.refused, record.well_now = now_s, 0, True
        return failures

    def lost(self, addresses: Iterable[str], timeout_s: float) -> Mapping[str, str]:
        """Like ``ask``, but only those that have failed to answer for so long, or so often, to be lost."""
        failures = self.ask(addresses, timeout_s)
        now_s = time.monotonic()
        found = {}
        for address, reason in failures.items():
            record = self._records[address]
            silent_s = now_s - record.well_s
            if record.refused >= REFUSALS:
                found[address] = reason
            elif silent_s >= self._silence_s:
                found[address] = f"{reason} since {silent_s:.0f} s"
        return found

    def answered(self, address: str) -> bool:
        """Whether this raylet has answered when it was asked last."""
        record = self._records.get(address)
        return record is not None and record.well_now

    def forget(self, keep: Iterable[str]) -> None:
        """Close the channels to all other raylets."""
        kept = set(keep)
        for address in [each for each in self._channels if each not in kept]:
            self._channels.pop(address).close()
            self._records.pop(address, None)

    def close(self) -> None:
        self.forget(())

    def _call(self, address: str, timeout_s: float) -> grpc.Future:
        if address not in self._channels:
            self._channels[address] = ray_internals.channel(address)
        ask = self._channels[address].unary_unary(_METHOD)
        return ask.future(_REQUEST, timeout=timeout_s)
