"""Slices as replicas: a lost one costs the others a moment, and the result nothing."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import ray

from raytpu import Recovery, Replicas, SimulatedCluster, read_events, simulate
from raytpu.record import ProgramCompiled
from tests.leftover_processes import find_leftovers
from tests.local_ray.replica_killer import SLICES, Killer, trainer
from tests.local_ray.replica_loop import Note, digests, losses, read_notes
from tests.waiting import await_true

REFERENCE_STEPS = 200
OUTER_REFERENCE_STEPS = 500


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    """Two slices to train on and one to spare."""
    with simulate(SLICES.model_copy(update={"count": 3})) as cluster:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
        ray.shutdown()


def under_kills(cluster: SimulatedCluster, folder: Path, kills: int, seed: int) -> Killer:
    """A run whose hosts are killed and replaced; its killer, which knows what it did."""
    print(f"RAYTPU_SOAK_SEED={seed}", flush=True)
    run = trainer(folder, "killed", steps=1_000_000, recovery=Recovery(spares=1))
    killer = Killer(cluster, run, folder / "killed", random.Random(seed))
    thread = threading.Thread(target=killer.work, args=(kills,))
    thread.start()
    result = run.fit()
    thread.join()
    if killer.error is not None:
        raise killer.error
    assert result.error is None
    notes = read_notes(folder / "killed")
    assert {len(states) for states in digests(notes).values()} == {1}, "replicas differ"
    assert sorted({note.step for note in notes}) == list(range(1, max(note.step for note in notes) + 1))
    await_true("the processes of the run to be gone", lambda: not _host_processes(), 30)
    return killer


@pytest.mark.local_ray
def test_killed_and_replaced_replicas_change_neither_survivors_nor_result(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    """Restarting all for one costs minutes at scale; another result costs trust."""
    trainer(tmp_path, "undisturbed", steps=REFERENCE_STEPS).fit()
    reference = read_notes(tmp_path / "undisturbed")
    assert {len(states) for states in digests(reference).values()} == {1}

    killer = under_kills(cluster, tmp_path, kills=5, seed=3)

    notes = [note for note in read_notes(tmp_path / "killed") if note.step <= REFERENCE_STEPS]
    assert digests(notes) == digests(reference)
    assert losses(notes) == losses(reference)
    first_loss, survivor = killer.kills[0], killer.survivors_of_first
    own = [note for note in read_notes(tmp_path / "killed") if note.host == survivor.host]
    around = [note for note in own if note.pid == survivor.pid]
    assert min(note.time for note in around) < first_loss < max(note.time for note in around)
    assert _longest_gap_s(around, first_loss) < 5
    compiled = [each for each in read_events(killer.run.directory) if isinstance(each.event, ProgramCompiled)]
    mine = [each for each in compiled if each.writer == survivor.host_name]
    assert len(mine) == 3 * len({note.pid for note in own}), "first state, gradients, apply: once a process"


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_a_loss_between_two_averages_changes_nothing_where_each_is_saved(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    """The survivor makes the lost part's steps again, from a state that both had."""
    every = Replicas(every_steps=10, outer_momentum=0.6)
    trainer(tmp_path, "undisturbed", steps=OUTER_REFERENCE_STEPS, replicas=every, save_every=10).fit()
    for steps in (50, OUTER_REFERENCE_STEPS):
        trainer(tmp_path, "stopped", steps=steps, replicas=every, save_every=10).fit()

    run = trainer(tmp_path, "killed", steps=1_000_000, replicas=every, save_every=10)
    killer = Killer(cluster, run, tmp_path / "killed", random.Random(3))
    thread = threading.Thread(target=killer.work, args=(2,))
    thread.start()
    assert run.fit().error is None
    thread.join()
    if killer.error is not None:
        raise killer.error

    reference = at_outer_steps(tmp_path / "undisturbed")
    assert {len(states) for states in reference.values()} == {1}
    assert at_outer_steps(tmp_path / "stopped") == reference
    assert at_outer_steps(tmp_path / "killed") == reference
    last = [note.time for note in read_notes(tmp_path / "killed") if note.step == OUTER_REFERENCE_STEPS]
    assert killer.kills[0] < min(last), "the first loss came too late to be compared"


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_for_long(cluster: SimulatedCluster, tmp_path: Path) -> None:
    seed = int(os.environ.get("RAYTPU_SOAK_SEED", random.randrange(1_000_000)))
    under_kills(cluster, tmp_path, int(os.environ.get("RAYTPU_SOAK_ROUNDS", "100")), seed)


def at_outer_steps(folder: Path) -> dict[tuple[int, str], set[str]]:
    """States after steps 10, 20 and so on."""
    last = OUTER_REFERENCE_STEPS
    return digests([note for note in read_notes(folder) if note.step % 10 == 0 and note.step <= last])


def _longest_gap_s(notes: list[Note], around_s: float) -> float:
    times = sorted(note.time for note in notes if abs(note.time - around_s) < 30)
    return max(after - before for before, after in pairwise(times))


def _host_processes() -> list[object]:
    return [each for each in find_leftovers() if "ray::ReplicaHost" in " ".join(each.cmdline()[:1])]
