"""The ``raytpu`` command: registers each command, and is the one place where errors become exit codes.

====  =======================================================================================
 0    done
 1    a bug of raytpu's; the traceback is kept
 2    a wrong request: bad file, unknown option, unreadable data, a checkpoint of another model
 3    does not fit, or is refused now
 4    a run that failed, or was stopped; a damaged checkpoint
 5    findings of lint, check or doctor
130   Ctrl-C
141   whoever read the output has left (`| head`)
====  =======================================================================================
"""

from __future__ import annotations

import os
import sys

import typer

from raytpu.cli.checkpoints import checkpoints
from raytpu.cli.explain import explain
from raytpu.cli.lint import lint
from raytpu.cli.logs import logs
from raytpu.cli.plan import plan
from raytpu.cli.render import render
from raytpu.cli.run import run
from raytpu.cli.schema import schema
from raytpu.cli.sim import app as sim_app
from raytpu.cli.slices import app as slices_app
from raytpu.cli.status import status
from raytpu.cli.stop import stop
from raytpu.cli.topology import topology
from raytpu.errors import RaytpuError, interrupt_behind

app = typer.Typer(
    name="raytpu",
    help="JAX workloads on Google TPU slices: held whole, watched whole, replaced whole.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's markup costs 0.1 s at start-up, and brackets in help texts
)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"raytpu {version_of('raytpu')}")
        raise typer.Exit


for command in (run, plan, render, lint, status, checkpoints, explain, logs, stop, topology, schema):
    app.command()(command)
app.add_typer(slices_app, name="slices")
app.add_typer(sim_app, name="sim")


INTERRUPTED, NOBODY_READS = 130, 141
"""As a shell tells of a process that SIGINT or SIGPIPE has ended."""


def main() -> None:
    """Entry point of the console script."""
    raise SystemExit(exit_code_of(sys.argv[1:]))


def exit_code_of(arguments: list[str]) -> int:
    """Run one command line and return its exit code. Errors raised on purpose become a message."""
    try:
        code = _exit_code_of(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS
    return code


def _exit_code_of(arguments: list[str]) -> int:
    try:
        app(arguments)
    except SystemExit as end:  # typer's way to end, with 2 for usage errors and 130 for Ctrl-C
        if isinstance(end.__context__, BrokenPipeError):  # typer makes 1 of it
            raise end.__context__ from None
        if isinstance(end.code, str):
            typer.echo(end.code, err=True)
            return 1
        return end.code or 0
    except RaytpuError as error:
        typer.echo("\n".join((f"raytpu: {error}", *getattr(error, "__notes__", ()))), err=True)
        return error.exit_code
    except ImportError as error:  # by Ctrl-C, while a command imports what it needs
        if interrupt_behind(error) is None:
            raise
        return INTERRUPTED
    return 0
