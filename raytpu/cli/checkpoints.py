"""``raytpu checkpoints RUN``: what could be restored, and whether it is good."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from raytpu.cli.home import raytpu_home

DAMAGED = 4
"""Exit code when a checkpoint that counts is damaged. One under quarantine has been dealt with."""


def checkpoints(
    reference: Annotated[
        str, typer.Argument(metavar="RUN", help="Name of a run, its directory, or its workload file.")
    ],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file and compare checksums, not sizes alone.")
    ] = False,
    output: Annotated[
        Literal["text", "json"], typer.Option(help="Text for a person, or JSON for a machine.")
    ] = "text",
) -> None:
    """List the checkpoints of a run: step, state, size and time. Exit code 4 when one is damaged."""
    from raytpu.launch.checkpoints import checkpoints_document, checkpoints_of, checkpoints_text
    from raytpu.record import find_run
    from raytpu.record.storage import join_url

    directory = find_run(reference, join_url(raytpu_home(), "runs"))
    found = checkpoints_of(directory, verify=verify)
    if output == "json":
        typer.echo(json.dumps(checkpoints_document(directory, found, verify=verify), indent=2))
    else:
        typer.echo(checkpoints_text(directory, found, verify=verify))
    if any(rung.state == "damaged" for rung in found):
        raise typer.Exit(DAMAGED)
