"""Which replicas there are, who computes which part of a batch, who gives state to whom. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What all hosts of all members agree on while they make a step."""

    epoch: int
    """Larger in every view that differs in more than ``step``."""
    step: int
    """The step that is to be committed next."""
    members: tuple[str, ...]
    """In the order in which they were admitted."""
    parts: tuple[str, ...]
    """``parts[p]`` is the member that computes part ``p``; empty unless ``running``."""
    donors: Mapping[str, str]
    """For each joiner (a member without state yet) a member that has the state after ``step - 1``."""
    running: bool
    """False: fewer members have the state than are needed; the hosts wait for another view."""

    @property
    def full(self) -> tuple[str, ...]:
        """The members that have the state after ``step - 1``, or will when they have heard of its commit."""
        return tuple(member for member in self.members if member not in self.donors)

    def parts_of(self, member: str) -> tuple[int, ...]:
        """The parts that ``member`` computes, in order; none for a joiner."""
        return tuple(part for part, owner in enumerate(self.parts) if owner == member)


def next_view(
    before: View, *, members: tuple[str, ...], full: Set[str], step: int, parts: int, least: int
) -> View:
    """The view of these members; its epoch is one higher if anything but the step differs from ``before``.

    Args:
        before: what is kept where possible: parts of their owners, donors of their joiners.
        members: in the order in which they were admitted.
        full: those of ``members`` that have the state after ``step - 1``; at least one.
        step: the step to be committed next.
        parts: number of parts of a batch.
        least: number of members with state without which nothing runs.
    """
    in_order = [member for member in members if member in full]
    running = len(in_order) >= least
    view = View(
        epoch=before.epoch,
        step=step,
        members=members,
        parts=deal(parts, in_order, before.parts) if running else (),
        donors=choose_donors([each for each in members if each not in full], in_order, before.donors),
        running=running,
    )
    same = replace(view, step=before.step) == before
    return view if same else replace(view, epoch=before.epoch + 1)


def deal(count: int, members: Sequence[str], before: Sequence[str] = ()) -> tuple[str, ...]:
    """The owner of each of ``count`` parts: spread evenly, and as few as possible moved since ``before``.

    A part without an owner goes to the member with the fewest parts, the first of these in order. Then the
    member with the most, the last of these, gives its last part to the one with the fewest until the numbers
    differ by one at most.

    Args:
        count: number of parts.
        members: at least one.
        before: owners of the parts so far; empty when nobody has any.
    """
    kept = [owner if owner in members else None for owner in before] or [None] * count
    loads = {member: kept.count(member) for member in members}
    dealt: list[str] = []
    for owner in kept:
        if owner is None:
            owner = min(members, key=loads.__getitem__)
            loads[owner] += 1
        dealt.append(owner)
    while True:
        fewest = min(members, key=loads.__getitem__)
        most = max(reversed(members), key=loads.__getitem__)
        if loads[most] - loads[fewest] <= 1:
            return tuple(dealt)
        dealt[max(part for part, owner in enumerate(dealt) if owner == most)] = fewest
        loads[most] -= 1
        loads[fewest] += 1


def choose_donors(joiners: Sequence[str], full: Sequence[str], before: Mapping[str, str]) -> dict[str, str]:
    """For each joiner the donor it had, if that still has the state; else the one with the fewest joiners."""
    donors = {joiner: before[joiner] for joiner in joiners if before.get(joiner) in full}
    for joiner in joiners:
        if joiner not in donors:
            served = list(donors.values())
            donors[joiner] = min(full, key=served.count)
    return donors
