"""``raytpu status RUN``: what a run does, how far it is, and what to do next."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from raytpu.cli.home import raytpu_home

if TYPE_CHECKING:
    from raytpu.record import Driver, RunDirectory


def status(
    reference: Annotated[
        str, typer.Argument(metavar="RUN", help="Name of a run, its directory, or its workload file.")
    ],
    output: Annotated[
        Literal["text", "json"], typer.Option(help="Text for a person, or JSON for a machine.")
    ] = "text",
) -> None:
    """Say what a run does, how far and how fast it is, where its time went, and what to do next."""
    from raytpu.launch.status import run_status
    from raytpu.record import find_run, render_summary
    from raytpu.record import summary_document as document_of
    from raytpu.record.storage import join_url

    found = run_status(find_run(reference, join_url(raytpu_home(), "runs")))
    directory, driver, alive = found.directory, found.driver, found.driver_alive
    if output == "json":
        document = document_of(found.summary)
        typer.echo(json.dumps({**document, **_where(directory, driver, alive)}, indent=2))
    else:
        typer.echo(render_summary(found.summary))
        typer.echo(f"  directory    {directory}")
        if driver is not None:
            typer.echo(f"  driver       {_driver_text(driver, alive, found.now_s)}")


def _where(directory: RunDirectory, driver: Driver | None, alive: bool) -> dict[str, Any]:
    from dataclasses import asdict

    known = None if driver is None else {**asdict(driver), "alive": alive}
    return {"directory": directory.url, "driver": known}


def _driver_text(driver: Driver, alive: bool, now_s: float) -> str:
    beat = f"last heartbeat {max(0.0, now_s - driver.heartbeat_s):.0f} s ago"
    return f"{driver}, {beat}" if alive else f"{driver} is gone, {beat}"
