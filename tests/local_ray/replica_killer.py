"""Kills hosts of a run of replicas, one after the other, each time that it is at its full size."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

from ray.train import RunConfig

from raytpu import Checkpoint, JaxTrainer, Mesh, Recovery, Replicas, SimulatedCluster, Slices
from tests.local_ray.replica_loop import Note, loop, read_notes
from tests.waiting import await_true

SLICES = Slices(generation="v6e", topology="2x4", chips_per_host=4, count=2)
HOSTS = 4

FULL_S = 90.0
"""For a replacement to take part, cold, on two busy cores."""


def trainer(
    folder: Path,
    name: str,
    *,
    steps: int,
    recovery: Recovery | None = None,
    replicas: Replicas | None = None,
    save_every: int = 50,
) -> JaxTrainer:
    """A run of ``replica_loop.loop`` on two replicas, whose notes go to ``folder / name``."""
    notes = folder / name
    notes.mkdir(exist_ok=True)
    return JaxTrainer(
        loop,
        train_loop_config={"steps": steps, "notes": str(notes)},
        slices=SLICES,
        mesh=Mesh(dcn={"replica": 2}, ici={"fsdp": 8}),
        checkpoint=Checkpoint(path=str(folder / "runs"), every_steps=save_every, keep=2),
        run_config=RunConfig(name=name),
        across_slices="replicas",
        replicas=replicas,
        recovery=recovery,
        compile_cache=str(folder / "cache"),
    )


class Killer:
    """Works in a thread beside the run."""

    def __init__(
        self, cluster: SimulatedCluster, run: JaxTrainer, folder: Path, chance: random.Random
    ) -> None:
        self._cluster, self.run, self._folder, self._chance = cluster, run, folder, chance
        self.kills: list[float] = []
        """When, by ``time.monotonic``."""
        self.survivors_of_first: Note
        self.error: BaseException | None = None

    def work(self, kills: int) -> None:
        """Kill so often, see the full size once more, and let the run end."""
        try:
            for number in range(kills):
                self._kill(number)
            self._await_full()
        except BaseException as error:  # the thread's boundary: raised again by the test
            self.error = error
        self._end_at(max((note.step for note in read_notes(self._folder)), default=0) + 300)

    def _kill(self, number: int) -> None:
        full = self._await_full()
        victim = self._chance.choice(full)
        if number == 0:
            self.survivors_of_first = next(note for note in full if note.slice != victim.slice)
        worker_id = int(victim.host.rsplit("-", 1)[1])
        self.kills.append(time.monotonic())
        how = self._chance.random()
        if how < 0.45:
            print(f"kill {number}: the process of {victim.host}", flush=True)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)
        elif how < 0.9:
            print(f"kill {number}: host {victim.host}", flush=True)
            self._cluster.lose_host(victim.slice, worker_id)
            self._cluster.add_host(victim.slice, worker_id)
        else:
            print(f"kill {number}: host {victim.host} is frozen for a while", flush=True)
            self._cluster.freeze_host(victim.slice, worker_id)
            self._await_full()  # the others go on, and a replacement joins, while it is silent
            self._cluster.thaw_host(victim.slice, worker_id)

    def _await_full(self) -> list[Note]:
        """The last notes of four hosts, of two slices, that make steps later than now."""
        seen = max((note.step for note in read_notes(self._folder)), default=0)

        def steppers() -> list[Note]:
            latest = {note.host: note for note in read_notes(self._folder) if note.step > seen + 3}
            return list(latest.values())

        await_true("both replicas to take part", lambda: len(steppers()) == HOSTS, FULL_S)
        return steppers()

    def _end_at(self, step: int) -> None:
        """Let the run end there; it is so far ahead that every host will have seen it by then."""
        unfinished = self._folder / "end.tmp"
        unfinished.write_text(str(step))
        unfinished.rename(self._folder / "end")
