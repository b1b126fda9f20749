"""``raytpu render FILE``: the workload as Kubernetes manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from raytpu.cli.workload_file import Overrides, WorkloadFile, read_workload


def render(
    file: WorkloadFile,
    kind: Annotated[
        Literal["RayJob", "RayCluster", "Kueue", "node-pools"] | None,
        typer.Option(
            help="RayJob: the run and its cluster (the default). RayCluster: a cluster that stays. Kueue: "
            "the objects of its queue. node-pools: gcloud commands for the nodes.",
            show_default=False,
        ),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Write files here instead of printing. Without --kind: the RayJob, the node pools and, with "
            "a queue, Kueue's objects.",
            show_default=False,
        ),
    ] = None,
    set_: Overrides = None,
) -> None:
    """Write the Kubernetes manifests of a workload: KubeRay on GKE, with all that TPU slices need.

    The workload needs a cluster section with an image. Nothing is sent to a cluster; the same file gives
    the same text.
    """
    from raytpu.manifest import render as render_kind
    from raytpu.manifest import render_all
    from raytpu.plan import plan_cluster

    plan = plan_cluster(read_workload(file, set_))
    if output_dir is None:
        typer.echo(render_kind(plan, kind or "RayJob").text, nl=False)
        return
    rendered = (render_kind(plan, kind),) if kind is not None else render_all(plan)
    for each in rendered:
        typer.echo(_write(output_dir, each.name, each.text))


def _write(folder: Path, name: str, text: str) -> Path:
    from raytpu.errors import StorageError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"--output-dir {folder}: cannot write {name}: {error.strerror or error}"
        ) from error
    return folder / name
