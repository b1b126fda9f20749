"""What the scripts in the output do, with stand-ins for `gcloud` and `ray` that note how they were called."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from raytpu.manifest import node_pool_script
from tests.manifest.workloads import documents, host_of, plan

PLACE = {"PROJECT": "p", "CLUSTER": "c", "LOCATION": "us-east5", "ZONE": "us-east5-b"}


def run(
    script: list[str], folder: Path, stand_in: str, body: str, **environment: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run with a command that notes its arguments and does ``body``; what came of it, and the notes."""
    program, notes = folder / stand_in, folder / "notes"
    program.write_text(f'#!/bin/sh\necho "$*" >> "{notes}"\n{body}\n', encoding="utf-8")
    program.chmod(0o755)
    done = subprocess.run(
        script,
        env={"PATH": f"{folder}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    return done, notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []


def test_pools_that_are_there_are_left_alone(tmp_path: Path) -> None:
    """The script is run again for a workload that wants one slice more."""
    script = node_pool_script(plan("slices.count=2"))
    body = 'case "$*" in *describe*4t-0*) exit 0;; *describe*) exit 1;; esac'

    done, calls = run(["bash", "-c", script], tmp_path, "gcloud", body, **PLACE)

    [made] = [call for call in calls if " create " in call]
    assert done.returncode == 0, done.stderr
    assert "v6e-4x4-4t-0 is there already" in done.stdout
    assert made.startswith(
        "container node-pools create v6e-4x4-4t-1 --project=p --cluster=c --location=us-east5 "
    )
    assert "--node-locations=us-east5-b --machine-type=ct6e-standard-4t --tpu-topology=4x4" in made


def test_a_pool_that_cannot_be_made_ends_the_script(tmp_path: Path) -> None:
    """Going on would make pools of a job that can never be whole."""
    done, calls = run(
        ["bash", "-c", node_pool_script(plan("slices.count=2"))], tmp_path, "gcloud", "exit 1", **PLACE
    )

    assert done.returncode != 0
    assert len([call for call in calls if " create " in call]) == 1


def test_the_cluster_must_be_named(tmp_path: Path) -> None:
    done, calls = run(["bash", "-c", node_pool_script(plan())], tmp_path, "gcloud", "", PROJECT="p")

    assert done.returncode != 0
    assert "CLUSTER: the name of the GKE cluster" in done.stderr
    assert calls == []


@pytest.fixture
def processes(tmp_path: Path) -> Path:
    """A stand-in for /proc with one raylet, whose id is abc."""
    raylet = tmp_path / "proc" / "7" / "cmdline"
    raylet.parent.mkdir(parents=True)
    raylet.write_bytes(b"raylet\0--node_id=abc\0--head\0")
    return raylet.parents[1]


def drain(processes: Path, body: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    command = host_of(documents("RayJob"))["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    script = [*command[:2], command[2].replace("/proc/", f"{processes}/")]
    return run(script, processes.parent, "ray", body, RAY_ADDRESS="head:6379")


def test_a_host_is_drained_until_its_raylet_has_ended(processes: Path) -> None:
    """SIGTERM follows as soon as the hook returns, and ends whatever still saves."""
    done, [call] = drain(processes, f"rm {processes}/7/cmdline")

    assert done.returncode == 0
    assert call.startswith(
        "drain-node --address head:6379 --node-id abc --reason DRAIN_NODE_REASON_PREEMPTION "
    )
    assert call.endswith("--deadline-remaining-seconds 115")


def test_a_drain_that_is_refused_does_not_keep_the_pod(processes: Path) -> None:
    """As when the head is gone: the pod would stay for all of its grace."""
    done, calls = drain(processes, "exit 1")

    assert done.returncode == 0
    assert len(calls) == 1


def test_a_host_whose_raylet_has_ended_needs_no_drain(processes: Path) -> None:
    (processes / "7" / "cmdline").unlink()

    done, calls = drain(processes, "")

    assert (done.returncode, calls) == (0, [])
