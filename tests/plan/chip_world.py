"""A small cluster down to the single chip, and who may get what of it, found by counting.

The reference for ``test_ledger_machine``: it shares no code with ``plan`` and is slow. Parts of slices are
written out as a table.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

from raytpu.plan import GangPlan, HostState, Inventory, PlannedSlice, SliceState
from raytpu.plan.ledger import Request
from raytpu.spec import Slices


class Kind(NamedTuple):
    """A topology and the hosts that it is made of."""

    topology: str
    chips_per_host: int


PAIR, SINGLE, SQUARE = Kind("2x4", 4), Kind("2x4", 8), Kind("4x4", 4)
HOST, CHIP = Kind("2x2", 4), Kind("1x1", 1)
HOSTS = {PAIR: 2, SINGLE: 1, SQUARE: 4}

CLUSTER: dict[str, tuple[Kind, str]] = {
    "pair-0": (PAIR, "x"),
    "pair-1": (PAIR, "y"),
    "pair-2": (PAIR, "y"),
    "single": (SINGLE, "x"),
    "square": (SQUARE, "y"),
}
"""Kind and zone of each slice."""

PARTS: dict[tuple[Kind, Kind], list[tuple[int, ...]]] = {
    (PAIR, SQUARE): [(0, 2), (1, 3)],
    (HOST, PAIR): [(0,), (1,)],
    (HOST, SQUARE): [(0,), (1,), (2,), (3,)],
    (HOST, SINGLE): [(0,)],
    (CHIP, PAIR): [(0,), (1,)],
    (CHIP, SQUARE): [(0,), (1,), (2,), (3,)],
    (CHIP, SINGLE): [(0,)],
}
"""Worker ids of each part, by the kind of the part and of the slice."""

STOCK = "a job that the book does not know"


@dataclass
class Held:
    """What the reference knows of a lease."""

    request: Request
    slices: set[str]
    state: str = "placing"
    told_until_s: float | None = None
    gone_since_s: float | None = None
    recalled: bool = False


@dataclass
class World:
    """Every chip with its holder."""

    chips: dict[str, list[list[str | None]]] = field(
        default_factory=lambda: {
            name: [[None] * kind.chips_per_host for _ in range(HOSTS[kind])]
            for name, (kind, _) in CLUSTER.items()
        }
    )
    silent: set[tuple[str, int]] = field(default_factory=set)
    """Hosts that do not answer and that Ray still counts as alive."""
    dead: set[tuple[str, int]] = field(default_factory=set)
    quarantined: set[str] = field(default_factory=set)

    # -- what happens ----------------------------------------------------------------------------------

    def give(self, holder: str, plan: GangPlan) -> None:
        """Ray gives every process its chips: on each host the first ones that are free."""
        for planned in plan.slices:
            for process in planned.processes:
                row = self.chips[planned.name][process.worker_id]
                free = [number for number, taken in enumerate(row) if taken is None][: process.chips]
                assert len(free) == process.chips, f"{planned.name} is held twice"
                assert process.chips != 4 or free in ([0, 1, 2, 3], [4, 5, 6, 7]), "chips that are no square"
                for number in free:
                    row[number] = holder

    def take_back(self, holder: str, slices: set[str] | None = None) -> None:
        """What ``holder`` has is free again, or what it has of these slices."""
        for name, rows in self.chips.items():
            if slices is None or name in slices:
                for row in rows:
                    row[:] = [None if taken == holder else taken for taken in row]

    def without(self, holders: Sequence[str]) -> World:
        """The world as it would be if these held nothing."""
        other = deepcopy(self)
        for holder in holders:
            other.take_back(holder)
        return other

    def has_stock(self, name: str) -> bool:
        return any(STOCK in row for row in self.chips[name])

    # -- what Ray shows --------------------------------------------------------------------------------

    def inventory(self, lagging: set[str]) -> Inventory:
        """As Ray shows it; of the lagging slices it shows nothing that leases took."""

        def host(name: str, worker: int) -> HostState:
            row = self.chips[name][worker]
            hidden = name in lagging and STOCK not in row
            used = 0 if hidden else len(row) - row.count(None)
            alive = (name, worker) not in self.dead
            return HostState(
                worker_id=worker,
                node_id=f"{name}/{worker}",
                address=f"10.0.0.{worker}",
                alive=alive,
                chips=len(row) if alive else 0,
                chips_free=len(row) - used if alive else 0,
            )

        return Inventory(
            slices=tuple(
                SliceState(
                    name=name,
                    generation="v6e",
                    topology=kind.topology,
                    chips_per_host=kind.chips_per_host,
                    hosts=tuple(host(name, worker) for worker in range(HOSTS[kind])),
                    zone=zone,
                )
                for name, (kind, zone) in CLUSTER.items()
            )
        )

    # -- who may get what ------------------------------------------------------------------------------

    def sound(self, name: str) -> bool:
        return name not in self.quarantined and all(
            name != where for where, _ in itertools.chain(self.silent, self.dead)
        )

    def usable(self, want: Slices, kind: Kind, kept: set[str]) -> list[str]:
        """Slices of which the request could have one of this kind now."""
        return [
            name
            for name in CLUSTER
            if name not in kept
            and name not in want.exclude
            and self.sound(name)
            and next(self._free(want, kind, name), None) is not None
        ]

    def _free(self, want: Slices, kind: Kind, name: str) -> Iterator[tuple[int, ...]]:
        rows, whole = self.chips[name], CLUSTER[name][0]
        if kind == whole:
            if all(taken is None for row in rows for taken in row):
                yield tuple(range(len(rows)))
        elif want.sub_slice:
            for workers in PARTS.get((kind, whole), ()):
                if all(self._room(rows[worker], kind.chips_per_host) for worker in workers):
                    yield workers

    def _room(self, row: list[str | None], chips: int) -> bool:
        others = {taken: row.count(taken) for taken in row if taken is not None}
        if chips in (1, len(row)):
            return row.count(None) >= chips
        # Four chips of eight are neighbours only when nobody else took another number of them.
        return row.count(None) >= chips and all(
            taken != STOCK and number == chips for taken, number in others.items()
        )

    def offer(self, want: Slices, kept: set[str]) -> tuple[Kind, int] | None:
        """Of which kind, and how many slices, the request gets; ``None`` when it does not fit."""
        for kind in kinds(want):
            number = self._most(want, self.usable(want, kind, kept))
            if number >= want.least:
                return kind, number
        return None

    def _most(self, want: Slices, names: list[str]) -> int:
        zones = [CLUSTER[name][1] if want.same_zone else "" for name in names]
        return min(want.count, max((zones.count(zone) for zone in zones), default=0))

    def check_plan(self, want: Slices, plan: GangPlan, kept: set[str]) -> None:
        """The plan is what the request may have, all of it."""
        offer = self.offer(want, kept)
        assert offer is not None, "granted what cannot be had"
        kind, number = offer
        names = [planned.name for planned in plan.slices]
        assert len(set(names)) == len(names) == number, "neither all nor as many as there are"
        for planned in plan.slices:
            assert planned.name in self.usable(want, kind, kept)
            assert workers_of(planned) in list(self._free(want, kind, planned.name))
            assert all(process.chips == kind.chips_per_host for process in planned.processes)
        assert len({CLUSTER[name][1] for name in names}) == 1 or not want.same_zone

    def awaited(self, want: Slices) -> set[str]:
        """Slices that will do for the request once others have given them back."""
        return {
            name
            for name, (whole, _) in CLUSTER.items()
            if self.sound(name) and name not in want.exclude and could(want, whole)
        }


def kinds(want: Slices) -> list[Kind]:
    return [Kind(shape.topology, shape.chips_per_host) for shape in want.shapes]


def could(want: Slices, whole: Kind) -> bool:
    """Whether a slice of this kind will do, by its kind alone."""
    return any(kind == whole or (want.sub_slice and (kind, whole) in PARTS) for kind in kinds(want))


def never(want: Slices) -> bool:
    """Whether the cluster has too few such slices, whatever becomes free."""
    most = 0
    for kind in kinds(want):
        zones = [
            zone if want.same_zone else ""
            for name, (whole, zone) in CLUSTER.items()
            if name not in want.exclude and (kind == whole or (want.sub_slice and (kind, whole) in PARTS))
        ]
        most = max([most, *(zones.count(zone) for zone in zones)])
    return most < want.least


def workers_of(planned: PlannedSlice) -> tuple[int, ...]:
    return tuple(process.worker_id for process in planned.processes)
