"""What happened in a soak of leases, and whether it was right: a reference that knows no book."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

HELD_BY_THE_DEAD_S = 10.0
LATE_S = 2.0
"""After its deadline, in which an acquire must have returned, on a busy machine."""

NEWS_S = 3.0
"""For an owner to hear that a slice was taken from it. Meanwhile somebody else may have it."""

IDLE_S = 20.0
"""By feel: longest time for which somebody may wait for slices that nobody has. A restart of the book costs
3 s of calm and 10 s for owners that do not come back; a placement that Ray delays, 8 s."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """An acquire, as it was sent to an owner."""

    key: str
    owner: int
    topology: str
    count: int
    timeout_s: float
    priority: int
    grace_s: float


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The book at a moment."""

    at_s: float
    waiting: tuple[tuple[str, int, int, int], ...]
    """Key, priority, number of arrival and tries of each request, in the order of arrival."""
    held: dict[str, frozenset[str]]
    """Slices by key."""
    quarantined: frozenset[str]


@dataclass
class History:
    """Everything that was done and said."""

    topologies: dict[str, str]
    """Of each slice."""
    asked: dict[str, Asked] = field(default_factory=dict)
    said: list[dict[str, Any]] = field(default_factory=list)
    killed: dict[int, float] = field(default_factory=dict)
    """When each owner was killed."""
    books_hit: list[tuple[float, str]] = field(default_factory=list)
    """When a book was killed or stopped, in words."""
    down: list[tuple[str, float, float]] = field(default_factory=list)
    """Slice, and from when until when a host of it was down."""
    seen: list[Seen] = field(default_factory=list)
    groups: list[tuple[float, frozenset[str]]] = field(default_factory=list)
    """Names of raytpu's placement groups at a moment."""

    def said_of(self, key: str, *events: str) -> list[dict[str, Any]]:
        return [each for each in self.said if each["key"] == key and each["event"] in events]

    def when(self, key: str, *events: str) -> float | None:
        return next((each["at_s"] for each in self.said_of(key, *events)), None)

    def end_of(self, key: str) -> float:
        """When the owner of this key was killed."""
        return self.killed.get(self.asked[key].owner, float("inf"))

    def story(self) -> str:
        """Everything in the order in which it happened, for a person."""
        lines = [(each["at_s"], f"{each['key']} {each['event']} {_rest(each)}") for each in self.said]
        lines += [(at_s, f"o{number} killed") for number, at_s in self.killed.items()]
        lines += [(lost, f"{name} down until {up:.1f}") for name, lost, up in self.down]
        lines += self.books_hit
        return "\n".join(f"{at_s:9.2f}  {text}" for at_s, text in sorted(lines))

    # -- the rules -------------------------------------------------------------------------------------

    def violations(self) -> list[str]:
        return [
            *self._held_twice(),
            *self._partial(),
            *self._late(),
            *self._refused_early(),
            *self._taken_without_cause(),
            *self._held_by_the_dead(),
            *self._overtaken(),
            *self._idle_while_wanted(),
        ]

    def _spans(self) -> Iterator[tuple[str, float, float, str]]:
        """Slice, and from when until when an owner took it for its own."""
        for each in self.said:
            if each["event"] != "held":
                continue
            key = each["key"]
            for name in each["slices"]:
                ends = [self.end_of(key)]
                ends += [said["at_s"] for said in self.said_of(key, "releasing")]
                ends += [said["at_s"] - NEWS_S for said in self.said_of(key, "over")]
                ends += [said["at_s"] - NEWS_S for said in self.said_of(key, "lost") if said["slice"] == name]
                yield name, each["at_s"], min(ends), key

    def _held_twice(self) -> Iterator[str]:
        for _, spans in itertools.groupby(sorted(self._spans()), key=lambda span: span[0]):
            for one, other in itertools.combinations(list(spans), 2):
                if other[1] < one[2] and one[1] < other[2]:
                    yield f"{one[0]} was held by {one[3]} {one[1:3]} and by {other[3]} {other[1:3]}"

    def _partial(self) -> Iterator[str]:
        for each in self.said:
            if each["event"] != "held":
                continue
            asked = self.asked[each["key"]]
            hosts = {"2x2": 1, "2x4": 2}[asked.topology]
            if len(each["slices"]) != asked.count or set(each["slices"].values()) != {hosts}:
                yield f"{asked} was given {each['slices']}"
            for name, state in each["groups"].items():
                if state != "CREATED" and not self._was_down(name, each["at_s"] - 1, each["at_s"] + 1):
                    yield f"{each['key']} was given {name}, whose group is {state}"

    def _was_down(self, name: str, since_s: float, until_s: float) -> bool:
        return any(slice_ == name and lost < until_s and up > since_s for slice_, lost, up in self.down)

    def _late(self) -> Iterator[str]:
        for key, asked in self.asked.items():
            at_s, done = self.when(key, "asked"), self.when(key, "held", "refused")
            if at_s is None:
                continue
            until = at_s + asked.timeout_s + LATE_S
            if done is None and self.end_of(key) > until:
                yield f"{asked} never returned"
            elif done is not None and done > until:
                yield f"{asked} returned after {done - at_s:.1f} s"

    def _refused_early(self) -> Iterator[str]:
        for each in self.said:
            if each["event"] == "refused":
                asked = self.asked[each["key"]]
                waited_s = each["at_s"] - (self.when(each["key"], "asked") or 0)
                if waited_s < asked.timeout_s - 0.1:
                    yield f"{asked} was refused after {waited_s:.1f} s: {each['text']}"

    def _taken_without_cause(self) -> Iterator[str]:
        """A lease ends by its owner, a preemption, or the loss of its last slice; a slice with its host."""
        for each in self.said:
            key, at_s = each["key"], each["at_s"]
            if each["event"] == "lost" and not self._was_down(each["slice"], at_s - 60, at_s):
                yield f"{key} lost {each['slice']}, which was never down: {each['reason']}"
            if each["event"] == "over":
                lost = {said["slice"] for said in self.said_of(key, "lost")}
                held = set(self.said_of(key, "held")[0]["slices"])
                if not self.said_of(key, "noticed") and lost != held:
                    yield f"{key} ended: {each['reason']}"

    def _held_by_the_dead(self) -> Iterator[str]:
        found: dict[str, float] = {}
        for at_s, names in self.groups:
            for name in names:
                _, key, _, slice_name = name.split("/")
                dead_s = at_s - self.end_of(key) - self.asked[key].grace_s
                held_s = self.when(key, "held") or at_s
                lost_s = max(
                    (
                        at_s - lost
                        for where, lost, up in self.down
                        if where == slice_name and held_s < lost < at_s < up
                    ),
                    default=0.0,
                )
                if max(dead_s, lost_s) > HELD_BY_THE_DEAD_S:
                    found[name] = max(dead_s, lost_s)
        return (f"{name} was there {seconds:.1f} s after the death" for name, seconds in found.items())

    def _overtaken(self) -> Iterator[str]:
        """Nobody got a slice that an earlier request, which waited before and after, could have used."""
        for before, after in itertools.pairwise(self.seen):
            stayed = set(before.waiting) & set(after.waiting)
            arrived = {key: (-priority, number) for key, priority, number, _ in before.waiting}
            served = [self.asked[key] for key in after.held.keys() - before.held.keys()]
            highest = max((asked.priority for asked in served), default=0)
            for asked in served:
                place = arrived.get(asked.key, (-asked.priority, float("inf")))
                for other, priority, number, _ in stayed:
                    if priority < highest:
                        continue  # it may have been served, and recalled for the one of higher priority
                    ahead = (-priority, number) < place
                    if ahead and self.asked[other].topology == asked.topology:
                        yield f"at {after.at_s:.1f} {asked.key} overtook {other}"

    def _idle_while_wanted(self) -> Iterator[str]:
        since: dict[str, float] = {}
        for seen in self.seen:
            served = self._could_be_served(seen)
            since = {key: since.get(key, seen.at_s) for key in served}
            for key, from_s in list(since.items()):
                if seen.at_s - from_s > IDLE_S:
                    yield f"from {from_s:.1f} to {seen.at_s:.1f} {key} waited for slices that nobody had"
                    del since[key]

    def _could_be_served(self, seen: Seen) -> set[str]:
        held = frozenset().union(*seen.held.values())
        free = {
            name
            for name in self.topologies.keys() - held - seen.quarantined
            if not self._was_down(name, seen.at_s - 1, seen.at_s)
        }
        served = set()
        for key, *_ in sorted(seen.waiting, key=lambda each: (-each[1], each[2])):
            asked = self.asked[key]
            fitting = sorted(name for name in free if self.topologies[name] == asked.topology)
            if len(fitting) >= asked.count:
                served.add(key)
                fitting = fitting[: asked.count]
            free -= set(fitting)  # taken, or claimed
        return served


def _rest(said: dict[str, Any]) -> str:
    return " ".join(f"{name}={said[name]}" for name in said.keys() - {"event", "key", "at_s"})
