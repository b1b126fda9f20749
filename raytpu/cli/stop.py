"""``raytpu stop RUN``: end a run, attached or detached."""

from __future__ import annotations

from typing import Annotated

import typer

from raytpu.cli.home import raytpu_home


def stop(
    reference: Annotated[
        str, typer.Argument(metavar="RUN", help="Name of a run, its directory, or its workload file.")
    ],
    reason: Annotated[str, typer.Option(help="Recorded with the run.")] = "raytpu stop",
    deadline: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for its end.")] = 60.0,
) -> None:
    """End a run and free its slices. Run its file again to go on from the newest durable checkpoint."""
    from raytpu.launch.stop import stop_run
    from raytpu.record import find_run
    from raytpu.record.storage import join_url

    directory = find_run(reference, join_url(raytpu_home(), "runs"))
    stop_run(directory, reason=reason, deadline_s=deadline)
    typer.echo(f"{directory.run}: stopped")
