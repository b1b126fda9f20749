"""Which slices of a snapshot a request gets, and which part of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from raytpu.errors import SpecError
from raytpu.plan.inventory import HostState, Inventory, SliceState, natural_order
from raytpu.spec import Slices
from raytpu.topology import SliceShape, SubSlice, slice_shape, sub_slices


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A slice that can be had now, or a part of one."""

    state: SliceState
    shape: SliceShape
    """Of what can be had."""
    of: SliceShape
    """Of the slice."""
    part: SubSlice | None
    """``None`` for the whole slice."""

    @property
    def worker_ids(self) -> tuple[int, ...]:
        """The hosts, in the order of their position."""
        return tuple(range(self.of.hosts)) if self.part is None else self.part.worker_ids

    @property
    def preference(self) -> tuple[int, int]:
        """Sort key: the whole slice of that shape first, else a part of what is divided already, else a part
        of the smallest slice."""
        return (0, 0) if self.part is None else (2 if self.state.idle else 1, self.of.chips)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A request, and what of the snapshot decides about every slice. Made by ``wish``."""

    want: Slices
    shapes: tuple[SliceShape, ...]
    excluded: frozenset[str]
    real_slices_exist: bool

    def bars(self, state: SliceState) -> str | None:
        """Why the request can never use a slice, whatever its shape, in words."""
        if state.simulated and self.real_slices_exist:
            return "simulated, in a cluster with real slices"
        if state.name in self.excluded:
            return "excluded by this request"
        return None

    def fits(self, state: SliceState, shape: SliceShape) -> bool:
        """Whether a slice is, or has a part, of this shape: by its labels alone."""
        if state.topology == shape.topology and state.chips_per_host == shape.chips_per_host:
            return state.generation == shape.generation
        if not self.want.sub_slice:
            return False
        own = own_shape(state)
        return own is not None and bool(sub_slices(shape, own))

    def candidate(self, state: SliceState, shape: SliceShape) -> Candidate | None:
        """What of a slice can be had now in this shape."""
        if state.held_by is not None or state.kept_for is not None or state.quarantined is not None:
            return None
        if state.name in self.excluded or (state.simulated and self.real_slices_exist):
            return None
        if state.topology == shape.topology:
            whole = self.fits(state, shape) and state.idle and state.sound_hosts == shape.hosts
            return Candidate(state=state, shape=shape, of=shape, part=None) if whole else None
        if not self.want.sub_slice or (own := own_shape(state)) is None:
            return None
        # Not of a broken slice: it is repaired or replaced whole, under whoever has the rest of it.
        if state.sound_hosts != own.hosts or not (parts := sub_slices(shape, own)):
            return None
        part = _free_part(state, parts)
        return None if part is None else Candidate(state=state, shape=shape, of=own, part=part)

    def zone_missing(self, state: SliceState) -> bool:
        """Whether the slice cannot be joined with others because nobody knows where it stands."""
        return self.want.same_zone and self.want.least > 1 and state.zone is None

    def claims(self, state: SliceState) -> bool:
        """Whether nobody who comes later may have a part of this slice before the request is served: it can
        be had now, or when those who have parts of it have left."""
        if state.held_by is not None or state.kept_for is not None or self.zone_missing(state):
            return False
        left = state if state.idle else state.vacated()
        return any(self.candidate(left, shape) is not None for shape in self.shapes)


def wish(want: Slices, inventory: Inventory, exclude: frozenset[str] = frozenset()) -> Wish:
    """The request against this snapshot."""
    return Wish(
        want=want,
        shapes=want.shapes,
        excluded=exclude.union(want.exclude),
        real_slices_exist=any(not state.simulated for state in inventory.slices),
    )


def choose(wished: Wish, in_order: list[SliceState]) -> list[Candidate]:
    """The slices that the request gets; fewer than will do when it does not fit: the most that could be had.

    The first shape that is there in at least ``least`` slices, and of it as many as there are, up to
    ``count``. Several candidates are taken by ``Candidate.preference``, then in the order of names.

    Args:
        in_order: the slices of the snapshot in the natural order of their names, which makes the choice a
            function of the snapshot.
    """
    most: list[Candidate] = []
    for shape in wished.shapes:
        found = (candidate for state in in_order if (candidate := wished.candidate(state, shape)) is not None)
        chosen = _best_of(wished.want, found)
        if len(chosen) >= wished.want.least:
            return chosen
        most = max(most, chosen, key=len)
    return most


def _best_of(want: Slices, found: Iterator[Candidate]) -> list[Candidate]:
    """The candidates that go together best, at most ``count``, in the order of their names; possibly fewer
    than will do."""
    if not want.sub_slice and not want.same_zone:  # all alike: the first ones, without a look at the rest
        return [candidate for candidate, _ in zip(found, range(want.count), strict=False)]
    ranked = sorted(found, key=lambda candidate: candidate.preference)
    if want.same_zone:
        ranked = max(_by_zone(ranked).values(), key=lambda zone: min(len(zone), want.count), default=[])
    return sorted(ranked[: want.count], key=lambda candidate: natural_order(candidate.state.name))


def _by_zone(candidates: list[Candidate]) -> dict[str | None, list[Candidate]]:
    """Candidates by zone, in the order of the first of each. A slice without a label is alone in its zone."""
    zones: dict[str | None, list[Candidate]] = {}
    for candidate in candidates:
        zone = candidate.state.zone
        zones.setdefault(f"? {candidate.state.name}" if zone is None else zone, []).append(candidate)
    return zones


def own_shape(state: SliceState) -> SliceShape | None:
    """The shape that a slice is by its labels; ``None`` when they are missing or fit no shape that exists."""
    if state.generation is None or state.topology is None:
        return None
    return _shape(state.generation, state.topology, state.chips_per_host)


@cache
def _shape(generation: str, topology: str, chips_per_host: int) -> SliceShape | None:
    try:
        return slice_shape(generation, topology, chips_per_host)
    except SpecError:
        return None


def _free_part(state: SliceState, parts: tuple[SubSlice, ...]) -> SubSlice | None:
    """The first part that nobody holds or uses; of parts within a host, one on the fullest host with room."""
    if state.idle:
        return parts[0]
    by_worker = {host.worker_id: host for host in state.hosts if host.alive}
    chips = parts[0].shape.chips_per_host
    if not parts[0].within_a_host:
        return next(
            (part for part in parts if all(_room(by_worker[worker], chips) for worker in part.worker_ids)),
            None,
        )
    open_hosts = [part for part in parts if _room(by_worker[part.worker_ids[0]], chips)]
    return min(open_hosts, key=lambda part: by_worker[part.worker_ids[0]].chips_free, default=None)


def _room(host: HostState, chips: int) -> bool:
    """Whether so many free chips of the host are neighbours.

    Any chip is one; several are when nothing is on the host but parts of the same size: others may have left
    gaps, and a job that the book does not know has chips that it does not know.
    """
    if host.held_by is not None or host.crowded or host.chips_free < chips:
        return False
    known = host.chips_free + sum(host.parts) == host.chips
    return chips == 1 or (known and all(part == chips for part in host.parts))
