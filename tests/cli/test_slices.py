"""What ``raytpu slices`` refuses, and how it asks before it changes anything."""

from __future__ import annotations

import io
import sys

import pytest

from raytpu.cli.confirm import confirm
from raytpu.cli.main import exit_code_of
from raytpu.errors import Refused

NOBODY = "127.0.0.1:1"

COMMANDS = {
    "the table": ("slices",),
    "gc": ("slices", "gc", "--yes"),
    "quarantine": ("slices", "quarantine", "slice-0", "--reason", "sick", "--yes"),
    "release": ("slices", "release", "slice-0", "--yes"),
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTPU_HOME", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_cluster_that_is_not_there_is_said_at_once(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray itself tries for a minute, and says little."""
    assert exit_code_of([*command, "--on", NOBODY]) == 3

    assert f"nothing listens at {NOBODY}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [("slices", "--on", NOBODY, "gc"), ("slices", "gc", "--on", NOBODY)],
    ids=["before the subcommand", "after it"],
)
def test_the_cluster_may_be_named_before_or_after_the_subcommand(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """An option that is taken and ignored ends somebody's slices on another cluster."""
    assert exit_code_of(list(arguments)) == 3

    assert NOBODY in capsys.readouterr().err


WRONG = {
    "no such simulation": (("slices", "--on", "sim:nope"), "no simulation 'nope' is up"),
    "no address": (("slices", "--on", "nowhere"), "neither sim, sim:NAME, auto nor an address"),
    "no reason": (("slices", "quarantine", "slice-0", "--on", NOBODY), "--reason"),
    "no slice": (("slices", "release"), "SLICE"),
}


@pytest.mark.parametrize(("arguments", "says"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_request_says_what_is_wrong(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(list(arguments)) == 2

    assert says in capsys.readouterr().err


@pytest.mark.parametrize("answer", ["y\n", "Yes\n"])
def test_yes_is_yes(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))

    confirm("really?", yes=False)


@pytest.mark.parametrize("answer", ["n\n", "\n", "", "yesterday\n"])
def test_everything_else_is_no(
    answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script without a terminal gets an exit code, not a question that nobody answers."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))

    with pytest.raises(Refused, match="--yes confirms beforehand"):
        confirm("really?", yes=False)

    printed = capsys.readouterr()
    assert (printed.out, printed.err.strip()) == ("", "really? [y/N]")


def test_an_answer_given_beforehand_asks_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    confirm("really?", yes=True)

    assert capsys.readouterr().err == ""
