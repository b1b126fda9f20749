"""``raytpu run FILE``: train a workload to its end."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from raytpu.cli.home import raytpu_home
from raytpu.cli.workload_file import Overrides, WorkloadFile, read_workload
from raytpu.errors import WrongRequest

if TYPE_CHECKING:
    from raytpu.launch.run import RunOptions
    from raytpu.record import RunDirectory
    from raytpu.spec import Workload


def run(
    file: WorkloadFile,
    on: Annotated[
        str,
        typer.Option(
            metavar="sim|sim:NAME|auto|HOST:PORT",
            help="Where: simulated slices brought up for this run alone, those of `raytpu sim up`, the "
            "cluster that RAY_ADDRESS or this machine names, or an address.",
        ),
    ] = "sim",
    set_: Overrides = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin anew; what the run has done before is kept beside it.")
    ] = False,
    detach: Annotated[
        bool,
        typer.Option("--detach", help="Let the driver live in the cluster; this command returns at once."),
    ] = False,
    output: Annotated[
        Literal["text", "json"], typer.Option(help="Summary for a person, or JSON for a machine.")
    ] = "text",
) -> None:
    """Run a workload. Run the same file again to go on from its newest durable checkpoint.

    When this command ends, in any way, its hosts and slices are freed (unless --detach).
    """
    workload = read_workload(file, set_)
    if detach and on == "sim":
        raise WrongRequest(
            "--detach needs a cluster that outlives this command, and --on sim brings one up for it alone\n"
            f"  start one with `raytpu sim up {file}`, then: raytpu run {file} --detach --on auto"
        )
    from raytpu.launch.run import RunOptions

    options = RunOptions(on=on, home=raytpu_home(), environment=dict(os.environ), fresh=fresh)
    if detach:
        _run_detached(workload, options)
    else:
        _run_attached(workload, options, output)


def _run_attached(workload: Workload, options: RunOptions, output: str) -> None:
    from dataclasses import replace

    from raytpu.cli.progress import RunProgress
    from raytpu.errors import RunFailed
    from raytpu.launch.run import run as run_workload
    from raytpu.launch.run import run_directory
    from raytpu.plan import WorkloadPlan, explain_plan

    def say_where() -> None:
        if options.on == "sim":
            typer.echo("bringing up simulated slices …", err=True)

    def show_plan(planned: WorkloadPlan) -> None:
        typer.echo(explain_plan(planned), err=True, nl=False)

    directory = run_directory(workload, fresh=options.fresh)
    steps = workload.train.config.get("steps")
    with RunProgress(steps=steps if isinstance(steps, int) else None) as progress:
        try:
            finished = run_workload(
                workload, replace(options, connecting=say_where, planned=show_plan, progress=progress.show)
            )
        except (RunFailed, KeyboardInterrupt):
            progress.close()
            _summarise(directory, output="text", err=True)
            raise
    if finished.result is None:
        typer.echo(
            f"{workload.name} is finished already; raise train.config.steps to go on, or use --fresh",
            err=True,
        )
    _summarise(directory, output=output, err=False)


def _summarise(directory: RunDirectory, output: str, *, err: bool) -> None:
    from raytpu.record import read_events, render_summary, summarise, summary_document

    events = read_events(directory)
    if not events:  # it ended before the run began
        return
    summary = summarise(events)
    if output == "json":
        typer.echo(json.dumps(summary_document(summary), indent=2), err=err)
    else:
        typer.echo(render_summary(summary), err=err)


def _run_detached(workload: Workload, options: RunOptions) -> None:
    from dataclasses import replace

    from raytpu.launch.checks import check_request
    from raytpu.launch.connect import connected, search_path
    from raytpu.launch.detached import start_detached
    from raytpu.launch.run import run_directory

    check_request(workload, run_directory(workload, fresh=options.fresh))
    with connected(
        options.on, workload.slices, home=options.home, environment=options.environment or {}
    ) as address:
        driver = start_detached(workload, replace(options, environment=None), search_path())
    name = workload.name
    typer.echo(f"{name}: detached; its driver is {driver['actor']}, process {driver['pid']}, in {address}")
    typer.echo(f"  raytpu status {name}    raytpu logs {name} --follow    raytpu stop {name}")
