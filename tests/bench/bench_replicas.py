"""From the loss of a host to the next step of the survivors, and to the full size, of a run of replicas.

Two of three simulated slices of two hosts, all on this machine. *cold*: the third slice is idle. *warm*: it
is held in reserve (``recovery.spares: 1``). *frozen*: the host is stopped, not killed. Goals: survivors step
again within 1 s of a kill and 10 s of a freeze; full size within 8 s cold and 3 s warm.

With ``--picture FILE`` it draws when each host made its steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import ray

from raytpu import JaxTrainer, Recovery, SimulatedCluster, read_events, simulate
from raytpu.record import PhaseTimed
from tests.local_ray.replica_killer import SLICES, trainer
from tests.local_ray.replica_loop import Note, read_notes
from tests.waiting import await_true

GOALS_S = {"survivors": 1.0, "survivors_frozen": 10.0, "full_cold": 8.0, "full_warm": 3.0}
RESERVE_READY_S = 45.0
"""For a slice in reserve to have compiled everything beside a run, on two busy cores."""


@dataclass(frozen=True)
class Loss:
    """What followed the loss of a host."""

    at_s: float
    """By ``time.monotonic``."""
    survivors_s: float
    full_s: float


class Bench:
    def __init__(self, cluster: SimulatedCluster, root: Path, kind: str) -> None:
        self._cluster, self._folder = cluster, root / kind
        recovery = Recovery(spares=1 if kind == "warm" else 0)
        self._trainer: JaxTrainer = trainer(root, kind, steps=10**6, recovery=recovery)
        self._warm = kind == "warm"
        self.losses: list[Loss] = []

    def run(self, rounds: int, lose: Callable[[str, int], None]) -> None:
        """Train, lose a host ``rounds`` times, and note what followed."""
        failures: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(rounds):
                    self.losses.append(self._lose(lose))
            except BaseException as error:
                failures.append(error)
            last = max((note.step for note in self.notes()), default=0)
            unfinished = self._folder / "end.tmp"
            unfinished.write_text(str(last + 500))
            unfinished.rename(self._folder / "end")

        thread = threading.Thread(target=work)
        thread.start()
        self._trainer.fit()
        thread.join()
        if failures:
            raise failures[0]

    def notes(self) -> list[Note]:
        return read_notes(self._folder)

    def _lose(self, lose: Callable[[str, int], None]) -> Loss:
        await_true("both replicas", lambda: len(self._steppers(0)) == 4, 180)
        began = time.monotonic()
        while self._warm and time.monotonic() - began < RESERVE_READY_S:
            time.sleep(0.5)  # what is in reserve is in no record until it is called up
        victim = max(self._steppers(5), key=lambda note: note.host)
        full_before = self._full_sizes()
        at_s, at_time_s = time.monotonic(), time.time()
        name, worker_id = victim.slice, int(victim.host.rsplit("-", 1)[1])
        lose(name, worker_id)
        await_true("the full size", lambda: len(self._full_sizes()) > len(full_before), 180)
        full_s = self._full_sizes()[-1] - at_time_s
        others = [note.time for note in self.notes() if note.slice != name and note.time > at_s]
        self._cluster.lose_host(name, worker_id)  # if it was only frozen
        self._cluster.add_host(name, worker_id)
        return Loss(at_s=at_s, survivors_s=_after_the_gap(others) - at_s, full_s=full_s)

    def _full_sizes(self) -> list[float]:
        """When replicas came to take part."""
        events = read_events(self._trainer.directory)
        return [
            each.time_s
            for each in events
            if isinstance(each.event, PhaseTimed) and each.event.name.endswith("takes part")
        ]

    def _steppers(self, ahead: int) -> list[Note]:
        """The last note of each host that has made the last steps of all."""
        latest = {note.host: note for note in self.notes()}
        newest = max((note.step for note in latest.values()), default=0)
        return [note for note in latest.values() if note.step > max(3, newest - 20 - ahead)]


def _after_the_gap(times: list[float]) -> float:
    """The end of the longest pause among the first steps after a loss: a step may have been under way."""
    times = sorted(times)[:40]
    gaps = [(after - before, after) for before, after in pairwise(times)]
    return max([(0.0, times[0]), *gaps])[1]


def draw(notes: list[Note], losses: list[Loss], path: str) -> None:
    """Each step of each host as a tick, a line for each loss."""
    from matplotlib import pyplot

    hosts = sorted({note.host for note in notes})
    begin = min(note.time for note in notes)
    figure, axes = pyplot.subplots(figsize=(12, 0.5 * len(hosts) + 1.5))
    for row, host in enumerate(hosts):
        times = [note.time - begin for note in notes if note.host == host]
        axes.plot(times, [row] * len(times), "|", markersize=12)
    for loss in losses:
        axes.axvline(loss.at_s - begin, color="red", linewidth=1)
    axes.set_yticks(range(len(hosts)), hosts)
    axes.set_xlabel("seconds; a tick is a committed step, a red line the loss of a host (simulated slices)")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=["cold", "warm", "frozen"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--picture", help="where to put a PNG of the first kind")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"bench": "replicas: loss of a host, 2 of 3 slices of 2 hosts (simulated)"}
    for kind in arguments.kinds:
        with (
            tempfile.TemporaryDirectory() as folder,
            simulate(SLICES.model_copy(update={"count": 3})) as cluster,
        ):
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            bench = Bench(cluster, Path(folder), kind)
            bench.run(arguments.rounds, cluster.freeze_host if kind == "frozen" else cluster.lose_host)
            ray.shutdown()
            if arguments.picture and kind == arguments.kinds[0]:
                draw(bench.notes(), bench.losses, arguments.picture)
        for name in ("survivors", "full"):
            seconds = [getattr(loss, f"{name}_s") for loss in bench.losses]
            result[f"{name}_{kind}_s"] = round(statistics.median(seconds), 2)
            print(f"{kind}: {name} {[round(each, 2) for each in seconds]}", file=sys.stderr)
    result |= {"goals_s": GOALS_S, "rounds": arguments.rounds, "load_1min": round(os.getloadavg()[0], 1)}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
