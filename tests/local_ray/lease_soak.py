"""A cluster of simulated slices, owners in processes of their own, and everything that can go wrong."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ray
from ray.exceptions import RayActorError

from raytpu import SimulatedCluster
from raytpu.errors import Refused
from raytpu.gang import BookView, open_book
from tests.local_ray.lease_history import Asked, History, Seen
from tests.waiting import await_true

ROOT = Path(__file__).parents[2]
LOOK_S = 0.3


@dataclass(frozen=True)
class Step:
    """One operation of a schedule. Whom it hits is ``pick`` among those that are there by then."""

    wait_s: float
    what: str
    pick: int
    chance: random.Random


def schedule(seed: int, steps: int, weights: dict[str, int], longest_wait_s: float) -> list[Step]:
    """A function of its arguments alone."""
    rng = random.Random(seed)
    names, numbers = list(weights), list(weights.values())
    return [
        Step(
            rng.uniform(0, longest_wait_s),
            rng.choices(names, numbers)[0],
            rng.randrange(1000),
            random.Random(rng.random()),
        )
        for _ in range(steps)
    ]


class Owner:
    """A process that holds leases."""

    def __init__(self, number: int, address: str, history: History) -> None:
        self.number, self._history = number, history
        ear, mouth = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.local_ray.lease_owner", address, str(mouth)],
            stdin=subprocess.PIPE,
            text=True,
            pass_fds=(mouth,),
            cwd=ROOT,
        )
        os.close(mouth)
        self._ear = os.fdopen(ear)
        self.keys: set[str] = set()
        """Held, as far as it has said."""
        self.ready = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._ear:
            said = json.loads(line)
            if said["event"] == "ready":
                self.ready.set()
                continue
            if said["event"] == "held":
                self.keys.add(said["key"])
            elif said["event"] in ("releasing", "over"):
                self.keys.discard(said["key"])
            self._history.said.append(said)
        self._ear.close()

    def tell(self, **command: object) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(command), file=self.process.stdin, flush=True)

    def kill(self) -> None:
        self._history.killed[self.number] = time.monotonic()
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


class Soak:
    """Carries a schedule out, and looks at the cluster all the while."""

    def __init__(self, cluster: SimulatedCluster, owners: int) -> None:
        self._cluster, self._address = cluster, cluster.address
        self.history = History(topologies={each.name: each.topology for each in cluster.slices})
        self._places = [(each.name, host.worker_id) for each in cluster.slices for host in each.hosts]
        self._owners: list[Owner] = []
        self._numbers = iter(range(1_000_000))
        self._down: dict[tuple[str, int], float] = {}
        self._repairs: list[threading.Thread] = []
        self._over = threading.Event()
        self._lookers = [
            threading.Thread(target=self._look, args=(what,), daemon=True)
            for what in (self._see_book, self._see_groups)
        ]
        self._counts: dict[str, int] = {}
        self._began_s = time.monotonic()
        for _ in range(owners):
            self._hire()

    def run(self, steps: list[Step]) -> None:
        for owner in self._owners:
            assert owner.ready.wait(60)
        for thread in self._lookers:
            thread.start()
        for step in steps:
            time.sleep(step.wait_s)
            done = getattr(self, f"_{step.what}")(step)
            self._counts[step.what] = self._counts.get(step.what, 0) + 1
            print(f"{time.monotonic() - self._began_s:6.1f}  {step.what} {done}", flush=True)

    def finish(self) -> None:
        """Everything is given back, and nothing is left."""
        for repair in self._repairs:
            repair.join(120)
        for name in self._quarantined():
            ray.get(open_book().lift.remote(name), timeout=30)
        # Who still waits has its deadline first.
        longest_s = max((asked.timeout_s for asked in self.history.asked.values()), default=0)
        await_true("everybody to be served or refused", lambda: not view().ledger.requests, longest_s + 30)
        await_true("nothing to be held", self._nothing_is_held, 40)
        self._over.set()
        for thread in self._lookers:
            thread.join(30)
        await_true("no placement group to be left", lambda: not group_names(), 10)
        for owner in self._owners:
            owner.kill()
        said = Counter(each["event"] for each in self.history.said)
        print(f"done: {self._counts}; said: {dict(said)}; {len(self.history.seen)} looks", flush=True)

    def _nothing_is_held(self) -> bool:
        for owner in self._owners:
            for key in list(owner.keys):
                owner.tell(do="release", key=key)
        return not view().ledger.leases

    # -- operations ------------------------------------------------------------------------------------

    def _acquire(self, step: Step) -> str:
        owner = self._one(step)
        chance = step.chance
        topology = chance.choice(["2x2", "2x2", "2x4"])
        most = list(self.history.topologies.values()).count(topology)
        asked = Asked(
            key=f"o{owner.number}-{next(self._numbers)}",
            owner=owner.number,
            topology=topology,
            count=min(most, chance.choice([1, 1, 1, 2, 3])),
            timeout_s=chance.choice([1.0, 4.0, 15.0]),
            priority=chance.choice([0, 0, 0, 1, 2]),
            grace_s=chance.choice([0.0, 0.0, 3.0]),
        )
        self.history.asked[asked.key] = asked
        owner.tell(
            do="acquire",
            key=asked.key,
            want={"generation": "v6e", "topology": topology, "chips_per_host": 4, "count": asked.count},
            options={
                "timeout_s": asked.timeout_s,
                "priority": asked.priority,
                "save_s": chance.choice([0.5, 2.0]),
                "orphan_grace_s": asked.grace_s,
            },
            obeys=chance.random() < 0.5,
        )
        return f"{asked.key} {asked.count} × {topology} for {asked.timeout_s} s, priority {asked.priority}"

    def _release(self, step: Step) -> str:
        held = sorted((key, owner) for owner in self._owners for key in owner.keys)
        if not held:
            return "nobody"
        key, owner = min(held, key=lambda each: each[0]) if step.pick % 3 else held[step.pick % len(held)]
        owner.tell(do="release", key=key)
        return key

    def _kill_owner(self, step: Step) -> str:
        owner = self._one(step)
        owner.kill()
        self._owners.remove(owner)
        self._hire()
        return f"o{owner.number}"

    def _kill_book(self, _: Step) -> str:
        return self._signal_book(signal.SIGKILL)

    def _stop_book(self, step: Step) -> str:
        """For longer than the silence that it would take for the death of an owner."""
        seconds = step.chance.uniform(2, 7)
        pid = self._signal_book(signal.SIGSTOP)
        if pid:
            waking = threading.Timer(seconds, wake, (int(pid),))
            waking.start()
            self._repairs.append(waking)
        return f"{pid} for {seconds:.1f} s"

    def _signal_book(self, what: signal.Signals) -> str:
        try:
            pid = ray.get(open_book().pid.remote(), timeout=30)
            os.kill(pid, what)
        except (RayActorError, ProcessLookupError):
            return ""
        self.history.books_hit.append((time.monotonic(), f"{what.name} to book {pid}"))
        return str(pid)

    def _lose_host(self, step: Step) -> str:
        """And a new one comes after a while, of Ray's own time of 13 s or less."""
        up = [place for place in self._places if place not in self._down]
        if len(self._down) >= 2:
            return "enough are lost"
        place = up[step.pick % len(up)]
        self._down[place] = time.monotonic()
        index = len(self.history.down)
        self.history.down.append((place[0], time.monotonic(), float("inf")))
        self._cluster.lose_host(*place)
        repair = threading.Thread(target=self._repair, args=(place, index, step.chance.uniform(2, 12)))
        repair.start()
        self._repairs.append(repair)
        return f"{place[0]}/{place[1]}"

    def _repair(self, place: tuple[str, int], index: int, after_s: float) -> None:
        time.sleep(after_s)
        self._cluster.add_host(*place)
        name, lost_s, _ = self.history.down[index]
        self.history.down[index] = (name, lost_s, time.monotonic())
        del self._down[place]

    def _quarantine(self, step: Step) -> str:
        under = self._quarantined()
        name = (
            under[0] if under else sorted(self.history.topologies)[step.pick % len(self.history.topologies)]
        )
        ask = open_book().lift.remote(name) if under else open_book().quarantine.remote(name, "to see")
        with contextlib.suppress(RayActorError, Refused):
            ray.get(ask, timeout=30)
        return f"{name}: {'lifted' if under else 'put under'}"

    def _quarantined(self) -> list[str]:
        return sorted(each.slice_name for each in view().ledger.quarantines)

    def _one(self, step: Step) -> Owner:
        return self._owners[step.pick % len(self._owners)]

    def _hire(self) -> None:
        self._owners.append(Owner(next(self._numbers), self._address, self.history))

    # -- looking ---------------------------------------------------------------------------------------

    def _look(self, see: Callable[[], None]) -> None:
        while not self._over.is_set():
            see()
            time.sleep(LOOK_S)

    def _see_book(self) -> None:
        book = view()
        self.history.seen.append(
            Seen(
                at_s=time.monotonic(),
                waiting=tuple(
                    (each.owner, each.priority, each.arrived, each.tries) for each in book.ledger.requests
                ),
                held={
                    lease.owner: frozenset(planned.name for planned in lease.slices)
                    for lease in book.ledger.leases
                },
                quarantined=frozenset(each.slice_name for each in book.ledger.quarantines),
            )
        )

    def _see_groups(self) -> None:
        self.history.groups.append((time.monotonic(), frozenset(group_names())))


def wake(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it was killed
        os.kill(pid, signal.SIGCONT)


def view() -> BookView:
    """The book as it is; asked again when it dies meanwhile."""
    while True:
        try:
            return ray.get(open_book().view.remote(), timeout=60)
        except RayActorError:
            continue


def group_names() -> list[str]:
    rows = ray.util.placement_group_table().values()
    return [row["name"] for row in rows if row["name"].startswith("raytpu/") and row["state"] != "REMOVED"]
