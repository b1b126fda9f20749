"""How a command ends when something outside of it does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from raytpu.cli import main


@pytest.mark.parametrize("command", ["schema", "--version"])
def test_a_reader_that_has_left_ends_any_command_quietly(command: str):
    """`raytpu status RUN | true`: 1 is the code of a bug of raytpu's, and there is none."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        process = subprocess.run(
            [sys.executable, "-c", "from raytpu.cli.main import main; main()", command],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
        )
    finally:
        os.close(writer)

    assert (process.returncode, process.stderr) == (141, "")


def test_ctrl_c_that_a_package_has_made_an_import_error_of_is_ctrl_c(monkeypatch: pytest.MonkeyPatch):
    """numpy does it, and a traceback would blame a broken installation."""

    def interrupted(_: list[str]) -> None:
        try:
            raise KeyboardInterrupt
        except BaseException as interrupt:
            raise ImportError("the C-extensions failed") from interrupt

    monkeypatch.setattr(main, "app", interrupted)

    assert main.exit_code_of([]) == 130
