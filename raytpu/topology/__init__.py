"""What the hardware is: generations, the slice shapes that exist, their names and parts, and a drawing."""

from __future__ import annotations

from raytpu.topology.accelerator_name import shapes_named as shapes_named
from raytpu.topology.generation import GENERATIONS as GENERATIONS
from raytpu.topology.generation import Generation as Generation
from raytpu.topology.generation import generation as generation
from raytpu.topology.host_grid import render_host_grid as render_host_grid
from raytpu.topology.machine import MACHINES as MACHINES
from raytpu.topology.machine import Machine as Machine
from raytpu.topology.slice_shape import SliceShape as SliceShape
from raytpu.topology.slice_shape import slice_shape as slice_shape
from raytpu.topology.slice_shape import slice_shapes as slice_shapes
from raytpu.topology.sub_slice import SubSlice as SubSlice
from raytpu.topology.sub_slice import sub_slice_environment as sub_slice_environment
from raytpu.topology.sub_slice import sub_slices as sub_slices

__all__ = [
    "GENERATIONS",
    "MACHINES",
    "Generation",
    "Machine",
    "SliceShape",
    "SubSlice",
    "generation",
    "render_host_grid",
    "shapes_named",
    "slice_shape",
    "slice_shapes",
    "sub_slice_environment",
    "sub_slices",
]
