"""Bad files: one clear message, exit code 2, no traceback, nothing left behind, no cluster brought up."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from raytpu.cli.main import exit_code_of

WORKLOAD = (Path(__file__).parents[2] / "deploy" / "workloads" / "stdlib-gpt.yaml").read_text()

BY_SETTING = {
    "an unknown key": (["slices.topolgy=2x4"], ["slices.topolgy", "did you mean topology?"]),
    "a topology of another generation": (["slices.topology=2x2x2"], ["2x2x2", "v6e"]),
    "an ambiguous topology": (["slices.chips_per_host=null"], ["chips_per_host", "4", "8"]),
    "a mesh that is not the slice": (["train.mesh.ici.fsdp=4"], ["train.mesh.ici", "4", "8 devices"]),
    "a mesh that is not the slices": (["train.mesh.dcn.replica=3"], ["train.mesh.dcn", "3", "2"]),
    "a batch that does not divide": (
        ["train.config.global_batch=30"],
        ["train.config.global_batch", "30", "16"],
    ),
    "a missing module": (["train.entrypoint=no.such:train"], ["train.entrypoint", "no module 'no'"]),
    "a missing function": (["train.entrypoint=raytpu.recipes.pretrain:trian"], ["did you mean 'train'?"]),
    "a misspelt setting of the recipe": (
        ["train.config.learning_rat=1"],
        ["train.config.learning_rat", "did you mean learning_rate?"],
    ),
    "an unknown model": (["train.config.model=gpt-nono"], ["gpt-nono", "gpt-nano"]),
    "data that is not there": (
        ["data.train={source: text, path: /nowhere/at/all}"],
        ["data.train", "/nowhere/at/all"],
    ),
    "a checkpoint path that cannot be written": (
        ["checkpoint.path=/proc/raytpu"],
        ["/proc/raytpu", "checkpoint.path"],
    ),
    "an override of nothing": (["train.config"], ["train.config", "="]),
}

BY_TEXT = {
    "no YAML": ("name: [", ["line"]),
    "an empty file": ("", ["got nothing"]),
    "a key twice": (WORKLOAD + "\nname: again\n", ["name", "twice"]),
    "several problems at once": (
        WORKLOAD.replace("topology: 2x4", "topology: 2x5").replace("every_steps: 50", "every_steps: 0"),
        ["2x5", "every_steps"],
    ),
}


def refused(file: Path, settings: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run the file, see that it is refused with one message and no trace, and return the message."""
    home, runs = file.parent / "home", file.parent / "runs"
    chosen = [f"checkpoint.path={runs}", *settings]
    os.environ["RAYTPU_HOME"] = str(home)
    arguments = ["run", str(file), "--fresh", *(word for each in chosen for word in ("--set", each))]
    code = exit_code_of(arguments)
    printed = capsys.readouterr()
    assert code == 2, printed.err
    assert printed.out == ""
    assert "Traceback" not in printed.err
    assert not runs.exists()
    assert not home.exists()
    return printed.err


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTPU_HOME", "unset by the test itself")


@pytest.mark.parametrize("case", BY_SETTING)
def test_a_bad_setting_is_refused_before_anything_starts(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found later, it costs a cluster start, or worse, a night."""
    settings, words = BY_SETTING[case]
    file = tmp_path / "workload.yaml"
    file.write_text(WORKLOAD)
    message = refused(file, settings, capsys)
    for word in words:
        assert word in message


@pytest.mark.parametrize("case", BY_TEXT)
def test_a_bad_document_is_refused_with_every_problem(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One problem a run costs as many runs as there are problems."""
    text, words = BY_TEXT[case]
    file = tmp_path / "workload.yaml"
    file.write_text(text)
    message = refused(file, [], capsys)
    for word in words:
        assert word in message, message
