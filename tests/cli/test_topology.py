from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner, Result

from raytpu.cli.topology import topology
from raytpu.errors import SpecError, TopologyError
from raytpu.topology import render_host_grid, slice_shape, slice_shapes


def invoke(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(topology)
    return CliRunner().invoke(app, arguments)


def test_without_arguments_every_shape_is_listed() -> None:
    """The list is where a person looks a shape up before writing a file."""
    result = invoke()

    assert result.exit_code == 0, result.output
    rows = [
        line.split() for line in result.stdout.splitlines() if line.startswith("  ") and "CHIPS" not in line
    ]
    assert [(row[0], row[1]) for row in rows] == [(s.topology, s.accelerator_name) for s in slice_shapes()]


def test_a_generation_lists_its_own_shapes() -> None:
    """A shape of another generation in the list would be copied into a file."""
    result = invoke("v5e")

    assert result.stdout.splitlines()[0] == (
        "v5e: a chip is one JAX device, 197 bf16 TFLOP/s, 16 GiB HBM at 819 GB/s, ICI 400 GB/s both ways"
    )
    assert len(result.stdout.splitlines()) == 2 + len(slice_shapes("v5e"))


def test_a_shape_is_drawn() -> None:
    """`raytpu topology v6e 4x4` answers which host sits where."""
    assert invoke("v6e", "4x4").stdout == render_host_grid(slice_shape("v6e", "4x4")) + "\n"


def test_a_shape_with_two_kinds_of_hosts_is_drawn_both_ways() -> None:
    """Showing one of them would make the choice for the user."""
    drawn = invoke("v6e", "2x4").stdout

    for chips_per_host in (8, 4):
        assert render_host_grid(slice_shape("v6e", "2x4", chips_per_host)) in drawn


def test_an_accelerator_name_is_drawn() -> None:
    """Consoles and quotas speak of v5p-32, not of 2x2x4."""
    assert invoke("v5p-32").stdout == render_host_grid(slice_shape("v5p", "2x2x4")) + "\n"


def test_json_holds_the_facts_and_the_shapes_that_were_asked_for() -> None:
    """Scripts read this; the drawing is not for them."""
    document = json.loads(invoke("v7x", "2x2x2", "--output", "json").stdout)

    [generation] = document["generations"]
    [shape] = generation["shapes"]
    assert generation["libtpu_name"] == "tpu7x"
    assert (shape["topology"], shape["hosts"], shape["devices"], shape["host_grid"]) == (
        "2x2x2",
        2,
        16,
        [1, 1, 2],
    )


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (("v6e", "4x4x4"), TopologyError, "v6e topologies have 2 axes"),
        (("tpu7x",), SpecError, "did you mean v7x?"),
        (("v5p-32", "2x2x4"), SpecError, "give either a name, or a generation and 2x2x4"),
    ],
)
def test_what_does_not_exist_is_said(arguments: tuple[str, ...], error: type[SpecError], says: str) -> None:
    """The command is used to find out what is wrong with a file, so it must say it at least as well."""
    caught = invoke(*arguments).exception

    assert isinstance(caught, error)
    assert says in str(caught)
