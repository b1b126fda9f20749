"""Slices as replicas: a lost one costs the others a moment, and the result nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import ray
from ray.train import RunConfig

from raytpu import Checkpoint, JaxTrainer, Mesh, Recovery, SimulatedCluster, Slices, read_events, simulate
from raytpu.record import ProgramCompiled
from tests.local_ray.replica_loop import Note, digests, loop, losses, read_notes
from tests.waiting import await_true

pytestmark = pytest.mark.local_ray

SLICES = Slices(generation="v6e", topology="2x4", chips_per_host=4, count=2)
STEPS = 300
SLICE_NAMES = ("slice-0", "slice-1", "slice-2")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SimulatedCluster]:
    """Two slices to train on and one to spare."""
    with simulate(SLICES.model_copy(update={"count": 3})) as cluster:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
        ray.shutdown()


def trainer(folder: Path, name: str, *, steps: int = STEPS, recovery: Recovery | None = None) -> JaxTrainer:
    notes = folder / name
    notes.mkdir()
    return JaxTrainer(
        loop,
        train_loop_config={"steps": steps, "notes": str(notes)},
        slices=SLICES,
        mesh=Mesh(dcn={"replica": 2}, ici={"fsdp": 8}),
        checkpoint=Checkpoint(path=str(folder / "runs"), every_steps=50, keep=2),
        run_config=RunConfig(name=name),
        across_slices="replicas",
        recovery=recovery,
        compile_cache=str(folder / "cache"),
    )


def longest_gap_s(notes: list[Note], host: str) -> float:
    times = sorted(note.time for note in notes if note.host == host)
    return max(after - before for before, after in pairwise(times))


def test_a_lost_host_changes_neither_the_survivors_nor_the_result(cluster: SimulatedCluster, tmp_path: Path):
    """Restarting all for one costs minutes at scale; another result costs trust."""
    undisturbed = trainer(tmp_path, "undisturbed")
    undisturbed.fit()
    reference = read_notes(tmp_path / "undisturbed")
    assert {len(states) for states in digests(reference).values()} == {1}

    run = trainer(tmp_path, "disturbed")
    folder = tmp_path / "disturbed"
    slow = folder / "slow"
    slow.touch()
    victims: list[str] = []

    def kill() -> None:
        try:
            await_true("the run to train", lambda: any(note.step >= 20 for note in read_notes(folder)), 120)
            victims.append(max(note.slice for note in read_notes(folder)))
            cluster.lose_host(victims[0], 1)
            await_true("a replacement", lambda: len({note.slice for note in read_notes(folder)}) == 3, 60)
        finally:
            slow.unlink()

    thread = threading.Thread(target=kill)
    thread.start()
    result = run.fit()
    thread.join()

    notes = read_notes(folder)
    steps = {name: {note.step for note in notes if note.slice == name} for name in SLICE_NAMES}
    lost = victims[0]
    survivor, replacement = sorted(steps.keys() - {lost}, key=lambda name: min(steps[name]))
    assert result.metrics["step"] == STEPS
    assert max(steps[lost]) < STEPS
    assert max(steps[replacement]) == STEPS
    assert min(steps[replacement]) > max(steps[lost])
    assert {len(states) for states in digests(notes).values()} == {1}
    assert digests(notes) == digests(reference)
    assert losses(notes) == losses(reference)
    for host in (f"{survivor}-0", f"{survivor}-1"):
        own = [note for note in notes if note.host == host]
        assert len({note.pid for note in own}) == 1
        assert [note.step for note in own] == list(range(1, STEPS + 1))
        assert longest_gap_s(notes, host) < 5
    compiled = [each.writer for each in read_events(run.directory) if isinstance(each.event, ProgramCompiled)]
    assert compiled.count(f"{survivor}/0") == 3, "first state, gradients, apply"
