"""Generation, topology, chips and hosts: every published shape passes, and what does not agree is told."""

from __future__ import annotations

import pytest

from raytpu.lint import Catcher, Finding, lint_text
from raytpu.topology import GENERATIONS, slice_shapes
from tests.lint.manifests import V6E, cluster, serious


def wrong(text: str) -> list[Finding]:
    return serious(lint_text(text))


def test_every_published_shape_passes() -> None:
    """Each shape that fails here is a slice that somebody cannot use."""
    for shape in slice_shapes():
        label = GENERATIONS[shape.generation].gke_accelerator
        assert wrong(cluster(label, shape.topology, shape.hosts, shape.chips_per_host)) == [], str(shape)


@pytest.mark.parametrize(
    ("accelerator", "topology", "hosts", "chips", "fix", "layer"),
    [
        ("tpu-v6e-slice", "4x4", 2, 4, "numOfHosts: 4", Catcher.WEBHOOK),
        ("tpu-v6e-slice", "4x4", 2, 8, "google.com/tpu: 4", Catcher.NOBODY),
        ("tpu-v6e-slice", "2x4", 2, 8, "numOfHosts: 1", Catcher.WEBHOOK),
        ("tpu-v6e-slice", "2x4", 1, 4, "numOfHosts: 2", Catcher.WEBHOOK),
        ("tpu-v6e-slice", "2x8", 4, 4, "gke-tpu-topology: 4x4", Catcher.NOBODY),
        ("tpu-v6e-slice", "2x2x4", 4, 4, "tpu-v5p-slice", Catcher.NOBODY),
        ("tpu-v5p-slice", "4x4", 4, 4, "gke-tpu-topology: 2x2x4", Catcher.NOBODY),
        ("tpu-v5p-slice", "4x2x2", 4, 4, "gke-tpu-topology: 2x2x4", Catcher.NOBODY),
        ("v5litepod", "4x4", 4, 4, "tpu-v5-lite-podslice", Catcher.NOBODY),
        ("tpu-v7x-slice", "2x2x2", 2, 4, "tpu7x", Catcher.NOBODY),
        ("4x4", "tpu-v6e-slice", 4, 4, "gke-tpu-accelerator: tpu-v6e-slice", Catcher.WEBHOOK),
        ("tpu-v6e-slice", "4 x 4", 4, 4, "gke-tpu-topology", Catcher.WEBHOOK),
    ],
)
def test_what_does_not_agree_is_told_with_what_to_write(
    accelerator: str, topology: str, hosts: int, chips: int, fix: str, layer: Catcher
) -> None:
    """The layer is whether the webhook's division happens to come out."""
    found = wrong(cluster(accelerator, topology, hosts, chips))

    assert any(fix in each.fix and each.caught_by is layer for each in found), found


def test_hosts_written_as_replicas_are_recognised() -> None:
    """The commonest slip: replicas counts slices."""
    found = wrong(V6E.replace("numOfHosts: 4", "numOfHosts: 1").replace("replicas: 1", "replicas: 4"))

    assert [each.fix for each in found] == [
        "numOfHosts: 4, and replicas: 1: replicas counts slices, numOfHosts the hosts of one"
    ]


def test_a_refusal_inside_a_job_is_told_as_the_event_that_it_becomes() -> None:
    """`kubectl apply` says OK, and the RayJob stays Initializing."""
    lines = V6E.replace("HOSTS", "4").replace("numOfHosts: 4", "numOfHosts: 2").splitlines()
    nested = [f"  {line}" if line.startswith("  ") and "name: llm" not in line else line for line in lines]
    text = (
        "\n".join(nested)
        .replace("kind: RayCluster", "kind: RayJob")
        .replace("spec:", "spec:\n  rayClusterSpec:", 1)
    )

    found = wrong(text)

    assert [(each.path, each.caught_by) for each in found] == [
        ("spec.rayClusterSpec.workerGroupSpecs[0].numOfHosts", Catcher.WEBHOOK)
    ]
    assert "FailedToCreateRayCluster" in found[0].when


@pytest.mark.parametrize(
    ("image", "accelerator", "topology", "tells"),
    [
        ("rayproject/ray:2.37.0", "tpu-v6e-slice", "4x4", True),
        ("rayproject/ray:2.38.0-py311", "tpu-v6e-slice", "4x4", False),
        ("us-docker.pkg.dev/me/rayproject/ray-ml:2.53.0", "tpu7x", "2x2x4", True),
        ("rayproject/ray:nightly", "tpu7x", "2x2x4", False),
        ("me/trainer:1.0.0", "tpu7x", "2x2x4", False),
        ("rayproject/ray@sha256:2.0", "tpu7x", "2x2x4", False),
    ],
)
def test_an_image_older_than_the_generation_is_told(
    image: str, accelerator: str, topology: str, tells: bool
) -> None:
    """Such a Ray shows no TPU resource, and jobs wait without a reason."""
    found = wrong(cluster(accelerator, topology, 4, 4).replace("rayproject/ray:2.60.0", image))

    assert [each.rule for each in found] == (["ray-too-old"] if tells else [])


def test_names_that_outgrow_a_hostname_are_told_with_the_limit() -> None:
    """The group's name, the slice's and the host's number make a hostname of at most 63 characters."""
    found = wrong(V6E.replace("groupName: tpu", f"groupName: {'g' * 58}"))

    assert [each.rule for each in found] == ["group-name"]
    assert "at most 57 characters" in found[0].fix
    assert wrong(V6E.replace("groupName: tpu", f"groupName: {'g' * 57}")) == []


def test_an_info_is_said_once_a_file() -> None:
    """Each group names the same service account."""
    pod = "        serviceAccountName: trainer\n        nodeSelector:"
    text = V6E.replace("        nodeSelector:", pod)
    text = text.replace(
        "      spec:\n        containers:",
        "      spec:\n        serviceAccountName: trainer\n        containers:",
        1,
    )

    assert text.count("serviceAccountName") == 2
    assert [each.rule for each in lint_text(text) if "trainer" in each.what] == ["live"]


def test_a_comment_on_the_line_silences_a_rule_there_and_nowhere_else() -> None:
    """Without it one false alarm makes a team drop the check."""
    text = V6E.replace("numOfHosts: 4", "numOfHosts: 2  # raytpu: ignore=tpu-hosts")

    assert wrong(text) == []
    assert wrong(text.replace("tpu-hosts", "tpu-chips")) != []


def test_what_a_template_leaves_open_is_not_judged() -> None:
    """envsubst fills in the shape later."""
    assert wrong(V6E.replace("tpu-v6e-slice", "'${ACCELERATOR}'")) == []


@pytest.mark.parametrize(
    ("old", "new", "fix"),
    [
        ("ray.io/v1", "ray.io/v1alpha1", "apiVersion: ray.io/v1"),
        ("ray.io/v1", "ray.io/v2", "apiVersion: ray.io/v1"),
        ("kind: RayCluster", "kind: RayClusters", "kind: RayCluster"),
        ("name: llm", "labels: {a: b}", "my-cluster"),
        ("groupName: tpu", "groupName: TPU", "groupName: tpu"),
        ("cpu: 4", "cpu: 4, memory: 40GB", ""),
    ],
)
def test_kinds_versions_and_names_are_checked_without_a_crd(old: str, new: str, fix: str) -> None:
    """These need no schema."""
    if fix:
        assert any(fix in each.fix for each in wrong(V6E.replace(old, new)))
