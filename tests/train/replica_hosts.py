"""Replicas without Ray or JAX: hosts are threads that make steps on numbers, over real sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from raytpu.errors import RaytpuError
from raytpu.plan import Patience, Stuck, plan_gang
from raytpu.spec import Deadlines, Replicas
from raytpu.train.job import ReplicaPlace
from raytpu.train.replicas.array_layout import ArraySpec
from raytpu.train.replicas.coordinator import Coordinator
from raytpu.train.replicas.session import ReplicaSession
from tests.plan.ledgers import inventory
from tests.plan.ledgers import request as request_for
from tests.waiting import await_true

HOSTS, PARTS, WIDTH = 2, 2, 5
LIKE = [ArraySpec((WIDTH,), np.dtype(np.float32))]


def contribution(step: int, part: int, position: int) -> np.ndarray:
    return np.random.default_rng((step, part, position)).normal(size=WIDTH).astype(np.float32)


def state_after(step: int, position: int) -> np.ndarray:
    """What every host at this position must have, whoever lived when."""
    state = np.zeros(WIDTH, np.float32)
    for number in range(1, step + 1):
        parts = [contribution(number, part, position) for part in range(PARTS)]
        state = state + (parts[0] + parts[1]) / np.float32(PARTS)
    return state


@dataclass
class Host:
    """One host in a thread: it makes steps as a train loop does."""

    session: ReplicaSession
    position: int
    joining: bool
    steps: int
    before_step: Callable[[int], object] = id
    state: np.ndarray = field(default_factory=lambda: np.zeros(WIDTH, np.float32))
    done: int = 0
    saved: bool = False
    error: BaseException | None = None

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        try:
            self._train()
        except RaytpuError as error:
            self.error = error

    def _train(self) -> None:
        session = self.session
        if self.joining:
            self.done, [self.state] = session.join(LIKE)
        else:
            session.begin(0, {})
        self._hold()
        while self.done < self.steps:
            step = self.done + 1

            def compute(part: int, step: int = step) -> list[np.ndarray]:
                self.before_step(step)
                return [contribution(step, part, self.position)]

            [average] = session.commit(step, compute, LIKE)
            with session.state_changed:
                self.state, self.done = self.state + average, step
            self._hold()
        session.finish(self._save)

    def _hold(self) -> None:
        with self.session.state_changed:
            self.session.applied(self.done, lambda: [self.state.copy()])

    def _save(self) -> None:
        self.saved = True


class World:
    """A coordinator, and members of two hosts each."""

    def __init__(
        self,
        *founders: str,
        steps: int = 30,
        pause_s: float = 1800.0,
        host: Callable[..., Host] = Host,
        **settings: Any,
    ) -> None:
        self.steps, self.settings, self._host = steps, Replicas(**settings), host
        self.lost: dict[str, str] = {}
        self.admitted: list[str] = []
        self.stuck: list[Stuck] = []
        self.hosts: dict[str, list[Host]] = {}
        self.threads: list[threading.Thread] = []
        self.coordinator = Coordinator(
            address="127.0.0.1",
            founders=founders,
            hosts=HOSTS,
            parts=PARTS,
            settings=self.settings,
            patience=replace(
                Patience.of(Deadlines(pause_s=pause_s)),
                step_least_s=self.settings.stuck_s,
                silence_s=self.settings.silence_s,
            ),
            lost=lambda member, reason: self.lost.setdefault(member, reason),
            admitted=self.admitted.append,
            stuck=self.stuck.append,
        )

    def add(self, member: str, *, joining: bool = False, before_step: Any = None) -> list[Host]:
        place = ReplicaPlace(
            member=member,
            joining=joining,
            first=False,
            parts=PARTS,
            coordinator=self.coordinator.address,
            settings=self.settings,
        )
        processes = plan_gang(request_for("run").want, inventory(1)).processes
        hosts = []
        for position in range(HOSTS):
            assignment = processes[position]
            session = ReplicaSession(place, _on_loopback(assignment), Deadlines())
            host = self._host(session, position, joining, self.steps)
            if before_step is not None:
                host.before_step = before_step
            hosts.append(host)
        self.hosts[member] = hosts
        self.threads += [host.start() for host in hosts]
        return hosts

    def kill(self, member: str) -> None:
        for host in self.hosts[member]:
            host.session.close()

    def join(self, *members: str) -> None:
        for member in members:
            await_true(f"{member} to finish", lambda member=member: self._ended(member), 20)

    def _ended(self, member: str) -> bool:
        hosts = self.hosts[member]
        errors = [host.error for host in hosts if host.error is not None]
        if errors:
            raise errors[0]
        return all(host.done == self.steps for host in hosts)

    def end_soon(self, members: Sequence[str]) -> None:
        """Let these end a few steps from now, all at the same one."""
        hosts = [host for member in members for host in self.hosts[member]]
        self.steps = (max(host.done for host in hosts) + 100) // 20 * 20
        for host in hosts:
            host.steps = self.steps

    def close(self) -> None:
        for member in self.hosts:
            self.kill(member)
        self.coordinator.close()
        for thread in self.threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in self.threads)


def _on_loopback(assignment: Any) -> Any:
    return replace(assignment, address="127.0.0.1")


def assert_exact(world: World, *members: str) -> None:
    """Every host of these has the state that it must have after the last step."""
    for member in members:
        for host in world.hosts[member]:
            np.testing.assert_array_equal(host.state, state_after(world.steps, host.position))
