from __future__ import annotations

import re

import pytest

from raytpu.topology import SliceShape, render_host_grid, slice_shape, slice_shapes

V6E_4X4 = """\
v6e 4x4 (v6e-16): 16 chips, 16 devices, 4 hosts of 4 chips (2x2, ct6e-standard-4t)

┌────────┬────────┐
│ ■    ■ │ ■    ■ │
│ host 0 │ host 1 │
│ ■    ■ │ ■    ■ │
├────────┼────────┤
│ ■    ■ │ ■    ■ │
│ host 2 │ host 3 │
│ ■    ■ │ ■    ■ │
└────────┴────────┘

□ host   ■ chip   host grid 2x2; x to the right, y down"""

V7X_2X2X4 = """\
v7x 2x2x4 (v7x-32): 16 chips, 32 devices, 4 hosts of 4 chips (2x2x1, tpu7x-standard-4t)

z 0        z 1        z 2        z 3
┌──────┐   ┌──────┐   ┌──────┐   ┌──────┐
│ ■  ■ │   │ ■  ■ │   │ ■  ■ │   │ ■  ■ │
│  0   │   │  1   │   │  2   │   │  3   │
│ ■  ■ │   │ ■  ■ │   │ ■  ■ │   │ ■  ■ │
└──────┘   └──────┘   └──────┘   └──────┘

□ host   ■ chip (2 devices)   host grid 1x1x4; x to the right, y down"""


@pytest.mark.parametrize(("shape", "drawing"), [(("v6e", "4x4"), V6E_4X4), (("v7x", "2x2x4"), V7X_2X2X4)])
def test_hosts_are_drawn_where_they_are(shape: tuple[str, str], drawing: str) -> None:
    """A host that is drawn in the wrong place sends a person to the wrong machine."""
    assert render_host_grid(slice_shape(*shape)) == drawing


def hosts_drawn(shape: SliceShape) -> list[int]:
    body = render_host_grid(shape).split("\n\n", 1)[1].rsplit("\n\n", 1)[0]
    boxes = "\n".join(line for line in body.splitlines() if not line.startswith("z "))
    return [int(number) for number in re.findall(r"\d+", boxes)]


@pytest.mark.parametrize("shape", slice_shapes(), ids=lambda s: f"{s}-{s.chips_per_host}")
def test_every_shape_fits_a_terminal(shape: SliceShape) -> None:
    """A drawing of 2240 hosts would scroll away what was asked for."""
    lines = render_host_grid(shape).splitlines()

    assert max(len(line) for line in lines) <= 100
    assert len(lines) <= 48
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("shape", slice_shapes(), ids=lambda s: f"{s}-{s.chips_per_host}")
def test_no_host_is_drawn_twice_and_what_is_left_out_is_marked(shape: SliceShape) -> None:
    """Hosts that are silently missing from a drawing do not exist for its reader."""
    drawn, drawing = hosts_drawn(shape), render_host_grid(shape)

    assert len(set(drawn)) == len(drawn)
    assert set(drawn) <= set(range(shape.hosts))
    assert (len(drawn) < shape.hosts) == ("…" in drawing or "⋮" in drawing)
    assert 0 in drawn
