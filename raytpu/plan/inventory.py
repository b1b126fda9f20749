"""What a cluster has: an immutable snapshot of slices and hosts."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from raytpu.spec import Slices

SIMULATED_LABEL = "raytpu.dev/simulated"
"""Label of a Ray node whose chips are simulated; its value is ``true``."""

SIMULATED_ZONE = "simulated"
"""Zone of simulated slices without a label: all of a cluster are on one machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outsider:
    """Something that uses chips beside raytpu: a placement group, actor or task of stock Ray."""

    who: str
    """In words, such as ``placement group mine``."""
    since_s: float | None = None
    """When it got the chips, by the cluster's clock; ``None`` when Ray does not tell."""
    fix: str = ""
    """How to get the chips back, in words; empty when nothing but waiting does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """One host of a slice, as it was seen when the snapshot was taken."""

    worker_id: int | None
    """Position of the host in its slice, from 0; ``None`` when its node carries no such label."""
    node_id: str
    address: str
    alive: bool
    chips: int
    """Chips that the host has; 0 when it is dead, because a dead node reports nothing."""
    chips_free: int
    parts: tuple[int, ...] = ()
    """Chips of each part of this host that is known to be held, ascending."""
    crowded: bool = False
    """Ray has no CPU left there for the process that takes the chips."""
    held_by: str | None = None
    """Who holds all chips of this host as a part of the slice, in words; ``None`` when nobody is known to."""
    suspect: str | None = None
    """Why the host is not to be trusted although Ray counts it as alive, in words: it does not answer."""
    outsiders: tuple[Outsider, ...] = ()
    """Who has chips of this host beside raytpu, as far as somebody has looked."""

    @property
    def answers(self) -> bool:
        """Whether Ray counts it as alive and nobody has found it silent."""
        return self.alive and self.suspect is None


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceState:
    """One slice, as it was seen when the snapshot was taken: it may be broken, held or badly labelled."""

    name: str
    generation: str | None
    """raytpu's name, such as ``v6e``; ``None`` when the hosts carry no label that tells."""
    topology: str | None
    """Such as ``2x4``; ``None`` when the hosts carry no label that tells."""
    chips_per_host: int
    hosts: tuple[HostState, ...]
    named: bool = True
    """Whether ``name`` is a label of its hosts; else it was made up, and Ray cannot be asked for it."""
    simulated: bool = False
    held_by: str | None = None
    """Who holds the whole slice, in words for a person; ``None`` when nobody is known to."""
    zone: str | None = None
    """Where the slice stands, such as ``us-east5-b``; ``None`` when its hosts carry no label that tells."""
    quarantined: str | None = None
    """Why nobody gets the slice until the quarantine is lifted, in words; ``None`` when it is under none."""
    kept_for: str | None = None
    """Whose request, earlier in the queue, claims the idle slice, in words."""
    # What every plan asks of every slice, found once, when the snapshot is made.
    sound_hosts: int = field(init=False, repr=False, compare=False)
    """Number of living hosts, when they have the worker ids from 0 on and all of their chips, none is
    suspect, and the slice has a name; else 0."""
    idle: bool = field(init=False, repr=False, compare=False)
    """Whether nobody holds or uses any chip of a living host, and each has a CPU left for a process."""

    def __post_init__(self) -> None:
        alive = [host for host in self.hosts if host.alive]
        worker_ids = {host.worker_id for host in alive}
        numbered = self.named and worker_ids == set(range(len(alive)))
        sound = numbered and all(host.chips == self.chips_per_host and host.suspect is None for host in alive)
        object.__setattr__(self, "sound_hosts", len(alive) if sound else 0)
        object.__setattr__(
            self,
            "idle",
            all(
                host.held_by is None and host.chips_free == host.chips and not host.crowded for host in alive
            ),
        )

    def vacated(self, worker_ids: Container[int | None] | None = None) -> SliceState:
        """The slice as if nobody held or used a part of these hosts, by default of any."""
        return replace(
            self,
            hosts=tuple(
                replace(host, chips_free=host.chips, parts=(), crowded=False, held_by=None)
                if worker_ids is None or host.worker_id in worker_ids
                else host
                for host in self.hosts
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A snapshot of slices.

    Raises:
        ValueError: two slices carry one name: the adapter that built the snapshot did not join them.
    """

    slices: tuple[SliceState, ...]

    def __post_init__(self) -> None:
        names = [state.name for state in self.slices]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1}, key=natural_order)
            raise ValueError(f"an inventory names each slice once; named twice: {', '.join(twice)}")

    def in_order(self) -> list[SliceState]:
        """The slices in natural order of their names."""
        return sorted(self.slices, key=lambda state: natural_order(state.name))

    def slice(self, name: str) -> SliceState | None:
        """The slice of that name."""
        return next((state for state in self.slices if state.name == name), None)

    def with_slice(self, state: SliceState) -> Inventory:
        """The snapshot with ``state`` in the place of the slice of that name, or at the end."""
        return self.with_slices((state,))

    def with_slices(self, states: Iterable[SliceState]) -> Inventory:
        """As ``with_slice`` for several at once: one pass over the snapshot, however many they are."""
        changed = {state.name: state for state in states}
        kept = [changed.pop(state.name, state) for state in self.slices]
        return Inventory(slices=(*kept, *changed.values()))

    def without(self, name: str) -> Inventory:
        """The snapshot without the slice of that name; an unknown one changes nothing."""
        return Inventory(slices=tuple(state for state in self.slices if state.name != name))


_DIGITS = re.compile(r"(\d+)")


# Kept: every plan sorts every name of the cluster.
@lru_cache(maxsize=1 << 16)
def natural_order(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Sort key under which ``slice-2`` comes before ``slice-10``."""
    parts = (part for part in _DIGITS.split(name) if part)
    # Digits and words never meet in a comparison: the first field keeps them apart, numbers first.
    return tuple((False, int(part), part) if part.isdecimal() else (True, 0, part) for part in parts)


def imagined_inventory(want: Slices) -> Inventory:
    """The slices that a simulation of ``want`` brings up: whole, idle, named ``slice-0`` onwards.

    The addresses show the pattern (one loopback address a host); a simulation that runs beside another
    one uses others.
    """
    shape = want.shape
    return Inventory(
        slices=tuple(
            SliceState(
                name=f"slice-{index}",
                generation=shape.generation,
                topology=shape.topology,
                chips_per_host=shape.chips_per_host,
                hosts=tuple(
                    HostState(
                        worker_id=worker_id,
                        node_id=f"imagined-slice-{index}-host{worker_id}",
                        address=_loopback_address(index * shape.hosts + worker_id),
                        alive=True,
                        chips=shape.chips_per_host,
                        chips_free=shape.chips_per_host,
                    )
                    for worker_id in range(shape.hosts)
                ),
                simulated=True,
                zone=SIMULATED_ZONE,
            )
            for index in range(want.count)
        )
    )


def _loopback_address(number: int) -> str:
    # 127.0.0.1 is the head's; 250 a block keeps clear of .0, .1 and .255.
    block, last = divmod(number, 250)
    return f"127.0.{block}.{last + 2}"
