"""``raytpu slices`` and ``raytpu explain`` on a real Ray cluster in which much goes on at once."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raytpu import SimulatedCluster, Slices, simulate
from raytpu.cli.main import exit_code_of
from raytpu.cluster.process_sweep import kill_marked
from raytpu.record import EventLog, RunDirectory, RunEnded, RunStarted, remember_run
from tests.leftover_processes import HOST_VARIABLE
from tests.waiting import await_true

pytestmark = pytest.mark.local_ray

ONE_HOST = Slices(generation="v6e", topology="2x2")
TWO_HOSTS = Slices(generation="v6e", topology="2x4", chips_per_host=4)

WORKLOAD = """\
name: {name}
slices: {{generation: v6e, topology: {topology}, count: {count}}}
train: {{entrypoint: "mine:train"}}
checkpoint: {{path: ~/runs, every_steps: 1}}
"""

SETTING = """
import sys, threading, time
import ray, raytpu
from raytpu import Slices
from ray.util.placement_group import placement_group

ray.init(address=sys.argv[1], namespace="stock", log_to_driver=False, logging_level="ERROR")
want = Slices(generation="v6e", topology="2x2")
"""

RUNS = """
where = {"ray.io/tpu-slice-name": "slice-1"}
mine = placement_group([{"TPU": 4}], name="mine", bundle_label_selector=[where])
assert mine.wait(30)
lease = raytpu.hold(want, owner="llm")

def wait():
    raytpu.hold(want.model_copy(update={"count": 3}), owner="big", timeout_s=600)

threading.Thread(target=wait, daemon=True).start()
# A book that starts removes what it does not know, so this comes after it.
stray = placement_group([{"CPU": 0.01}], name="raytpu/old/feed/slice-0", lifetime="detached")
assert stray.wait(30)
print(lease.id, flush=True)
time.sleep(600)
"""

GOES = """
elsewhere = want.model_copy(update={"exclude": ("slice-0", "slice-1")})
lease = raytpu.hold(elsewhere, owner="gone", orphan_grace_s=600)
print(lease.id, flush=True)
time.sleep(600)
"""

BARE_HOST = """
import os, signal, sys
from raytpu.cluster.ray_node import RayNode
from raytpu.cluster.simulation_plan import NodeOptions, NodePlan

address, directory = sys.argv[1:]
os.makedirs(directory)
node = RayNode(NodePlan(
    label="bare", address="127.77.250.9", directory=directory, marker="", environment={},
    resources={"TPU": 4.0}, labels={"raytpu.dev/simulated": "true"}, cpus=1, options=NodeOptions(),
    head_address=address,
))
print("up", flush=True)
signal.pause()
"""

MARKER = f"bare-{os.getpid()}/bare/0"


class Answer:
    """What a command said."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    def row(self, name: str) -> list[str]:
        """The columns of a slice in the table."""
        [line] = [line for line in self.out.splitlines() if line.startswith(f"  {name} ")]
        return [column.strip() for column in line.split("  ") if column.strip()]


class Stage:
    """The cluster, and a command line on it."""

    def __init__(self, cluster: SimulatedCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.bare: list[Answer] = []
        self.lease_ids: dict[str, str] = {}

    def says(self, *arguments: str, answers: str = "") -> Answer:
        out, err, stdin = io.StringIO(), io.StringIO(), io.StringIO(answers)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAYTPU_HOME", str(self.folder))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            patch.setattr(sys, "stdin", stdin)
            code = exit_code_of([*arguments, "--on", self.cluster.address])
        return Answer(code, out.getvalue(), err.getvalue())

    def workload(self, **values: Any) -> str:
        file = self.folder / "workload.yaml"
        file.write_text(WORKLOAD.format(**values))
        return str(file)


def start(program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@contextmanager
def ended(*processes: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        kill_marked(MARKER)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """slice-0 is held by llm, slice-1 by stock Ray, slice-2 by an owner that is gone; slice-3 is under
    quarantine, slice-4 has lost a host, and another host has no labels. big waits for three slices."""
    with simulate([ONE_HOST.model_copy(update={"count": 4}), TWO_HOSTS]) as cluster:
        stage = Stage(cluster, tmp_path_factory.mktemp("home"))
        bare_host = start(BARE_HOST, cluster.address, f"{cluster.directory}/bare", **{HOST_VARIABLE: MARKER})
        stage.bare = [stage.says("slices"), stage.says("slices", "--output", "json")]
        runs = start(SETTING + RUNS, cluster.address)
        goes = start(SETTING + GOES, cluster.address)
        with ended(bare_host, runs, goes):
            assert first_line(bare_host) == "up"
            stage.lease_ids = {"llm": first_line(runs), "gone": first_line(goes)}
            goes.send_signal(signal.SIGKILL)
            cluster.lose_host("slice-4", 1)
            quarantine = ("slices", "quarantine", "slice-3", "--reason", "flaky optics", "--yes")
            assert stage.says(*quarantine).code == 0
            await_true("the owner to be missed", lambda: "its owner is gone" in stage.says("slices").out)
            yield stage


def test_to_look_at_a_cluster_starts_nothing_in_it(stage: Stage):
    """A detached actor that appears because somebody looked is a surprise to whoever owns the cluster."""
    first, second = stage.bare
    assert first.row("slice-4") == ["slice-4", "v6e", "2x4", "2 of 2", "8 of 8", "-"]
    assert "this cluster has no book of slices yet" in first.out
    assert second.document["book"] is False


def test_the_table_says_who_has_every_slice(stage: Stage):
    answer = stage.says("slices")

    assert answer.code == 0
    assert answer.row("slice-0")[4:6] == ["0 of 4", "llm"]
    assert answer.row("slice-1")[4:6] == ["0 of 4", "placement group mine (outside raytpu)"]
    assert answer.row("slice-2")[4:6] == ["0 of 4", "gone (its owner is gone)"]
    assert "  1  big    0         3 whole v6e 2x2 (1 × 4 chips) slices" in answer.out
    assert "slice-3" in answer.out.partition("Under quarantine")[2]
    assert "flaky optics" in answer.out
    assert f"lease {stage.lease_ids['gone']}: slice-2" in answer.out
    assert "placement group raytpu/old/feed/slice-0" in answer.out


def test_what_is_not_whole_is_told_at_once_with_its_remedy(stage: Stage):
    """Ray takes 13 s to give a dead host up, and never says which label is missing."""
    troubles = stage.says("slices").out.partition("Not whole\n")[2]

    assert "slice-4: host 1: its raylet refuses connections" in troubles or (
        "slice-4: 1 of 2 hosts alive (missing host 1)" in troubles
    )
    assert "its hosts have no label ray.io/accelerator-type" in troubles
    assert "start Ray there with TPU_ACCELERATOR_TYPE and TPU_TOPOLOGY and TPU_NAME set" in troubles


def test_a_machine_gets_the_same(stage: Stage):
    document = stage.says("slices", "--output", "json").document

    by_name = {row["name"]: row for row in document["slices"]}
    assert [holder["who"] for holder in by_name["slice-0"]["holders"]] == ["llm"]
    assert by_name["slice-1"]["holders"][0]["state"] == "outside"
    assert by_name["slice-3"]["quarantined"] == "flaky optics"
    assert [row["owner"] for row in document["queue"]] == ["big"]
    assert {orphan["owner"] for orphan in document["orphans"]} == {"gone", "old"}


def test_a_waiting_owner_learns_what_it_waits_for(stage: Stage):
    answer = stage.says("explain", "big")

    assert answer.code == 0
    assert answer.out.startswith("big waits: need 3 whole v6e 2x2 (1 × 4 chips) slices: ")
    assert "held by llm" in answer.out
    assert "host 0 is used by placement group mine, outside raytpu" in answer.out
    assert "under quarantine: flaky optics" in answer.out
    assert "first in the queue; asked" in answer.out
    [explained] = stage.says("explain", "big", "--output", "json").document["explanations"]
    assert (explained["state"], explained["position"], len(explained["slices"])) == ("waits", 1, 6)


def test_a_holder_is_found_by_its_name_and_by_its_lease(stage: Stage):
    assert re.match(
        r"llm has held slice-0 for \d+ s: 1 whole v6e 2x2 slice\n", stage.says("explain", "llm").out
    )
    by_id = stage.says("explain", stage.lease_ids["gone"]).out
    assert by_id.startswith("gone has held slice-2 for ")
    assert "`raytpu slices gc` ends it now" in by_id


def test_a_run_that_has_ended_is_explained_from_its_record(stage: Stage):
    """Else "nobody in the book" is all there is to learn about yesterday's run."""
    directory = RunDirectory.newest(str(stage.folder / "storage"), "past")
    with EventLog(directory, "driver") as driver:
        driver.write(RunStarted(run="past"))
        driver.write(RunEnded(outcome="failed", reason="ValueError: no"))
    remember_run(directory, str(stage.folder / "runs"))

    answer = stage.says("explain", "past")

    assert answer.code == 0
    assert answer.out.startswith("past holds no slices and waits for none; its record says: failed\n")
    assert "ValueError: no" in answer.out


def test_somebody_unknown_is_refused_with_who_is_near(stage: Stage):
    answer = stage.says("explain", "lm")

    assert (answer.code, answer.out) == (2, "")
    assert "did you mean llm?" in answer.err


def test_a_workload_file_is_told_whether_it_would_fit(stage: Stage):
    """The end of the queue counts: what an earlier request claims cannot be had."""
    answer = stage.says("explain", stage.workload(name="next", topology="2x2", count=1))
    assert answer.code == 3
    assert answer.out.startswith("next does not fit now: need 1 whole v6e 2x2")
    assert "it would be number 2 in the queue, behind big" in answer.out

    never = stage.says("explain", stage.workload(name="next", topology="4x4", count=1))
    assert never.code == 3
    assert never.out.startswith("next can never fit on this cluster: ")

    known = stage.says("explain", stage.workload(name="llm", topology="2x2", count=1))
    assert (known.code, known.out.split()[:3]) == (0, ["llm", "has", "held"])


def test_garbage_is_collected_only_when_it_is_confirmed(stage: Stage):
    """A key pressed by habit must not take somebody's slices."""
    refused = stage.says("slices", "gc", answers="n\n")
    assert refused.code == 3
    assert "not confirmed, so nothing was changed" in refused.err
    assert f"lease {stage.lease_ids['gone']}: slice-2" in refused.err

    done = stage.says("slices", "gc", "--output", "json", answers="y\n").document

    assert sorted(orphan["owner"] for orphan in done["ended"]) == ["gone", "old"]
    await_true("slice-2 to be free", lambda: stage.says("slices").row("slice-2")[4] == "4 of 4")
    assert stage.says("slices", "gc").out == "nothing is held for owners that are gone\n"
    assert stage.says("slices").row("slice-0")[5] == "llm", "who is there keeps what it has"


def test_a_quarantine_is_put_and_lifted_by_name(stage: Stage):
    unknown = stage.says("slices", "quarantine", "slice-33", "--reason", "x", "--yes")
    assert unknown.code == 2
    assert "no slice 'slice-33'; did you mean slice-3?" in unknown.err
    assert "slice-0, slice-1, slice-2, slice-3, slice-4" in unknown.err
    twice = stage.says("slices", "quarantine", "slice-3", "--reason", "x", "--yes")
    assert (twice.code, "already: flaky optics" in twice.err) == (3, True)
    assert stage.says("slices", "release", "slice-0", "--yes").code == 2

    asked = stage.says("slices", "release", "slice-3", answers="yes\n")

    assert (asked.code, asked.out) == (0, "slice-3: can be had again\n")
    assert "which is: flaky optics?" in asked.err
    assert stage.says("slices", "--output", "json").document["quarantines"] == []
