"""Replicas that are killed and replaced, again and again: all have the same state at every step."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from raytpu import Recovery, SimulatedCluster, simulate
from tests.leftover_processes import find_leftovers
from tests.local_ray.replica_loop import Note, digests, read_notes
from tests.local_ray.test_replicas import SLICES, trainer
from tests.waiting import await_true

FULL_S = 90.0
"""For a replacement to take part, cold, on two busy cores."""

STEPS = 1_000_000


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with simulate(SLICES.model_copy(update={"count": 3})) as cluster:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
        ray.shutdown()


class Killer:
    """Kills hosts of a run that goes on in another thread."""

    def __init__(self, cluster: SimulatedCluster, folder: Path, chance: random.Random) -> None:
        self._cluster, self._folder, self._chance = cluster, folder, chance

    def kill(self, kills: int) -> None:
        """Each time that the run is at its full size, kill a host process or a whole host."""
        for number in range(kills):
            victim = self._chance.choice(self._await_full())
            name, worker_id = victim.host.rsplit("-", 1)
            if self._chance.random() < 0.5:
                print(f"kill {number}: the process of {victim.host}", flush=True)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim.pid, signal.SIGKILL)
            else:
                print(f"kill {number}: host {victim.host}", flush=True)
                self._cluster.lose_host(name, int(worker_id))
                self._cluster.add_host(name, int(worker_id))
        self.end_at(max(note.step for note in self._await_full()) + 300)

    def end_at(self, step: int) -> None:
        """Let the run end there; by then every host must have seen it."""
        unfinished = self._folder / "end.tmp"
        unfinished.write_text(str(step))
        unfinished.rename(self._folder / "end")

    def _await_full(self) -> list[Note]:
        """The last notes of four hosts that make steps, of two slices, all later than now."""
        seen = max((note.step for note in read_notes(self._folder)), default=0)
        await_true("both replicas to take part", lambda: len(self._steppers(seen)) == 4, FULL_S)
        return self._steppers(seen)

    def _steppers(self, after: int) -> list[Note]:
        latest = {note.host: note for note in read_notes(self._folder) if note.step > after + 3}
        return list(latest.values())


def run_under_kills(cluster: SimulatedCluster, folder: Path, kills: int, seed: int) -> None:
    print(f"RAYTPU_SOAK_SEED={seed}", flush=True)
    run = trainer(folder, "killed", steps=STEPS, recovery=Recovery(spares=1))
    errors: list[BaseException] = []

    def kill() -> None:
        killer = Killer(cluster, folder / "killed", random.Random(seed))
        try:
            killer.kill(kills)
        except BaseException as error:
            errors.append(error)
            killer.end_at(max((note.step for note in read_notes(folder / "killed")), default=0) + 300)

    thread = threading.Thread(target=kill)
    thread.start()
    run.fit()
    thread.join()
    assert errors == []
    notes = read_notes(folder / "killed")
    assert {len(states) for states in digests(notes).values()} == {1}
    replicas = {note.step: set[str]() for note in notes}
    for note in notes:
        replicas[note.step].add(note.host)
    together = sum(len(hosts) == 4 for hosts in replicas.values())
    print(f"{len(replicas)} steps, {together} of them by both replicas", flush=True)
    assert sorted(replicas) == list(range(1, max(replicas) + 1)), "no step is missing"
    await_true("the processes of the run to be gone", lambda: not _host_processes(), 30)


def _host_processes() -> list[object]:
    return [each for each in find_leftovers() if "ray::ReplicaHost" in " ".join(each.cmdline()[:1])]


@pytest.mark.local_ray
def test_replicas_stay_equal_over_kills(cluster: SimulatedCluster, tmp_path: Path) -> None:
    run_under_kills(cluster, tmp_path, kills=4, seed=3)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_for_long(cluster: SimulatedCluster, tmp_path: Path) -> None:
    seed = int(os.environ.get("RAYTPU_SOAK_SEED", random.randrange(1_000_000)))
    run_under_kills(cluster, tmp_path, kills=int(os.environ.get("RAYTPU_SOAK_ROUNDS", "100")), seed=seed)
