"""``raytpu schema``: the JSON Schema of the workload document."""

from __future__ import annotations

import json

import typer


def schema() -> None:
    """Print the JSON Schema of workload files, for editors.

    Save it with `raytpu schema > workload.schema.json` and name it on the first line of a file:
    # yaml-language-server: $schema=workload.schema.json
    """
    from raytpu.spec import workload_schema

    typer.echo(json.dumps(workload_schema(), indent=2, ensure_ascii=False))
