from __future__ import annotations

import json

import typer
from typer.testing import CliRunner

from raytpu.cli.schema import schema
from raytpu.spec import workload_schema


def test_the_schema_is_printed_as_json() -> None:
    """It is redirected into a file that an editor reads."""
    app = typer.Typer()
    app.command()(schema)
    result = CliRunner().invoke(app, [])

    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == workload_schema()
