"""What ``raytpu sim`` refuses before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from raytpu.cli.sim import app
from raytpu.errors import SpecError, WrongRequest


def refusal(*arguments: str) -> BaseException:
    result = CliRunner().invoke(app, arguments)
    assert result.exception is not None, result.output
    return result.exception


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTPU_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "missing: --generation, --topology"),
        (("--generation", "v6e"), "missing: --topology"),
        (("--generation", "v6e", "--topology", "2x4"), "chips_per_host"),
        (("--generation", "v6e", "--topology", "4x5"), "'4x5' does not exist on v6e"),
        (("--generation", "v6e", "--topology", "4x4", "--count", "0"), "count: expected at least 1"),
        (("--generation", "v6e", "--topology", "4x4", "--name", "../x"), "expected at most 40 letters"),
    ],
)
def test_slices_that_cannot_be_are_refused(arguments: tuple[str, ...], message: str) -> None:
    """With the next step, before a process is started."""
    error = refusal("up", *arguments)

    assert isinstance(error, SpecError | WrongRequest)
    assert message in str(error)


def test_a_file_and_a_shape_together_are_refused(tmp_path: Path) -> None:
    """One of them would be ignored."""
    file = tmp_path / "w.yaml"
    file.write_text("name: x")

    error = refusal("up", str(file), "--generation", "v6e", "--count", "2")

    assert "leave out --generation, --count, or the file" in str(error)


def test_a_simulation_that_is_not_up_cannot_be_shown_or_stopped() -> None:
    """A typo in --name must not look like success."""
    assert "no simulation 'x'" in str(refusal("status", "--name", "x"))
    assert "no simulation 'default'" in str(refusal("down"))


def test_no_simulation_is_no_error() -> None:
    """The first thing a newcomer tries."""
    result = CliRunner().invoke(app, ["status"])

    assert result.exit_code == 0
    assert "no simulation is up" in result.stdout
