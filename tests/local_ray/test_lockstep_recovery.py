"""A run in lockstep outlives its slices: real hosts are killed under it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.train import RunConfig

from raytpu import (
    Checkpoint,
    Deadlines,
    JaxTrainer,
    Mesh,
    Recovery,
    RunDirectory,
    Slices,
    read_events,
    simulate,
)
from raytpu.cluster import SimulatedCluster
from raytpu.errors import ProgramFailed, RunStopped, SliceLost
from raytpu.gang import open_book
from raytpu.record import (
    AttemptEnded,
    AttemptStarted,
    Bucket,
    CheckpointRestored,
    HostReady,
    HostsStuck,
    Recorded,
    StateChanged,
    StepFinished,
    read_logs,
    render_summary,
    request_stop,
    summarise,
)
from tests.leftover_processes import find_leftovers
from tests.waiting import await_true

SLICES = Slices(generation="v6e", topology="2x4", chips_per_host=4, count=2)
STEPS = 40


@pytest.fixture(scope="module")
def one_cluster() -> Iterator[SimulatedCluster]:
    """Three slices of two hosts, one more than a run takes, and this process a driver on them."""
    with simulate(SLICES.model_copy(update={"count": 3})) as cluster:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        try:
            yield cluster
        finally:
            ray.shutdown()


@pytest.fixture
def cluster(one_cluster: SimulatedCluster) -> SimulatedCluster:
    """The same, made whole again after what the test before has broken."""
    for each in one_cluster.slices:
        for host in each.hosts:
            if host.state == "lost":
                one_cluster.add_host(each.name, host.worker_id)
    return one_cluster


def loop(context: Any, config: dict[str, Any]) -> None:
    """Gradient descent on all devices, with a loss that depends on every step before it."""
    import time

    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    sharding = NamedSharding(context.mesh, PartitionSpec(("replica", "fsdp")))
    state = context.restore(context.jit(lambda: jnp.linspace(-1.0, 2.0, 64), out_shardings=sharding)())

    def update(state: Any, step: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda x: jnp.mean(jnp.sin(x * step) ** 2 + x**2))(state)
        return state - 0.3 * gradient, loss

    train_step = context.jit(update, donate_argnums=0)
    for step in range(context.start_step + 1, config["steps"] + 1):
        state, loss = train_step(state, jnp.float32(step))
        if step > config.get("fast_until", 0):
            time.sleep(config.get("pause_s", 0.0))
        context.report(step, {"loss": loss}, state)
        if step == config.get("fails_after"):
            raise ValueError("no")
        while step == config.get("hangs_after") and context.process_index == 3:
            time.sleep(0.1)


def trainer(
    root: Path,
    name: str,
    recovery: Recovery | None = None,
    deadlines: Deadlines | None = None,
    every_steps: int = 5,
    **config: Any,
) -> JaxTrainer:
    return JaxTrainer(
        loop,
        train_loop_config={"steps": STEPS} | config,
        slices=SLICES,
        mesh=Mesh(dcn={"replica": 2}, ici={"fsdp": 8}),
        checkpoint=Checkpoint(path=str(root), every_steps=every_steps),
        run_config=RunConfig(name=name),
        recovery=recovery,
        deadlines=deadlines,
    )


def events_of(directory: RunDirectory, kind: type) -> list[Any]:
    return [each.event for each in read_events(directory) if isinstance(each.event, kind)]


def gang_of(directory: RunDirectory) -> tuple[str, str]:
    """The two slices that the run began with: whichever of the three were free first."""
    first, second = events_of(directory, AttemptStarted)[0].slices
    return first, second


def losses(records: list[Recorded], attempt: int) -> dict[int, float]:
    """Of process 0, by step."""
    return {
        each.event.step: each.event.metrics["loss"]
        for each in records
        if isinstance(each.event, StepFinished) and each.attempt == attempt and each.event.metrics
    }


def last_step(directory: RunDirectory) -> int:
    return max((event.step for event in events_of(directory, StepFinished)), default=0)


def holders() -> list[str]:
    """Slices that the book says somebody has."""
    view = ray.get(open_book().view.remote())
    return [planned.name for lease in view.ledger.leases for planned in lease.slices]


def in_background(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.local_ray
def test_a_run_that_loses_a_host_goes_on_on_the_spare_slice_as_if_nothing_had_happened(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    """Losing a machine is ordinary; a run that ends at it is started by hand, at night."""
    whole = trainer(tmp_path, "whole")
    whole.fit()
    broken = trainer(tmp_path, "broken", pause_s=0.2)

    def break_one() -> None:
        await_true("the run to train", lambda: last_step(broken.directory) >= 12, 120)
        cluster.lose_host(gang_of(broken.directory)[1], 0)

    thread = in_background(break_one)
    result = broken.fit()
    thread.join(60)

    assert result.metrics["step"] == STEPS
    records = read_events(broken.directory)
    kept, lost = gang_of(broken.directory)
    [spare] = {each.name for each in cluster.slices} - {kept, lost}
    assert [event.slices for event in events_of(broken.directory, AttemptStarted)] == [
        (kept, lost),
        tuple(sorted((kept, spare))),
    ]
    endings = events_of(broken.directory, AttemptEnded)
    assert [(event.ending, event.slices) for event in endings] == [
        ("slice_lost", (lost,)),
        ("completed", ()),
    ]
    assert [
        event.reason for event in events_of(broken.directory, StateChanged) if event.state == "replacing"
    ] == [
        f"{endings[0].reason.replace(f'lost {lost}: ', f'lost {lost} (')}); {kept} stays held; "
        "in place of the lost: 1 to be found"
    ]
    restored = {event.step for event in events_of(broken.directory, CheckpointRestored)}
    assert len(restored) == 1
    assert restored.pop() >= 10
    expected = losses(read_events(whole.directory), 1)
    resumed = losses(records, 2)
    assert max(resumed) == STEPS
    assert resumed == {step: expected[step] for step in resumed}, "bit for bit"
    summary = summarise(records)
    assert summary.endings == ("slice_lost", "completed")
    assert f"lost         1 slice: {lost}" in render_summary(summary)
    assert sum(summary.goodput.seconds.values()) == pytest.approx(summary.goodput.wall_s)
    await_true("every slice to be free", lambda: holders() == [])


def pid_of(directory: RunDirectory, host: str) -> int:
    """The process of ``host`` in the first attempt."""
    return next(event.pid for event in events_of(directory, HostReady) if event.host == host)


def stuck_hosts_of(directory: RunDirectory) -> list[tuple[str, tuple[str, ...]]]:
    return [(event.cause, event.hosts) for event in events_of(directory, HostsStuck)]


def hosts_with_stacks(directory: RunDirectory) -> set[str]:
    words = "what the threads of this host are doing"
    return {line.host for line in read_logs(directory, 1) if words in line.text}


@pytest.mark.local_ray
@pytest.mark.usefixtures("cluster")
def test_a_host_whose_process_is_stopped_is_named_and_its_slice_is_lost(tmp_path: Path) -> None:
    """Its machine answers, its connections stay open, and its peers wait in a collective that never ends.

    What follows a lost slice is tested above; here nothing does, to be short.
    """
    run = trainer(
        tmp_path,
        "stopped",
        Recovery(max_lost_slices=0, standby=False),
        Deadlines(silence_s=3),
        pause_s=0.1,
        steps=1000,
    )

    def break_one() -> None:
        await_true("the run to train", lambda: last_step(run.directory) >= 2, 120)
        os.kill(pid_of(run.directory, f"{gang_of(run.directory)[1]}/1"), signal.SIGSTOP)

    thread = in_background(break_one)
    with pytest.raises(SliceLost, match=r"lost (slice-\d): \1/1: its process has not answered for"):
        run.fit()
    thread.join(60)

    kept, lost = gang_of(run.directory)
    stopped = f"{lost}/1"
    assert stuck_hosts_of(run.directory) == [("silent", (stopped,))]
    ended = events_of(run.directory, AttemptEnded)
    assert [(event.ending, event.slices) for event in ended] == [("slice_lost", (lost,))]
    assert hosts_with_stacks(run.directory) == {f"{kept}/0", f"{kept}/1", f"{lost}/0"}
    await_true("every slice to be free", lambda: holders() == [])
    await_true("the stopped process to be gone", lambda: not _is_there(pid_of(run.directory, stopped)))


@pytest.mark.thorough
@pytest.mark.usefixtures("cluster")
def test_a_stopped_process_costs_twenty_seconds_where_a_spare_is_warm(tmp_path: Path) -> None:
    """With what a workload has by default, except for the spare."""
    run = trainer(tmp_path, "warm", Recovery(spares=1), every_steps=100, pause_s=0.1, steps=2000)
    seconds: list[float] = []

    def break_one() -> None:
        await_true("a spare to be held", lambda: len(holders()) == 3, 120)
        await_true("six standby processes", lambda: len(_standing_by(run.directory)) == 6, 60)
        os.kill(pid_of(run.directory, f"{gang_of(run.directory)[1]}/0"), signal.SIGSTOP)
        began = time.time()
        await_true("steps of the second attempt", lambda: bool(losses(read_events(run.directory), 2)), 60)
        seconds.append(time.time() - began)
        stop(run.directory)

    thread = in_background(break_one)
    with pytest.raises(RunStopped, match="was stopped by the test"):
        run.fit()
    thread.join(60)

    summary = summarise(read_events(run.directory))
    print(f"from SIGSTOP to the next step: {seconds[0]:.1f} s", summary.goodput)
    assert seconds[0] <= 20
    assert stuck_hosts_of(run.directory) == [("silent", (f"{gang_of(run.directory)[1]}/0",))]
    assert summary.goodput.seconds[Bucket.DETECTION] >= 6
    assert summary.goodput.seconds[Bucket.REPLACEMENT] > 0


@pytest.mark.thorough
@pytest.mark.usefixtures("cluster")
def test_the_same_endless_loop_twice_ends_the_run_and_names_its_line(tmp_path: Path) -> None:
    """A bug that hangs would be tried again for ever, a minute each time."""
    run = trainer(tmp_path, "loop", deadlines=Deadlines(stuck_s=5), hangs_after=7)

    with pytest.raises(ProgramFailed, match=r"slice-\d/1 has not entered it") as caught:
        run.fit()

    told = "the same error after step 7 twice (stuck in test_lockstep_recovery.py:loop)"
    assert told in caught.value.__notes__[0]
    first, second = gang_of(run.directory)
    assert stuck_hosts_of(run.directory) == [("program", (f"{second}/1",))] * 2
    ended = events_of(run.directory, AttemptEnded)
    assert [event.ending for event in ended] == ["program_failed"] * 2
    assert hosts_with_stacks(run.directory) == {
        f"{name}/{host}" for name in (first, second) for host in (0, 1)
    }


def _standing_by(directory: RunDirectory) -> set[int]:
    """Host processes that no attempt has begun with."""
    begun = {event.pid for event in events_of(directory, HostReady)}
    return {each.pid for each in find_leftovers() if "ray::HostWorker" in each.cmdline()[:1]} - begun


def _is_there(pid: int) -> bool:
    return any(each.pid == pid for each in find_leftovers())


@pytest.mark.thorough
def test_standby_processes_take_over_without_starting_python_anew(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    """Starting Python and importing JAX is half of the time that a restart takes."""
    run = trainer(tmp_path, "spare", Recovery(spares=1), pause_s=0.2, steps=400)

    def break_one() -> None:
        await_true("a spare to be held", lambda: len(holders()) == 3, 120)
        await_true("six standby processes", lambda: len(_standing_by(run.directory)) == 6, 60)
        before.update(_standing_by(run.directory))
        cluster.lose_host(gang_of(run.directory)[1], 0)
        await_true("the second attempt", lambda: len(hosts_of_attempt(2)) == 4, 60)
        await_true("steps of the second attempt", lambda: bool(losses(read_events(run.directory), 2)), 60)
        stop(run.directory)

    def hosts_of_attempt(number: int) -> dict[str, int]:
        return {
            each.event.host: each.event.pid
            for each in read_events(run.directory)
            if isinstance(each.event, HostReady) and each.attempt == number
        }

    before: set[int] = set()
    thread = in_background(break_one)
    with pytest.raises(RunStopped, match="was stopped by the test"):
        run.fit()
    thread.join(60)

    left = {each.name for each in cluster.slices} - {gang_of(run.directory)[1]}
    assert set(hosts_of_attempt(2)) == {f"{name}/{host}" for name in left for host in (0, 1)}
    assert set(hosts_of_attempt(2).values()) <= before
    await_true("every slice to be free", lambda: holders() == [])


def stop(directory: RunDirectory) -> None:
    request_stop(directory, "enough seen", who="the test")


@pytest.mark.thorough
@pytest.mark.usefixtures("cluster")
def test_the_same_error_after_the_same_step_twice_ends_the_run(tmp_path: Path) -> None:
    """A bug that is retried for ever holds slices and computes nothing."""
    run = trainer(tmp_path, "bug", fails_after=7)

    with pytest.raises(ProgramFailed, match="ValueError: no") as caught:
        run.fit()

    assert (
        "the same error after step 7 twice (ValueError at test_lockstep_recovery.py"
        in caught.value.__notes__[0]
    )
    started, ended = events_of(run.directory, AttemptStarted), events_of(run.directory, AttemptEnded)
    assert [event.attempt for event in started] == [1, 2]
    assert [event.ending for event in ended] == ["program_failed", "program_failed"]
    assert started[0].slices == started[1].slices
    await_true("every slice to be free", lambda: holders() == [])


@pytest.mark.thorough
@pytest.mark.usefixtures("cluster")
def test_a_host_process_that_dies_alone_is_started_again_on_its_slice(tmp_path: Path) -> None:
    """One process that ran out of memory would cost a whole slice, which is well."""
    run = trainer(tmp_path, "crash", pause_s=0.1)

    def kill_one() -> None:
        await_true("the run to train", lambda: last_step(run.directory) >= 7, 120)
        os.kill(pid_of(run.directory, f"{gang_of(run.directory)[1]}/1"), signal.SIGKILL)

    thread = in_background(kill_one)
    result = run.fit()
    thread.join(60)

    assert result.metrics["step"] == STEPS
    ended = events_of(run.directory, AttemptEnded)
    assert [event.ending for event in ended] == ["program_failed", "completed"]
    told, advice, account = ended[0].reason.splitlines()
    gang = gang_of(run.directory)
    assert told.startswith(f"{gang[1]}/1: its process ended unexpectedly, and the host is well")
    assert advice == f"  what it said last: `raytpu logs crash --host {gang[1]}/1`"
    assert "connection error code 2" in account, "what Ray says is in the record"
    assert [event.slices for event in events_of(run.directory, AttemptStarted)] == [gang] * 2
