"""A slice of a gang as a JAX world of its own, with the whole model on its mesh."""

from __future__ import annotations

from dataclasses import replace

from raytpu.plan.gang import GangPlan, PlannedSlice
from raytpu.plan.mesh import MeshPlan


def world_of_slice(planned: PlannedSlice, *, simulated: bool) -> GangPlan:
    """The gang that ``planned`` is when it works alone: its processes are numbered from 0."""
    hosts = len(planned.processes)
    processes = tuple(
        replace(
            process,
            process_index=position,
            process_count=hosts,
            slice_index=0,
            slice_count=1,
            global_devices=hosts * process.local_devices,
        )
        for position, process in enumerate(planned.processes)
    )
    return GangPlan(slices=(replace(planned, index=0, processes=processes),), simulated=simulated)


def mesh_of_slice(mesh: MeshPlan) -> MeshPlan:
    """The mesh of one slice. Axes between slices stay, with the size that they have inside (1 for most), so
    that a program names the same axes whether slices are joined in one mesh or not."""
    return replace(
        mesh,
        sizes={axis: mesh.ici.get(axis, 1) for axis in mesh.axes},
        dcn={},
    )
