"""``raytpu plan FILE``: what would happen, without doing any of it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from raytpu.cli.home import raytpu_home
from raytpu.cli.workload_file import Overrides, WorkloadFile, read_workload

if TYPE_CHECKING:  # pydantic and the layers above cost start-up time that `raytpu --help` must not pay
    from raytpu.plan import Inventory
    from raytpu.spec import Workload


def plan(
    file: WorkloadFile,
    on: Annotated[
        str,
        typer.Option(
            metavar="sim|sim:NAME|auto|HOST:PORT",
            help="Where: simulated slices such as the file wants, those of `raytpu sim up`, the cluster "
            "that RAY_ADDRESS or this machine names, or an address.",
        ),
    ] = "sim",
    set_: Overrides = None,
    output: Annotated[
        Literal["text", "json"], typer.Option(help="Text for a person, or JSON for a machine.")
    ] = "text",
) -> None:
    """Explain what a workload would do: slices, hosts, mesh, batch, checkpoints. Nothing is started."""
    from raytpu.launch.checks import check_program
    from raytpu.plan import explain_plan, plan_document, plan_workload

    workload = read_workload(file, set_)
    check_program(workload)
    planned = plan_workload(workload, _inventory(workload, on))
    if output == "json":
        typer.echo(json.dumps(plan_document(planned), indent=2))
    else:
        typer.echo(explain_plan(planned), nl=False)


def _inventory(workload: Workload, on: str) -> Inventory:
    if on == "sim":
        from raytpu.plan import imagined_inventory

        return imagined_inventory(workload.slices)
    from raytpu.launch.inventory import live_inventory

    return live_inventory(on, home=raytpu_home(), environment=os.environ)
