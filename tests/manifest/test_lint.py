"""raytpu's own linter has nothing against raytpu's own manifests."""

from __future__ import annotations

from pathlib import Path

import pytest

from raytpu.lint import lint_text
from raytpu.manifest import Kind, render
from raytpu.topology import GENERATIONS, slice_shapes
from tests.lint.manifests import known_crds, serious
from tests.manifest.workloads import of_shape

ROOT = Path(__file__).parents[2]
KINDS = ("RayCluster", "RayJob", "ClusterQueue", "LocalQueue", "ResourceFlavor", "AdmissionCheck")
FILES = [*sorted(ROOT.glob("k8s/rendered/*.yaml")), ROOT / "k8s/base/raycluster.yaml"]


def objections(text: str, name: str) -> list[str]:
    """Errors and warnings; an info only says what nobody can know from the file alone."""
    return [str(finding) for finding in serious(lint_text(text, file=name, crds=known_crds(KINDS)))]


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
