"""raytpu's own linter has nothing against raytpu's own manifests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from raytpu.manifest import Kind, render
from raytpu.topology import GENERATIONS, slice_shapes
from tests.manifest.crds import FOLDER
from tests.manifest.workloads import of_shape

lint = pytest.importorskip("raytpu.lint")

ROOT = Path(__file__).parents[2]
FILES = [*sorted(ROOT.glob("k8s/rendered/*.yaml")), ROOT / "k8s/base/raycluster.yaml"]


@cache
def crds() -> Any:
    files = sorted(FOLDER.glob("*.yaml")) if FOLDER.is_dir() else []
    wanted = [file for file in files if not file.name.startswith(("ray.io_raycron", "ray.io_rayserv"))]
    return lint.parse_custom_resources([(file.name, file.read_text(encoding="utf-8")) for file in wanted])


def objections(text: str, name: str) -> list[str]:
    """Errors and warnings; an info only says what nobody can know from the file alone."""
    found = lint.lint_text(text, file=name, crds=crds())
    return [str(finding) for finding in found if finding.severity != lint.Severity.INFO]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_manifest_of_the_project_has_no_findings(file: Path) -> None:
    """Who copies it would begin with a warning."""
    assert objections(file.read_text(encoding="utf-8"), file.name) == []


@pytest.mark.parametrize("kind", ["RayJob", "RayCluster"])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_what_is_rendered_has_no_findings(generation: str, kind: Kind) -> None:
    """One of the two would be wrong about the same hardware."""
    shapes = [slice_shapes(generation)[0], next(s for s in slice_shapes(generation) if s.hosts > 1)]
    texts = [render(of_shape(shape, count), kind).text for shape in shapes for count in (1, 2, 3, 4)]

    assert [each for text in texts for each in objections(text, f"{generation}.yaml")] == []
