"""``raytpu lint``: text, JSON and SARIF, exit codes, and where CRDs come from."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from raytpu.cli.lint import lint
from raytpu.errors import Refused, WrongRequest
from tests.lint.manifests import V6E
from tests.lint.test_schema import SPEC

WRONG = V6E.replace("numOfHosts: 4", "numOfHosts: 2")
DOUBTFUL = V6E.replace("replicas: 1", "replicas: 5")


@pytest.fixture(autouse=True)
def no_crds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAYTPU_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RAYTPU_CRDS", raising=False)


def invoke(*arguments: str, piped: str = "") -> Result:
    app = typer.Typer()
    app.command()(lint)
    return CliRunner().invoke(app, arguments, input=piped)


def cluster_crd() -> dict[str, object]:
    """A CRD that knows `spec.hosts` and little else."""
    version = {
        "name": "v1",
        "served": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": SPEC}}},
    }
    spec = {"group": "ray.io", "names": {"kind": "RayCluster"}, "versions": [version]}
    return {"metadata": {"name": "rayclusters.ray.io"}, "spec": spec}


def test_text_has_a_place_the_words_to_write_and_who_would_have_told() -> None:
    """Editors and terminals make a link of `file:line:`."""
    result = invoke("-", piped=WRONG)

    assert result.exit_code == 5
    assert result.stdout.splitlines() == [
        "-:18: error: spec.workerGroupSpecs[0].numOfHosts: a slice v6e 4x4 is 4 hosts of 4 chips, but "
        "numOfHosts is 2 [tpu-hosts]",
        "    write: numOfHosts: 4",
        "    the TPU webhook would tell: it refuses the creation with “Number of workers in worker group not "
        "equal to specified topology”; a change of a running cluster it does not see",
        "-:1: info: the schema of RayCluster was not checked: no CRD was given [schema-unknown]",
        "    write: raytpu lint --crds DIR (or RAYTPU_CRDS), with what `kubectl get crd -o yaml` prints",
    ]
    assert result.stderr == "raytpu: 1 file: 1 error, 0 warnings, 1 info\n"


def test_warnings_fail_only_when_strict() -> None:
    """A team decides when it is ready for warnings."""
    assert invoke("-", piped=V6E).exit_code == 0
    assert invoke("-", "--strict", piped=V6E).exit_code == 0
    assert invoke("-", piped=DOUBTFUL).exit_code == 0
    assert invoke("-", "--strict", piped=DOUBTFUL).exit_code == 5


def test_json_holds_every_finding_with_its_file(tmp_path: Path) -> None:
    """A folder is read to its leaves, in the order of names."""
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "wrong.yml").write_text(WRONG)
    (tmp_path / "a.yaml").write_text(DOUBTFUL)
    (tmp_path / "notes.txt").write_text("{")

    document = json.loads(invoke(str(tmp_path), "--output", "json").stdout)

    assert [document[key] for key in ("files", "errors", "warnings", "infos")] == [2, 1, 1, 3]
    assert {(each["file"], each["rule"], each["caught_by"]) for each in document["findings"]} >= {
        (str(tmp_path / "a.yaml"), "replicas", "nobody"),
        (str(tmp_path / "b" / "wrong.yml"), "tpu-hosts", "webhook"),
    }


def test_sarif_has_rule_level_and_line() -> None:
    """Code hosts show it beside the changed line."""
    log = json.loads(invoke("-", "--output", "sarif", piped=WRONG).stdout)

    run = log["runs"][0]
    first = next(each for each in run["results"] if each["ruleId"] == "tpu-hosts")
    assert log["version"] == "2.1.0"
    assert run["tool"]["driver"]["rules"][first["ruleIndex"]] == {"id": "tpu-hosts"}
    assert first["level"] == "error"
    assert first["locations"][0]["physicalLocation"]["region"] == {"startLine": 18}
    assert "Write: numOfHosts: 4." in first["message"]["text"]


@pytest.mark.parametrize("name", ["none.yaml", "empty"])
def test_what_is_not_there_is_a_wrong_request(name: str, tmp_path: Path) -> None:
    """A misspelt path in CI must not pass as a file without mistakes."""
    (tmp_path / "empty").mkdir()

    assert isinstance(invoke(str(tmp_path / name)).exception, WrongRequest)
    assert isinstance(invoke("-", "--crds", str(tmp_path / name), piped=V6E).exception, WrongRequest)


@pytest.mark.parametrize("where", ["option", "variable", "cache"])
def test_crds_are_found(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema tells of fields that do not exist."""
    folder = tmp_path / "home" / "crds" if where == "cache" else tmp_path / "crds"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text(json.dumps({"kind": "CustomResourceDefinition", **cluster_crd()}))
    if where == "variable":
        monkeypatch.setenv("RAYTPU_CRDS", str(folder))
    option = ["--crds", str(folder)] if where == "option" else []

    assert "there is no field workerGroupSpecs here" in invoke("-", *option, piped=V6E).stdout


@pytest.fixture
def api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """An API server that kubectl's configuration names; what it answers may be changed."""
    answer: dict[str, object] = {"status": 200, "body": {"items": [cluster_crd()]}}

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer["asked"] = self.path
            self.send_response(int(str(answer["status"])))
            self.end_headers()
            self.wfile.write(json.dumps(answer["body"]).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "me", "user": {}}],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config")
    )
    yield answer
    server.shutdown()
    server.server_close()


def test_crds_of_the_cluster_are_read_and_kept(api_server: dict[str, object]) -> None:
    """Read once with the cluster's rights, they serve offline and in hooks."""
    first = invoke("-", "--crds", "cluster", piped=V6E)
    api_server["status"] = 500
    later = invoke("-", piped=V6E)

    assert api_server["asked"] == "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert "there is no field workerGroupSpecs here" in first.stdout
    assert later.stdout == first.stdout


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (403, {}, Refused, "may not list CRDs"),
        (500, {}, Refused, "answers 500"),
        (200, {"items": []}, WrongRequest, "no CRD of ray.io"),
    ],
)
def test_a_cluster_that_gives_no_crds_is_told(
    api_server: dict[str, object], status: int, body: object, error: type[Exception], words: str
) -> None:
    """Going on without a schema would pass what was asked to be checked."""
    api_server |= {"status": status, "body": body}

    result = invoke("-", "--crds", "cluster", piped=V6E)

    assert isinstance(result.exception, error)
    assert words in str(result.exception)
