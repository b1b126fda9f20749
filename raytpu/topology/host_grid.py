"""A drawing of the hosts of a slice, for a terminal."""

from __future__ import annotations

from raytpu.topology.generation import generation
from raytpu.topology.slice_shape import SliceShape

# Bounds of the drawing, chosen by eye: a v6e 16x16 (8 x 8 hosts) is drawn whole, and the largest v5p slice
# fits a terminal of common size.
_COLUMNS = 100
_LAYER_LINES = 40
_HOSTS_ALONG_AXIS = 8

_BETWEEN_LAYERS = "   "


def render_host_grid(shape: SliceShape) -> str:
    """The slice as text: a box for each host with its number and its chips, x to the right, y down.

    A 3D torus is drawn as layers along z, side by side. Hosts are numbered as the TPU compiler numbers
    processes: x fastest, then y, then z. Of a large slice the middle is left out and marked ``…``; no
    drawing is wider than 100 columns or longer than 48 lines.
    """
    return "\n".join([_heading(shape), "", *_layers(shape), "", _legend(shape)])


def _heading(shape: SliceShape) -> str:
    per_host = "x".join(str(size) for size in shape.chips_per_host_bounds[: len(shape.chip_grid)])
    return (
        f"{shape} ({shape.accelerator_name}): {_count(shape.chips, 'chip')}, "
        f"{_count(shape.devices, 'device')}, {_count(shape.hosts, 'host')} of "
        f"{_count(shape.chips_per_host, 'chip')} ({per_host}, {shape.machine_type})"
    )


def _legend(shape: SliceShape) -> str:
    devices = generation(shape.generation).devices_per_chip
    chip = "■ chip" if devices == 1 else f"■ chip ({devices} devices)"
    grid = "x".join(str(hosts) for hosts in shape.host_grid)
    order = "; x to the right, y down" if shape.hosts > 1 else ""
    return f"□ host   {chip}   host grid {grid}{order}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _layers(shape: SliceShape) -> list[str]:
    """The layers along z in rows that fit the width; one layer for a 2D slice."""
    if len(shape.host_grid) == 2:
        return _layer(shape, 0)
    count = shape.host_grid[2]
    first = _layer(shape, 0)
    room_for_gap = len(_BETWEEN_LAYERS) + 1
    across = max(1, (_COLUMNS - room_for_gap) // (len(first[0]) + len(_BETWEEN_LAYERS)))
    down = max(1, _LAYER_LINES // (len(first) + 2))
    lines: list[str] = []
    row: list[list[str]] = []
    shown = _shown(count, across * down)
    for position, z in enumerate(shown):
        row.append(["…"] if z is None else [f"z {z}", *_layer(shape, z)])
        follows_gap = position + 1 < len(shown) and shown[position + 1] is None
        if len([picture for picture in row if len(picture) > 1]) == across and not follows_gap:
            lines += [*_side_by_side(row, _BETWEEN_LAYERS), ""]
            row = []
    if row:
        lines += _side_by_side(row, _BETWEEN_LAYERS)
    return lines if lines[-1] else lines[:-1]


def _layer(shape: SliceShape, z: int) -> list[str]:
    """The hosts of one z, with the middle left out where there are too many."""
    across, down = shape.host_grid[:2]
    blocks_down: list[list[str]] = []
    for ys in _runs(_shown(down, _HOSTS_ALONG_AXIS)):
        blocks = [
            _boxes(shape, [[(z * down + y) * across + x for x in xs] for y in ys])
            for xs in _runs(_shown(across, _HOSTS_ALONG_AXIS))
        ]
        blocks_down.append(_side_by_side(blocks, " … "))
    lines = blocks_down[0]
    for block in blocks_down[1:]:
        lines = [*lines, "⋮".center(len(lines[0])), *block]
    return lines


def _boxes(shape: SliceShape, numbers: list[list[int]]) -> list[str]:
    """A grid of boxes, one for each host number."""
    chips_across, chips_down = shape.chips_per_host_bounds[:2]
    labels = [[_label(shape, number) for number in row] for row in numbers]
    width = len(_label(shape, shape.hosts - 1)) + 2
    if chips_across == 2:
        width = max(width, 6)
    chips = f" ■{' ' * (width - 4)}■ " if chips_across == 2 else "■".center(width)
    above, below = (chips_down + 1) // 2, chips_down // 2
    columns = len(numbers[0])

    def across(left: str, fill: list[str], middle: str, right: str) -> str:
        return left + middle.join(fill) + right

    rule = ["─" * width] * columns
    chip_line = across("│", [chips] * columns, "│", "│")
    lines = [across("┌", rule, "┬", "┐")]
    for index, row in enumerate(labels):
        if index:
            lines.append(across("├", rule, "┼", "┤"))
        named = across("│", [label.center(width) for label in row], "│", "│")
        lines += [*[chip_line] * above, named, *[chip_line] * below]
    return [*lines, across("└", rule, "┴", "┘")]


def _label(shape: SliceShape, number: int) -> str:
    """Layers stand side by side, where the word would take the room of a layer."""
    return f"host {number}" if len(shape.host_grid) == 2 else str(number)


def _shown(count: int, room: int) -> list[int | None]:
    """The indices to draw: all, or the first ones and the last, with ``None`` for what is left out."""
    if count <= room:
        return list(range(count))
    if room < 3:
        return [*range(room), None]
    return [*range(room - 2), None, count - 1]


def _runs(shown: list[int | None]) -> list[list[int]]:
    """The unbroken stretches of ``shown``."""
    runs: list[list[int]] = [[]]
    for index in shown:
        if index is None:
            runs.append([])
        else:
            runs[-1].append(index)
    return [run for run in runs if run]


def _side_by_side(pictures: list[list[str]], between: str) -> list[str]:
    """Pictures next to each other. ``between`` stands in the middle line, blanks in the others."""
    height = max(map(len, pictures))
    middle = height // 2
    lines = [""] * height
    for position, picture in enumerate(pictures):
        width = max(map(len, picture))
        top = (height - len(picture)) // 2 if len(picture) == 1 else 0
        for index in range(height):
            gap = "" if position == 0 else between if index == middle else " " * len(between)
            content = picture[index - top] if top <= index < top + len(picture) else ""
            lines[index] += gap + content.ljust(width)
    return [line.rstrip() for line in lines]
