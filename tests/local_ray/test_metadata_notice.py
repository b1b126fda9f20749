"""A metadata server announces the end of every VM at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from raytpu import Recovery, SimulatedCluster, simulate
from raytpu.cluster import NodeOptions
from raytpu.errors import RunStopped
from raytpu.record import CheckpointDurable, PreemptionNoticed, StepFinished
from tests.local_ray.replica_killer import SLICES
from tests.local_ray.replica_loop import read_notes
from tests.local_ray.test_preemption import events_of, fit_while, replicas
from tests.metadata_server import MetadataServer
from tests.waiting import await_true


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    server = MetadataServer()
    yield server
    server.close()


@pytest.fixture
def cluster(server: MetadataServer) -> Iterator[SimulatedCluster]:
    """Two slices whose hosts ask that server."""
    options = NodeOptions(environment={"GCE_METADATA_HOST": server.address})
    with simulate(SLICES, options=options) as cluster:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
        ray.shutdown()


@pytest.mark.thorough
@pytest.mark.usefixtures("cluster")
def test_when_all_replicas_go_away_the_last_one_saves_before_the_end(
    server: MetadataServer, tmp_path: Path
) -> None:
    """The state lives in their memory: with them goes everything since the last checkpoint."""
    notes = tmp_path / "notes"
    notes.mkdir()
    run = replicas(tmp_path / "runs", "ended", notes, Recovery(notice_s=25))

    def disturb() -> None:
        await_true("the run to train", lambda: len(read_notes(notes)) > 40, 120)
        server.set("preempted", "TRUE")

    with pytest.raises(RunStopped, match="every slice that has the state goes away") as stopped:
        fit_while(run, disturb)

    noticed = events_of(run.directory, PreemptionNoticed)
    assert {each.event.host for each in noticed} == {"slice-0/0", "slice-0/1", "slice-1/0", "slice-1/1"}
    assert {each.event.source for each in noticed} == {"the metadata server says that its VM is preempted"}
    last = max(each.event.step for each in events_of(run.directory, StepFinished))
    [saved] = {each.event.step: each for each in events_of(run.directory, CheckpointDurable)}.items()
    assert (saved[0], f"step {last} is saved" in str(stopped.value)) == (last, True), "no step is lost"
    assert saved[1].time_s - noticed[0].time_s < 25
