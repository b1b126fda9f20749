"""`k8s/rendered` is what raytpu makes of `deploy/workloads`; RAYTPU_REWRITE_GOLDEN=1 writes it anew."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from raytpu.manifest import KINDS, Rendered, render
from raytpu.plan import plan_cluster
from raytpu.spec import parse_workload

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "k8s" / "rendered"

ON_GKE = {
    "stdlib-gpt": (
        "cluster.image=us-docker.pkg.dev/my-project/raytpu/raytpu:0.1.0",
        "checkpoint.path=gs://my-bucket/runs",
    )
}
"""What a file that is written for simulated slices is given on the command line."""


def rendered() -> list[Rendered]:
    found = []
    for file in sorted((ROOT / "deploy" / "workloads").glob("*.yaml")):
        overrides = ON_GKE.get(file.stem, ())
        plan = plan_cluster(parse_workload(file.read_text(encoding="utf-8"), file.name, overrides))
        kinds = [kind for kind in KINDS if kind != "Kueue" or plan.cluster.queue is not None]
        found += [render(plan, kind) for kind in kinds]
    if os.environ.get("RAYTPU_REWRITE_GOLDEN"):
        for each in found:
            (FOLDER / each.name).write_text(each.text, encoding="utf-8")
    return found


@pytest.mark.parametrize("expected", rendered(), ids=lambda each: each.name)
def test_a_rendered_file_is_what_raytpu_makes_of_its_workload_now(expected: Rendered) -> None:
    """People copy these; and every change of raytpu shows here what it does to manifests."""
    assert (FOLDER / expected.name).read_text(encoding="utf-8") == expected.text


def test_no_file_is_left_of_a_workload_that_is_gone() -> None:
    """It would be applied by those who apply the folder, and kept by nobody."""
    assert {path.name for path in FOLDER.iterdir()} == {each.name for each in rendered()}


@pytest.mark.parametrize(
    "script", sorted(ROOT.glob("k8s/rendered/*.sh")) + sorted(ROOT.glob("deploy/gke/*.sh"))
)
def test_bash_reads_the_scripts(script: Path) -> None:
    """One that stops in the middle leaves half a cluster that costs money."""
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
