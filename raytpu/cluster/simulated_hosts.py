"""The keeper's table of slices and hosts. Nothing here acts; it knows who is where and in what state."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from raytpu.cluster.control_channel import Channel
from raytpu.cluster.simulation_plan import SlicePlan
from raytpu.errors import Refused, WrongRequest

STARTING, UP, LOST, FAILED = "starting", "up", "lost", "failed"


@dataclass(slots=True)
class SimulatedNode:
    """One host, or the head. A replacement is a new object."""

    label: str
    address: str = ""
    state: str = STARTING
    frozen: bool = False
    pid: int | None = None
    """Of the host process; also the id of its session."""
    channel: Channel | None = None
    marker: str = ""
    node_id: str | None = None
    reason: str | None = None
    """Why it is lost or has failed."""
    ended: bool = False
    """The host process was waited for: its pid may be anyone's by now."""
    started_s: float | None = None
    up_s: float | None = None
    preempted_at_s: float | None = None

    @property
    def alive(self) -> bool:
        return self.state in (STARTING, UP)

    def document(self) -> dict[str, Any]:
        return {
            "host": self.label,
            "ip": self.address,
            "node_id": self.node_id,
            "pid": self.pid,
            "state": "frozen" if self.frozen and self.alive else self.state,
            "alive": self.alive,
            "reason": self.reason,
            "seconds_to_up": None
            if self.up_s is None or self.started_s is None
            else self.up_s - self.started_s,
            "preempted_at_s": self.preempted_at_s,
        }


class HostTable:
    """Slices by name, each with its hosts in worker order."""

    def __init__(self) -> None:
        self._slices: dict[str, tuple[SlicePlan, list[SimulatedNode]]] = {}

    def add_slice(self, wanted: SlicePlan) -> str:
        """Enter a slice, under the next free ``slice-<n>`` when it has no name; returns the name.

        Raises:
            Refused: the name is taken.
        """
        name = wanted.name or self._next_name()
        if name in self._slices:
            raise Refused(f"there is a slice {name!r} already")
        nodes = [SimulatedNode(label=f"{name}/{worker_id}") for worker_id in range(wanted.hosts)]
        self._slices[name] = (replace(wanted, name=name), nodes)
        return name

    def nodes(self) -> Iterator[SimulatedNode]:
        for _, nodes in self._slices.values():
            yield from nodes

    def nodes_of(self, name: str) -> list[SimulatedNode]:
        return self._slices[name][1]

    def place(self, node: SimulatedNode) -> tuple[SlicePlan, int]:
        """The slice of a host and its worker id there."""
        name, worker_id = node.label.rsplit("/", 1)
        return self._slices[name][0], int(worker_id)

    def find(self, name: str, worker_id: int) -> SimulatedNode:
        """Raises ``WrongRequest`` when there is no such host."""
        if name not in self._slices:
            raise WrongRequest(f"no slice {name!r}; there are: {', '.join(self._slices)}")
        nodes = self._slices[name][1]
        if not 0 <= worker_id < len(nodes):
            raise WrongRequest(f"no host {worker_id} in {name}: its hosts are 0 to {len(nodes) - 1}")
        return nodes[worker_id]

    def find_up(self, name: str, worker_id: int) -> SimulatedNode:
        """Raises ``WrongRequest`` when there is no such host, ``Refused`` when it is not up."""
        node = self.find(name, worker_id)
        if node.state != UP:
            why = f" ({node.reason})" if node.reason else ""
            raise Refused(f"{node.label} is {node.state}{why}, not up")
        return node

    def replace(self, node: SimulatedNode) -> SimulatedNode:
        """A fresh host in the place of ``node``."""
        name, worker_id = node.label.rsplit("/", 1)
        fresh = SimulatedNode(label=node.label)
        self._slices[name][1][int(worker_id)] = fresh
        return fresh

    def document(self) -> list[dict[str, Any]]:
        return [
            {
                "name": of.name,
                "generation": of.generation,
                "topology": of.topology,
                "chips_per_host": of.chips_per_host,
                "hosts": [node.document() for node in nodes],
            }
            for of, nodes in self._slices.values()
        ]

    def _next_name(self) -> str:
        taken = [int(match[1]) for name in self._slices if (match := re.fullmatch(r"slice-(\d+)", name))]
        return f"slice-{max(taken, default=-1) + 1}"
