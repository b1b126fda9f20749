"""Slices that go away with a notice: what is done in time costs no step. Real SIGTERM, real drains."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.train import Result, RunConfig

from raytpu import (
    Checkpoint,
    JaxTrainer,
    Mesh,
    Recovery,
    RunDirectory,
    SimulatedCluster,
    hold,
    read_events,
    simulate,
)
from raytpu.errors import RunStopped
from raytpu.gang import ray_internals
from raytpu.record import (
    AttemptEnded,
    AttemptStarted,
    CheckpointRestored,
    HostReady,
    PreemptionNoticed,
    ReplicaLost,
    StepFinished,
    render_summary,
    request_stop,
    summarise,
)
from tests.local_ray import replica_loop
from tests.local_ray.replica_killer import SLICES
from tests.local_ray.replica_loop import digests, read_notes
from tests.local_ray.test_lockstep_recovery import loop
from tests.waiting import await_true

NOTICE_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[SimulatedCluster]:
    """Three slices of two hosts, one more than a run takes."""
    with simulate(SLICES.model_copy(update={"count": 3})) as cluster:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
        ray.shutdown()


def whole(cluster: SimulatedCluster) -> SimulatedCluster:
    """The cluster with every host up, whatever a test before has cost it."""
    for each in cluster.slices:
        for host in each.hosts:
            if not host.alive:
                cluster.add_host(host.slice_name, host.worker_id)
    return cluster


def lockstep(folder: Path, name: str, **config: Any) -> JaxTrainer:
    """A run that saves only when it is told to."""
    return JaxTrainer(
        loop,
        train_loop_config=config,
        slices=SLICES,
        mesh=Mesh(dcn={"replica": 2}, ici={"fsdp": 8}),
        checkpoint=Checkpoint(path=str(folder), every_steps=10_000),
        run_config=RunConfig(name=name),
    )


def replicas(folder: Path, name: str, notes: Path, recovery: Recovery | None = None) -> JaxTrainer:
    return JaxTrainer(
        replica_loop.loop,
        train_loop_config={"steps": 1_000_000, "notes": str(notes)},
        slices=SLICES,
        mesh=Mesh(dcn={"replica": 2}, ici={"fsdp": 8}),
        checkpoint=Checkpoint(path=str(folder), every_steps=10_000),
        run_config=RunConfig(name=name),
        across_slices="replicas",
        recovery=recovery,
    )


def events_of(directory: RunDirectory, kind: type) -> list[Any]:
    return [each for each in read_events(directory) if isinstance(each.event, kind)]


def steps_of(directory: RunDirectory, attempt: int) -> list[int]:
    return sorted({each.event.step for each in events_of(directory, StepFinished) if each.attempt == attempt})


def fit_while(run: JaxTrainer, disturb: Callable[[], None]) -> Result:
    """The result of a run that is disturbed from another thread, whose error is raised here."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            disturb()
        except BaseException as error:  # the thread's boundary
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    result = run.fit()
    thread.join(60)
    if errors:
        raise errors[0]
    return result


def pid_of(directory: RunDirectory, host: str) -> int:
    return next(each.event.pid for each in events_of(directory, HostReady) if each.event.host == host)


@pytest.mark.local_ray
def test_lockstep_hands_over_to_a_free_slice_inside_the_notice(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    """Stock Ray trained on beside an idle spare, and lost 73 steps."""
    run = lockstep(tmp_path, "moved", steps=20, pause_s=0.2)

    def disturb() -> None:
        await_true("the run to train", lambda: (steps_of(run.directory, 1) or [0])[-1] >= 3, 120)
        slices = events_of(run.directory, AttemptStarted)[0].event.slices
        cluster.preempt_host(slices[1], 0, NOTICE_S)
        node_id = str(cluster.host(slices[1], 0).node_id)
        await_true("Ray to show the drain", lambda: node_id in ray_internals.draining_nodes())
        assert ray_internals.draining_nodes()[node_id] == pytest.approx(time.time() + NOTICE_S, abs=3)

    result = fit_while(run, disturb)

    assert result.metrics["step"] == 20
    [noticed] = events_of(run.directory, PreemptionNoticed)
    assert noticed.event.source == "Ray drains its node"
    first, second = (each.event.slices for each in events_of(run.directory, AttemptStarted))
    gone = noticed.event.host.partition("/")[0]
    assert (gone in first, gone in second) == (True, False)
    endings = [(each.event.ending, each.event.slices) for each in events_of(run.directory, AttemptEnded)]
    assert endings == [("slice_lost", (gone,)), ("completed", ())]
    done, redone = steps_of(run.directory, 1), steps_of(run.directory, 2)
    [restored] = {each.event.step for each in events_of(run.directory, CheckpointRestored)}
    assert (done[-1], redone[0]) == (restored, restored + 1), "no step is lost"
    began = next(each.time_s for each in events_of(run.directory, StepFinished) if each.attempt == 2)
    print(f"RAYTPU_HAND_OVER_S={began - noticed.time_s:.1f}")
    assert began - noticed.time_s < NOTICE_S


def until_it_left(run: JaxTrainer, notes: Path) -> None:
    """Train, send SIGTERM to a host's process, see its slice leave, and let the others end a bit later."""

    def disturb() -> None:
        await_true("the run to train", lambda: len(read_notes(notes)) > 40, 120)
        os.kill(pid_of(run.directory, f"{second_slice(run)}/0"), signal.SIGTERM)
        await_true("the slice to leave", lambda: events_of(run.directory, ReplicaLost), NOTICE_S)
        (notes / "end").write_text(str(max(note.step for note in read_notes(notes)) + 60))

    notes.mkdir()
    fit_while(run, disturb)
    [left] = events_of(run.directory, ReplicaLost)
    assert left.event.reason == f"{second_slice(run)}/0 goes away: its process got SIGTERM"
    assert {len(each) for each in digests(read_notes(notes)).values()} == {1}, "replicas differ"
    steps = {note.step for note in read_notes(notes)}
    assert steps == set(range(1, max(steps) + 1))


def second_slice(run: JaxTrainer) -> str:
    """Of those that the run began with, whichever the test before has left."""
    hosts = [each.event.host for each in events_of(run.directory, HostReady)]
    return sorted({host.partition("/")[0] for host in hosts[:4]})[1]


def last_steps(notes: Path) -> dict[str, int]:
    return {note.slice: note.step for note in read_notes(notes)}


@pytest.mark.local_ray
def test_replicas_lose_no_step_to_a_slice_whose_host_gets_sigterm(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    """Its time is too short for a replacement; it leaves between two steps all the same."""
    notes = tmp_path / "notes"
    run = replicas(tmp_path / "runs", "left", notes, Recovery(grace_s=6))

    until_it_left(run, notes)

    gone = second_slice(run)
    [noticed] = events_of(run.directory, PreemptionNoticed)
    assert (noticed.event.host, noticed.event.source) == (f"{gone}/0", "its process got SIGTERM")
    assert 1 < noticed.event.seconds < 6
    assert last_steps(notes)["slice-0"] >= last_steps(notes)[gone] + 60
    text = render_summary(summarise(read_events(run.directory)))
    assert f"notice       {gone}/0: its process got SIGTERM, " in text
    await_true("the node to be drained", lambda: not cluster.host(gone, 0).alive, 30)


@pytest.mark.thorough
def test_without_a_free_slice_lockstep_trains_on_and_saves_just_before_the_end(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    """Saving at once would leave the slices idle for the rest of the notice."""
    whole(cluster)
    run = lockstep(tmp_path, "stayed", steps=300, fast_until=0, pause_s=0.2)

    def disturb() -> None:
        await_true("the run to train", lambda: (steps_of(run.directory, 1) or [0])[-1] >= 3, 120)
        slices = events_of(run.directory, AttemptStarted)[0].event.slices
        cluster.preempt_host(slices[1], 0, NOTICE_S)
        await_true("the last save", lambda: events_of(run.directory, AttemptEnded), NOTICE_S + 10)
        other.release()
        await_true("steps on the other slice", lambda: len(steps_of(run.directory, 2)) > 3, 60)
        request_stop(run.directory, "enough seen", who="the test")

    other = hold(SLICES.model_copy(update={"count": 1}), owner="somebody else")
    with other, pytest.raises(RunStopped, match="enough seen"):
        fit_while(run, disturb)

    [noticed] = events_of(run.directory, PreemptionNoticed)
    done, redone = steps_of(run.directory, 1), steps_of(run.directory, 2)
    assert redone[0] == done[-1] + 1, "no step is lost"
    ended = events_of(run.directory, AttemptEnded)[0]
    assert ended.event.ending == "slice_lost"
    assert NOTICE_S / 3 < ended.time_s - noticed.time_s < NOTICE_S


@pytest.mark.thorough
def test_a_host_that_is_killed_before_its_notice_is_served_is_lost_like_any_other(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    """Whoever waits for its part in a last save would wait for ever."""
    whole(cluster)
    run = lockstep(tmp_path, "killed", steps=40, pause_s=0.2)

    def disturb() -> None:
        await_true("the run to train", lambda: (steps_of(run.directory, 1) or [0])[-1] >= 5, 120)
        host = cluster.host(events_of(run.directory, AttemptStarted)[0].event.slices[1], 0)
        os.kill(pid_of(run.directory, host.name), signal.SIGTERM)
        await_true("the notice", lambda: events_of(run.directory, PreemptionNoticed), 20)
        cluster.lose_host(host.slice_name, host.worker_id)

    result = fit_while(run, disturb)

    assert result.metrics["step"] == 40
    endings = [each.event.ending for each in events_of(run.directory, AttemptEnded)]
    assert endings == ["slice_lost", "completed"]


@pytest.mark.thorough
def test_a_replica_stays_until_its_replacement_takes_part(cluster: SimulatedCluster, tmp_path: Path) -> None:
    """Leaving at once, it would halve the speed for as long as a cold start takes."""
    whole(cluster)
    notes = tmp_path / "notes"
    run = replicas(tmp_path / "runs", "replaced", notes)

    until_it_left(run, notes)

    gone = second_slice(run)
    [new] = set(last_steps(notes)) - {"slice-0", gone}
    first_of_new = min(note.step for note in read_notes(notes) if note.slice == new)
    assert first_of_new <= last_steps(notes)[gone] + 1
