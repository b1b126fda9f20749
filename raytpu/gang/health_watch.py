"""A thread that asks the raylets that matter, about once a second, and says what has changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raytpu.gang.host_health import HostHealth

PERIOD_S = 0.5
"""Between two rounds. Two refusals in a row are a loss: a killed raylet is known after about a second."""

ANSWER_S = 1.5
"""For one answer. Several missed ones in a row are silence; see ``host_health.SILENCE_S``."""

ROUND_HOSTS = 500
"""Hosts asked at once. Of more, each round asks the next so many: 10,000 hosts are asked every 10 s or so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsChanged:
    """What a round found."""

    lost: Mapping[str, str]
    """Reason by node id of hosts that were well and are lost."""
    well: frozenset[str]
    """Node ids of hosts that were lost and answer again."""


class HealthWatch:
    """Asks whom ``watch`` named last.

    Args:
        report: called, from the thread of the watch, with what has changed.
    """

    def __init__(self, report: Callable[[HostsChanged], None]) -> None:
        self._report = report
        self._watched: Mapping[str, str] = {}
        self._lost: set[str] = set()
        self._health = HostHealth()
        self._awake = threading.Event()
        threading.Thread(target=self._run, name="book-health", daemon=True).start()

    def watch(self, raylets: Mapping[str, str]) -> None:
        """Ask these from now on: ``ip:port`` by node id."""
        self._watched = raylets
        if raylets:
            self._awake.set()

    def _run(self) -> None:
        next_host = 0
        while True:
            self._awake.wait()
            self._awake.clear()
            watched = self._watched
            nodes = sorted(watched)
            if len(nodes) > ROUND_HOSTS:
                nodes = [nodes[(next_host + index) % len(nodes)] for index in range(ROUND_HOSTS)]
                next_host = (next_host + ROUND_HOSTS) % len(watched)
            self._round({node: watched[node] for node in nodes})
            self._health.forget(watched.values())
            if watched:
                threading.Event().wait(PERIOD_S)
                self._awake.set()

    def _round(self, raylets: Mapping[str, str]) -> None:
        by_address = {address: node for node, address in raylets.items()}
        unwell = self._health.lost(by_address, ANSWER_S)
        lost = {by_address[address]: reason for address, reason in unwell.items()}
        answering = {
            node
            for address, node in by_address.items()
            if node in self._lost and self._health.answered(address)
        }
        new = {node: reason for node, reason in lost.items() if node not in self._lost}
        self._lost = ((self._lost | new.keys()) - answering) & self._watched.keys()
        if new or answering:
            self._report(HostsChanged(lost=new, well=frozenset(answering)))
