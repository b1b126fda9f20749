"""The recorded cases, a small cluster to change one thing of, and the CRDs where they are at hand."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from raytpu.lint import CustomResources, Finding, Severity, may_define, parse_custom_resources

CASES = Path(__file__).parent / "cases"
KINDS = ("RayCluster", "RayJob", "RayService")
CRDS = Path(
    os.environ.get("RAYTPU_CRDS") or Path(__file__).parents[3] / "shared" / "facts" / "kubernetes" / "crds"
)


READS_CRDS = pytest.mark.timeout(60)
"""Of modules whose first test reads the CRDs: 1 s alone, 4 s on a busy machine."""


@cache
def verdicts() -> tuple[dict[str, Any], ...]:
    """What a real API server, webhook and operator said of each case."""
    return tuple(yaml.safe_load((CASES / "verdicts.yaml").read_text(encoding="utf-8")))


def case(name: str) -> str:
    return (CASES / f"{name}.yaml").read_text(encoding="utf-8")


def known_crds(kinds: tuple[str, ...] = KINDS) -> CustomResources | None:
    """The CRDs of KubeRay and Kueue, or ``None``: the repository does not hold them."""
    return _read_once(kinds)


@cache
def _read_once(kinds: tuple[str, ...]) -> CustomResources | None:
    files = sorted(CRDS.glob("*.yaml")) if CRDS.is_dir() else []
    texts = ((file.name, file.read_text(encoding="utf-8")) for file in files)
    return parse_custom_resources(each for each in texts if may_define(each[1], kinds)) if files else None


def skip_without_crds() -> None:
    """The repository does not hold them."""
    if not any(CRDS.glob("*.yaml")):
        pytest.skip(f"no CRDs in {CRDS}; name a folder of them in RAYTPU_CRDS")


def crds_or_skip(kinds: tuple[str, ...] = KINDS) -> CustomResources:
    skip_without_crds()
    crds = known_crds(kinds)
    assert crds is not None
    return crds


def serious(findings: Iterable[Finding]) -> list[Finding]:
    """Errors and warnings."""
    return [finding for finding in findings if finding.severity is not Severity.INFO]


CLUSTER = """\
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: llm
spec:
  headGroupSpec:
    template:
      spec:
        containers:
        - name: ray-head
          image: rayproject/ray:2.60.0
          resources: {limits: {cpu: 4, memory: 16Gi}}
  workerGroupSpecs:
  - groupName: tpu
    replicas: 1
    minReplicas: 0
    maxReplicas: 4
    numOfHosts: HOSTS
    template:
      spec:
        nodeSelector:
          cloud.google.com/gke-tpu-accelerator: ACCELERATOR
          cloud.google.com/gke-tpu-topology: TOPOLOGY
        containers:
        - name: ray-worker
          image: rayproject/ray:2.60.0
          resources:
            limits: {google.com/tpu: CHIPS}
"""


def cluster(accelerator: str, topology: str, hosts: int, chips: int) -> str:
    """A RayCluster with one slice."""
    text = CLUSTER.replace("ACCELERATOR", accelerator).replace("TOPOLOGY", topology)
    return text.replace("HOSTS", str(hosts)).replace("CHIPS", str(chips))


V6E = cluster("tpu-v6e-slice", "4x4", 4, 4)
