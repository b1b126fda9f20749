"""``raytpu explain RUN``: why it waits, what it holds, how it ended; of a file: whether it fits."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from raytpu.cli.home import raytpu_home
from raytpu.cli.workload_file import Overrides, read_workload
from raytpu.errors import Refused, WrongRequest


def explain(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE",
            help="Name of a run or of whoever holds or waits, id of a lease, or a workload file.",
        ),
    ],
    on: Annotated[
        str,
        typer.Option(
            metavar="auto|sim:NAME|HOST:PORT",
            help="Where: the cluster that RAY_ADDRESS, the simulation that is up, or this machine names, the "
            "slices of `raytpu sim up`, or an address.",
        ),
    ] = "auto",
    set_: Overrides = None,
    output: Annotated[
        Literal["text", "json"], typer.Option(help="Text for a person, or JSON for a machine.")
    ] = "text",
) -> None:
    """Say why a run waits for slices, or what it holds: one sentence, a line for each slice, the next step.

    Of a workload file that no run is of yet: whether it would get its slices now. Exit code 3 if not.
    """
    from raytpu.launch.explain import explain_run, explain_workload
    from raytpu.plan.why_pending import explanations_document, render_explanations

    home, file = raytpu_home(), _file(reference)
    if file is not None:
        answer = explain_workload(read_workload(file, set_), on, home=home, environment=os.environ)
    elif set_:
        raise WrongRequest(f"--set changes a workload file, and {reference!r} is none")
    else:
        answer = explain_run(reference, on, home=home, environment=os.environ)
    if output == "json":
        typer.echo(json.dumps(explanations_document(answer.explanations), indent=2))
    else:
        typer.echo(render_explanations(answer.explanations))
    if not answer.fits:
        raise typer.Exit(Refused.exit_code)


def _file(reference: str) -> Path | None:
    """The workload file that is meant, as `raytpu status` tells them from names; it may be missing."""
    path = Path(reference)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise WrongRequest(f"no workload file {reference}")
        return path
    return path if "/" in reference and path.is_file() else None
