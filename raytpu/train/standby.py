"""Processes that stand by on the hosts of a run: the next attempt need not start Python and import JAX."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnschedulableError, RayActorError

from raytpu.gang import HeldSlice
from raytpu.gang.release import RELEASE_S, within_s

ANSWER_S = 1.0
"""For a standby to say that it is there; its imports run beside. A busy one is not worth waiting for."""

LEAST_CHIPS = 3
"""On hosts of one or two chips Ray takes the host's own bounds for those of an earlier, smaller process, and
removes them from one that it gives no chips (``ray/_private/accelerators/tpu.py``)."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Place:
    """A host by name and node: the same name may come back as another machine."""

    host: str
    node_id: str


class Standbys:
    """One idle process a host, with what an attempt imports. Not for several threads at once.

    Args:
        actor_class: the undecorated class of host processes; it has ``stand_by`` and ``ping``.
        entrypoint: the train function, or ``None`` when it travels whole.
        with_orbax: whether the run saves.
        python_path: folders where modules are looked for too.
    """

    def __init__(
        self, actor_class: type, *, entrypoint: str | None, with_orbax: bool, python_path: tuple[str, ...]
    ) -> None:
        self._class = ray.remote(actor_class)
        self._arguments = (entrypoint, with_orbax, python_path)
        self._actors: dict[_Place, ActorHandle] = {}

    def cover(self, slices: Sequence[HeldSlice]) -> None:
        """Start a process on each host that has none. Does not wait.

        Parts of slices are left out: Ray shows their chips only to a process that it gave them to.
        """
        for held in slices:
            if held.planned.whole and held.shape.chips_per_host >= LEAST_CHIPS:
                for host in held.hosts:
                    place = _Place(host.name, host.node_id)
                    if place not in self._actors:
                        actor = self._class.options(**held.idle_options(host)).remote(host.name)
                        actor.stand_by.remote(*self._arguments)
                        self._actors[place] = actor

    def take(self, gang: Sequence[HeldSlice], keep: Sequence[HeldSlice]) -> dict[str, ActorHandle]:
        """The processes on the hosts of ``gang`` that answer, by name of the host; they are the caller's now.

        Those on ``keep`` go on standing by. All others are ended: their slices are lost.
        """
        wanted, kept = _places(gang), _places(keep)
        here = {place: actor for place, actor in self._actors.items() if place in wanted}
        _kill([actor for place, actor in self._actors.items() if place not in wanted | kept])
        self._actors = {place: actor for place, actor in self._actors.items() if place in kept}
        answers = {actor.ping.remote(): place for place, actor in here.items()}
        done, late = (
            ray.wait(list(answers), num_returns=len(answers), timeout=ANSWER_S) if answers else ([], [])
        )
        dead = {answers[reference] for reference in late}
        for reference in done:
            try:
                ray.get(reference)
            except (RayActorError, ActorUnschedulableError) as error:  # gone, or its slice was before it came
                _log.info("the standby process of %s is gone: %s", answers[reference].host, error)
                dead.add(answers[reference])
        _kill([here[place] for place in dead])
        return {place.host: actor for place, actor in here.items() if place not in dead}

    def close(self) -> None:
        """End all of them."""
        _kill(list(self._actors.values()))
        self._actors = {}


def _places(slices: Iterable[HeldSlice]) -> set[_Place]:
    return {_Place(host.name, host.node_id) for held in slices for host in held.hosts}


def _kill(actors: Sequence[ActorHandle]) -> None:
    if actors:
        within_s(RELEASE_S, lambda: [ray.kill(actor) for actor in actors])
