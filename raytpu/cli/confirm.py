"""Ask a person before something is taken away."""

from __future__ import annotations

import sys

import typer

from raytpu.errors import Refused


def confirm(question: str, *, yes: bool) -> None:
    """Return when the answer is yes; ``yes`` is the answer given beforehand, with --yes.

    Raises:
        Refused: anything else was answered, or nobody is there to answer.
    """
    if yes:
        return
    typer.echo(f"{question} [y/N] ", nl=False, err=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        typer.echo(err=True)
    if answer.strip().lower() not in ("y", "yes"):
        raise Refused("not confirmed, so nothing was changed; --yes confirms beforehand")
