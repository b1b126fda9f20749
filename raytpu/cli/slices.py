"""``raytpu slices``: who has which slice and who waits; ``gc``, ``quarantine`` and ``release`` beside it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from raytpu.cli.confirm import confirm
from raytpu.cli.home import raytpu_home

if TYPE_CHECKING:
    from raytpu.launch.slices import Collected
    from raytpu.plan.ledger import Quarantine
    from raytpu.plan.slices_report import Orphan, SliceRow

app = typer.Typer(
    help="Show every slice with its holder, and the queue; or act on them: gc, quarantine, release.",
    invoke_without_command=True,
    rich_markup_mode=None,
)

On = Annotated[
    str | None,
    typer.Option(
        metavar="auto|sim:NAME|HOST:PORT",
        help="Where: the cluster that RAY_ADDRESS, the simulation that is up, or this machine names (auto, "
        "the default), the slices of `raytpu sim up`, or an address.",
        show_default=False,
    ),
]
Output = Annotated[
    Literal["text", "json"] | None,
    typer.Option(help="Text for a person (the default), or JSON for a machine.", show_default=False),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


@app.callback()
def slices(context: typer.Context, on: On = None, output: Output = None) -> None:
    """Show every slice: hosts alive, chips free, who has it and since when; then who waits for what."""
    context.obj = (on, output)
    if context.invoked_subcommand is not None:
        return
    from raytpu.launch.slices import slices_now
    from raytpu.plan.slices_report import slices_document
    from raytpu.plan.slices_text import render_slices

    report = slices_now(_where(context, None), home=raytpu_home(), environment=os.environ)
    _print(context, None, slices_document(report), render_slices(report))


@app.command()
def gc(context: typer.Context, on: On = None, yes: Yes = False, output: Output = None) -> None:
    """End what is held for owners that are gone: leases in their grace, and placement groups without one."""
    from raytpu.launch.slices import end_orphans
    from raytpu.plan.slices_report import orphans_document
    from raytpu.plan.slices_text import orphan_lines

    def ask(orphans: tuple[Orphan, ...], now_s: float) -> None:
        typer.echo("\n".join(orphan_lines(orphans, now_s)), err=True)
        confirm("end all of this?", yes=yes)

    collected = end_orphans(_where(context, on), ask, home=raytpu_home(), environment=os.environ)
    document = {"ended": orphans_document(collected.ended), "kept": orphans_document(collected.kept)}
    _print(context, output, document, _collected_text(collected))


@app.command()
def quarantine(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="SLICE", help="Name of the slice.")],
    reason: Annotated[str, typer.Option(help="Shown to everybody who would have got the slice.")],
    on: On = None,
    yes: Yes = False,
    output: Output = None,
) -> None:
    """Let nobody have a slice any more, until `raytpu slices release`; whoever holds it keeps it."""
    from raytpu.launch.slices import quarantine_slice

    def ask(row: SliceRow) -> None:
        held = " and ".join(holder.who for holder in row.holders)
        keeps = f" ({held} keeps it)" if held else ""
        confirm(f"put {name} under quarantine{keeps}?", yes=yes)

    quarantine_slice(name, reason, _where(context, on), ask, home=raytpu_home(), environment=os.environ)
    document = {"slice": name, "quarantined": reason}
    _print(context, output, document, f"{name}: under quarantine until `raytpu slices release {name}`")


@app.command()
def release(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="SLICE", help="Name of a slice under quarantine.")],
    on: On = None,
    yes: Yes = False,
    output: Output = None,
) -> None:
    """Lift the quarantine of a slice, once its cause is gone."""
    from raytpu.launch.slices import release_slice

    def ask(found: Quarantine) -> None:
        confirm(f"lift the quarantine of {name}, which is: {found.reason}?", yes=yes)

    release_slice(name, _where(context, on), ask, home=raytpu_home(), environment=os.environ)
    _print(context, output, {"slice": name, "quarantined": None}, f"{name}: can be had again")


def _where(context: typer.Context, on: str | None) -> str:
    """Given after the subcommand, or before it, or neither."""
    return on or context.obj[0] or "auto"


def _print(context: typer.Context, output: str | None, document: dict[str, Any], text: str) -> None:
    as_json = (output or context.obj[1] or "text") == "json"
    typer.echo(json.dumps(document, indent=2) if as_json else text)


def _collected_text(collected: Collected) -> str:
    lines = [f"ended {orphan.kind} {orphan.id} of {orphan.owner}" for orphan in collected.ended]
    lines += [
        f"left {orphan.kind} {orphan.id} of {orphan.owner}: its owner is back, or may still come back"
        for orphan in collected.kept
    ]
    return "\n".join(lines) or "nothing is held for owners that are gone"
