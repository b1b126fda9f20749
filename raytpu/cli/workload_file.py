"""A workload file on the command line, with its overrides."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raytpu.errors import SpecError, WrongRequest

if TYPE_CHECKING:
    from raytpu.spec import Workload

WorkloadFile = Annotated[
    Path,
    typer.Argument(
        help="Workload document (YAML).", exists=True, dir_okay=False, readable=True, show_default=False
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override a field of the file, such as train.config.steps=20. May be repeated.",
    ),
]


def read_workload(file: Path, overrides: list[str] | None) -> Workload:
    """The workload in ``file``.

    Raises:
        WrongRequest: the current directory is gone.
        SpecError: the file is no text.
        WorkloadInvalid: every problem of the document and the overrides.
    """
    from raytpu.spec import parse_workload

    try:
        sys.path.insert(0, os.getcwd())  # the user's train module lies beside the workload
    except FileNotFoundError as error:
        raise WrongRequest("the current directory does not exist any more; go to another one") from error
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(f"{file}: not a UTF-8 text file ({error.reason} at byte {error.start})") from error
    return parse_workload(text, source=str(file), overrides=tuple(overrides or ()))
