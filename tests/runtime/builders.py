"""Valid assignments and meshes; a test changes one thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raytpu.plan import MeshPlan, ProcessAssignment


def assignment(
    index: int = 0, *, slices: int = 2, hosts: int = 2, devices: int = 4, **changes: Any
) -> ProcessAssignment:
    """Process ``index`` of simulated slices; by default one of 2 × 2 hosts of 4 devices."""
    plain = ProcessAssignment(
        process_index=index,
        process_count=slices * hosts,
        slice_name=f"slice-{index // hosts}",
        slice_index=index // hosts,
        slice_count=slices,
        worker_id=index % hosts,
        position=index % hosts,
        hosts_per_slice=hosts,
        node_id=f"node-{index}",
        address="127.0.0.1",
        chips=devices,
        local_devices=devices,
        global_devices=slices * hosts * devices,
        platform="cpu",
    )
    return replace(plain, **changes)


def mesh_plan(dcn: dict[str, int], ici: dict[str, int]) -> MeshPlan:
    axes = tuple(dict.fromkeys([*dcn, *ici]))
    return MeshPlan(
        axes=axes,
        sizes={axis: dcn.get(axis, 1) * ici.get(axis, 1) for axis in axes},
        dcn=dcn,
        ici=ici,
        batch_axes=tuple(axis for axis in axes if axis in ("replica", "data", "fsdp")),
    )
