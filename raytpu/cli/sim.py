"""``raytpu sim up/down/status``: simulated TPU slices on this machine that outlive one command."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from raytpu.cli.home import raytpu_home
from raytpu.cli.workload_file import read_workload
from raytpu.errors import Refused, WrongRequest

if TYPE_CHECKING:
    from raytpu.cluster import SimulationRecord
    from raytpu.spec import Slices

app = typer.Typer(
    help="Simulated TPU slices on this machine: up, down, status.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_HOST_STATES = ("up", "starting", "frozen", "lost", "failed")

Name = Annotated[str, typer.Option(help="Name of the simulation.")]
Output = Annotated[Literal["text", "json"], typer.Option(help="Text for a person, or JSON for a machine.")]


@app.command()
def up(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Workload document (YAML): its slices are brought up.",
            exists=True,
            dir_okay=False,
            readable=True,
            show_default=False,
        ),
    ] = None,
    generation: Annotated[
        str | None, typer.Option(help="Instead of FILE: v4, v5e, v5p, v6e or v7x.", show_default=False)
    ] = None,
    topology: Annotated[
        str | None, typer.Option(help="Instead of FILE: chips per axis, such as 2x4.", show_default=False)
    ] = None,
    chips_per_host: Annotated[
        int | None,
        typer.Option(help="Where a topology exists with several: v5e and v6e 2x4.", show_default=False),
    ] = None,
    count: Annotated[
        int | None, typer.Option(help="Number of slices, 1 if not given.", show_default=False)
    ] = None,
    name: Name = "default",
    dashboard: Annotated[
        bool,
        typer.Option("--dashboard", help="With Ray's dashboard: about 80 MB more a host, slower to start."),
    ] = False,
    output: Output = "text",
) -> None:
    """Bring up simulated slices, of a workload file or of a shape; they stay until `raytpu sim down`."""
    from raytpu.cluster import NodeOptions, start_detached

    slices = _wanted(file, generation, topology, chips_per_host, count)
    hosts = slices.count * slices.shape.hosts
    typer.echo(f"bringing up {_counted(hosts, 'simulated host')} …", err=True)
    began = time.monotonic()
    simulation = start_detached(
        slices, name=name, home=raytpu_home(), options=NodeOptions(dashboard=dashboard)
    )
    seconds = time.monotonic() - began
    state = simulation.state()
    if output == "json":
        typer.echo(json.dumps(_live_document(name, state), indent=2))
        return
    typer.echo(_live_text(name, state))
    typer.echo(f"up in {seconds:.1f} s")
    typer.echo(f"  run on it:  raytpu run {file or 'FILE'} --on sim:{name}")
    typer.echo(f"  stop it:    raytpu sim down{'' if name == 'default' else f' --name {name}'}")


@app.command()
def down(name: Name = "default", output: Output = "text") -> None:
    """Stop a simulation and clear away everything of it, also when its processes were killed."""
    from raytpu.cluster import stop

    stop(name, raytpu_home())
    if output == "json":
        typer.echo(json.dumps({"name": name, "state": "down"}))
    else:
        typer.echo(f"simulation {name} is down")


@app.command()
def status(
    name: Annotated[
        str | None, typer.Option(help="Only this simulation; else all of them.", show_default=False)
    ] = None,
    output: Output = "text",
) -> None:
    """Show the simulations on this machine with their slices and hosts, the dead ones included."""
    from raytpu.cluster import named_simulations

    records = [each for each in named_simulations(raytpu_home()) if name in (None, each.name)]
    if name is not None and not records:
        raise WrongRequest(f"no simulation {name!r}; `raytpu sim status` shows all there are")
    documents = [_document(record) for record in records]
    if output == "json":
        typer.echo(json.dumps({"simulations": documents}, indent=2))
    elif not documents:
        typer.echo("no simulation is up; start one with `raytpu sim up FILE`")
    else:
        typer.echo("\n\n".join(_text(each) for each in documents))


def _wanted(
    file: Path | None,
    generation: str | None,
    topology: str | None,
    chips_per_host: int | None,
    count: int | None,
) -> Slices:
    """Raises ``WrongRequest`` unless exactly one of a file and a shape is given."""
    from raytpu.spec import Slices

    shape = {"--generation": generation, "--topology": topology}
    given = [option for option, value in shape.items() if value is not None]
    given += [
        option
        for option, value in (("--chips-per-host", chips_per_host), ("--count", count))
        if value is not None
    ]
    if file is not None:
        if given:
            raise WrongRequest(f"the slices are those of {file}; leave out {', '.join(given)}, or the file")
        return read_workload(file, None).slices
    missing = [option for option, value in shape.items() if value is None]
    if missing:
        raise WrongRequest(
            f"which slices? missing: {', '.join(missing)}\n"
            "  give a workload file:  raytpu sim up FILE\n"
            "  or a shape:            raytpu sim up --generation v6e --topology 4x4\n"
            "  `raytpu topology` lists the shapes that exist"
        )
    return Slices(
        generation=str(generation),
        topology=str(topology),
        chips_per_host=chips_per_host,
        count=1 if count is None else count,
    )


def _document(record: SimulationRecord) -> dict[str, Any]:
    from raytpu.cluster import find

    try:
        with find(record.name, raytpu_home()) as simulation:
            return _live_document(record.name, simulation.state())
    except (WrongRequest, Refused):
        return {
            "name": record.name,
            "state": "stale",
            "address": record.address,
            "keeper_pid": record.keeper_pid,
            "directory": record.directory,
            "slices": [],
        }


def _live_document(name: str, state: dict[str, Any]) -> dict[str, Any]:
    hosts = [host for each in state["slices"] for host in each["hosts"]]
    head = state["head"]["state"]
    if head in ("lost", "failed"):
        word = "broken"
    elif head == "starting" or any(host["state"] == "starting" for host in hosts):
        word = "starting"
    else:
        word = "up"
    return {"state": word, **state, "name": name}


def _text(document: dict[str, Any]) -> str:
    if document["state"] == "stale":
        return (
            f"{document['name']}: stale, its keeper (process {document['keeper_pid']}) is gone; "
            f"clear it with: raytpu sim down --name {document['name']}"
        )
    return _live_text(document["name"], document)


def _live_text(name: str, state: dict[str, Any]) -> str:
    """The slices of one simulation, a line for each and one for every host that is not simply up."""
    word = state.get("state", "up")
    hosts = [host for each in state["slices"] for host in each["hosts"]]
    alive = sum(host["alive"] for host in hosts)
    lines = [
        f"{name}: {word}, Ray at {state['address'] or 'an address not known yet'}, "
        f"{_counted(len(state['slices']), 'slice')}, {alive} of {_counted(len(hosts), 'host')} alive"
    ]
    if state.get("dashboard_url"):
        lines.append(f"  dashboard: http://{state['dashboard_url']}")
    if word == "broken":
        lines.append(f"  its head ended ({state['head']['reason']}); raytpu sim down, then up again")
    for each in state["slices"]:
        size = f"{_counted(len(each['hosts']), 'host')} × {each['chips_per_host']} chips"
        shape = f"{each['generation']} {each['topology']}, {size}"
        lines.append(f"  {each['name']}  {shape}: {_states(each['hosts'])}")
        lines += [
            f"    host {worker_id} at {host['ip']}: {host['state']}"
            + (f" ({host['reason']})" if host["reason"] else "")
            for worker_id, host in enumerate(each["hosts"])
            if host["state"] != "up" or host["reason"]
        ]
    return "\n".join(lines)


def _states(hosts: Sequence[dict[str, Any]]) -> str:
    """Such as ``3 up, 1 lost``."""
    count = Counter(host["state"] for host in hosts)
    return ", ".join(f"{count[state]} {state}" for state in _HOST_STATES if count[state])


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
