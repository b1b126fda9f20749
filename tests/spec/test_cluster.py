"""The cluster section: every mistake is found in the file, before Kubernetes is asked."""

from __future__ import annotations

import pytest

from raytpu.spec import parse_workload
from tests.spec.documents import VALID, only_problem, problems

IMAGE = "us-docker.pkg.dev/mine/raytpu/raytpu:0.1.0"


def with_cluster(*fields: str) -> str:
    return VALID + "cluster:\n" + "".join(f"  {field}\n" for field in (f"image: {IMAGE}", *fields))


def test_a_cluster_needs_an_image_only() -> None:
    cluster = parse_workload(with_cluster()).cluster

    assert cluster is not None
    assert (cluster.namespace, cluster.auth, cluster.head.cpu) == ("default", "disabled", 4)


def test_a_workload_needs_no_cluster() -> None:
    """Simulated slices and existing clusters do not read it."""
    assert parse_workload(VALID).cluster is None


@pytest.mark.parametrize(
    ("field", "path", "words"),
    [
        ("imagee: x", "cluster.imagee", "did you mean image?"),
        ("max_slice: 3", "cluster.max_slice", "did you mean max_slices?"),
        ("bucket: mine", "cluster.bucket", "did you mean cluster.gcsfuse.bucket?"),
        ("namespace: My_Team", "cluster.namespace", "lower-case"),
        ("shared_memory: 64GB", "cluster.shared_memory", "such as 16Gi"),
        ("head: {memory: 40m}", "cluster.head.memory", "such as 16Gi"),
        ("auth: on", "cluster.auth", "'disabled' or 'token'"),
        ("spot: 'true'", "cluster.spot", "true or false"),
        ("queue: {name: Research}", "cluster.queue.name", "LocalQueue"),
        (
            "max_slices: 1",
            "cluster.max_slices",
            "fewer than a run holds: slices.count and recovery.spares are 2",
        ),
        ("{min_slices: 3, max_slices: 2}", "cluster.min_slices", "more than max_slices, which is 2"),
        ("{queue: {name: q}, max_slices: 4}", "cluster.queue", "fixed size"),
        ("{spot: true, grace_s: 60}", "cluster.grace_s", "25"),
        ("{spot: true, reservation: mine}", "cluster.reservation", "exclude each other"),
        ("{spot: true, queue: {name: q, flex_start: true}}", "cluster.queue", "exclude each other"),
        ("gcsfuse: {bucket: mine}", "cluster.service_account", "gcsfuse needs one"),
        (
            "{service_account: a, gcsfuse: {bucket: 'gs://mine'}}",
            "cluster.gcsfuse.bucket",
            "without gs://",
        ),
        (
            "{service_account: a, gcsfuse: {bucket: mine, mount_path: gcs}}",
            "cluster.gcsfuse.mount_path",
            "absolute",
        ),
        ("pre_running_deadline_s: 0", "cluster.pre_running_deadline_s", "at least 60"),
        ("backoff_limit: -1", "cluster.backoff_limit", "at least 0"),
    ],
)
def test_a_mistake_is_named_with_its_path_and_what_to_write(field: str, path: str, words: str) -> None:
    """Kubernetes reports most of these in an event of some object, after `kubectl apply` said OK."""
    fields = field.removeprefix("{").removesuffix("}") if field.startswith("{") else field
    text = VALID + "cluster: {image: " + f'"{IMAGE}", {fields}' + "}\n"

    problem = only_problem(text)

    assert problem.path == path
    assert words in problem.message
    assert problem.line == text.count("\n")


@pytest.mark.parametrize("image", ["raytpu", "mine/raytpu:1", "host:5000/a/b@sha256:" + "0" * 64])
def test_an_image_is_anything_that_can_be_pulled(image: str) -> None:
    assert problems(VALID + f'cluster: {{image: "{image}"}}\n') == []


@pytest.mark.parametrize("image", ["", "My/Raytpu", "raytpu latest", "gs://mine"])
def test_an_image_that_cannot_be_pulled_is_refused(image: str) -> None:
    """The kubelet would retry it for ever."""
    assert only_problem(VALID + f'cluster: {{image: "{image}"}}\n').path == "cluster.image"


def test_limits_are_checked_even_when_another_section_is_wrong() -> None:
    """One problem a run costs as many runs as there are problems."""
    text = with_cluster("max_slices: 1").replace("every_steps: 50", "every_steps: 0")

    assert {problem.path for problem in problems(text)} == {"checkpoint.every_steps", "cluster.max_slices"}
