from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from raytpu.cli.main import exit_code_of

DOCUMENT = """\
name: tiny
slices: {generation: v6e, topology: 4x4, count: 2}
train: {entrypoint: "mine.own:train"}
checkpoint: {path: "gs://mine/runs", every_steps: 50}
cluster: {image: "mine/raytpu:1"}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(DOCUMENT, encoding="utf-8")
    return str(path)


def test_a_job_is_printed_and_nothing_else(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is piped into kubectl. The train function need not be on this machine."""
    assert exit_code_of(["render", file]) == 0

    printed = capsys.readouterr()
    kinds = [document["kind"] for document in yaml.safe_load_all(printed.out)]
    assert kinds == ["ConfigMap", "PodDisruptionBudget", "RayJob"]
    assert printed.err == ""


@pytest.mark.parametrize(("kind", "word"), [("RayCluster", "kind: RayCluster"), ("node-pools", "gcloud")])
def test_another_kind_is_printed_on_request(
    file: str, kind: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(["render", file, "--kind", kind]) == 0

    assert word in capsys.readouterr().out


def test_a_folder_gets_all_that_a_job_needs_and_no_second_cluster(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`kubectl apply -f FOLDER` with a RayCluster in it would bring up every slice twice."""
    folder = tmp_path / "a" / "b"
    code = exit_code_of(["render", file, "--output-dir", str(folder), "--set", "cluster.queue.name=q"])

    names = ["tiny.kueue.yaml", "tiny.node-pools.sh", "tiny.rayjob.yaml"]
    assert code == 0
    assert sorted(path.name for path in folder.iterdir()) == names
    assert sorted(capsys.readouterr().out.split()) == [str(folder / name) for name in names]


REFUSED = {
    "no cluster": (["cluster=null"], ["no cluster section", "--set cluster.image="]),
    "a folder of a pod": (["checkpoint.path=/runs"], ["checkpoint.path /runs", "gs://"]),
    "a folder beside the bucket's": (
        ["checkpoint.path=/gcsx/runs", "cluster.gcsfuse={bucket: mine}", "cluster.service_account=me"],
        ["checkpoint.path /gcsx/runs", "below /gcs"],
    ),
    "no queue": ([], ["waits in no queue", "cluster.queue"]),
    "more shared memory than memory": (["cluster.shared_memory=2Ti"], ["2Ti", "536 GiB", "ct6e-standard-4t"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_rendered_is_refused_with_what_to_write(
    case: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Applied, each of these would be found out in a pod, after slices have been paid for."""
    settings, words = REFUSED[case]
    kind = "Kueue" if case == "no queue" else "RayJob"
    options = [word for each in settings for word in ("--set", each)]

    assert exit_code_of(["render", file, "--kind", kind, *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert all(word in printed.err for word in words), printed.err


def test_a_folder_that_cannot_be_written_is_named(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(["render", file, "--output-dir", "/proc/raytpu"]) == 2

    assert "--output-dir /proc/raytpu" in capsys.readouterr().err
