"""The plan's mesh, laid over the devices that JAX shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from raytpu.errors import HostMismatch
from raytpu.plan import MeshPlan, ProcessAssignment

if TYPE_CHECKING:
    import jax
    import numpy as np


def slice_of_process(assignment: ProcessAssignment) -> dict[int, int]:
    """Process index → slice index for the whole gang: processes are numbered slice by slice."""
    return {index: index // assignment.hosts_per_slice for index in range(assignment.process_count)}


def device_mesh(
    mesh: MeshPlan,
    slice_of_process: Mapping[int, int],
    devices: Sequence[jax.Device] | None = None,
) -> jax.sharding.Mesh:
    """A mesh with the plan's axes in the plan's order, all of type Auto.

    Inside a slice the ``ici`` sizes are laid out by ``mesh_utils.create_device_mesh``, which knows the
    torus of a TPU; slices are then put side by side along the ``dcn`` sizes, in slice order. An axis in both
    is slice-major: its index is ``dcn_index * ici_size + ici_index``, so that the neighbours along it are
    in one slice as often as possible.

    This is ``mesh_utils.create_hybrid_device_mesh`` with granules from the plan: that function groups by
    ``device.slice_index``, which on CPU is 0 everywhere, or by process, which is a host and not a slice.

    ``devices`` defaults to all of ``jax.devices()``. Order: (slice, process, device id), so every process
    builds the same mesh.

    Raises:
        HostMismatch: the devices do not make up the slices of the plan.
    """
    import jax
    import numpy as np
    from jax.experimental import mesh_utils

    groups = _devices_by_slice(tuple(jax.devices() if devices is None else devices), slice_of_process)
    _check_counts(mesh, groups)
    slices = [
        # Splitting a physical axis is only tried when the sizes cannot be made of whole ones.
        mesh_utils.create_device_mesh(mesh.ici_shape, group, allow_split_physical_axes=True)
        for group in groups.values()
    ]
    layout = _side_by_side(np.stack(slices), mesh.dcn_shape, mesh.ici_shape)
    kinds = (jax.sharding.AxisType.Auto,) * len(mesh.axes)
    return jax.sharding.Mesh(layout, mesh.axes, axis_types=kinds)


def _side_by_side(slices: np.ndarray, dcn: tuple[int, ...], ici: tuple[int, ...]) -> np.ndarray:
    """[slice, *ici] → [dcn₀·ici₀, dcn₁·ici₁, …]."""
    axes = len(ici)
    grid = slices.reshape(dcn + ici)
    paired = grid.transpose([part for axis in range(axes) for part in (axis, axes + axis)])
    return paired.reshape([outer * inner for outer, inner in zip(dcn, ici, strict=True)])


def _devices_by_slice(
    devices: Sequence[jax.Device], slice_of_process: Mapping[int, int]
) -> dict[int, list[jax.Device]]:
    strangers = sorted({d.process_index for d in devices} - set(slice_of_process))
    if strangers:
        raise HostMismatch(f"JAX shows devices of processes {strangers}, which the plan does not have")
    groups: dict[int, list[jax.Device]] = {index: [] for index in sorted(set(slice_of_process.values()))}
    for device in sorted(devices, key=lambda d: (slice_of_process[d.process_index], d.process_index, d.id)):
        groups[slice_of_process[device.process_index]].append(device)
    _check_slice_indices(groups)
    return groups


def _check_slice_indices(groups: Mapping[int, list[jax.Device]]) -> None:
    """TPU devices know their slice; where JAX tells slices apart at all it must tell the plan's."""
    told = {index: sorted({getattr(d, "slice_index", 0) for d in group}) for index, group in groups.items()}
    if {0} == {i for indices in told.values() for i in indices}:
        return
    wrong = [f"slice {index}: JAX says {found}" for index, found in told.items() if found != [index]]
    if wrong:
        raise HostMismatch(
            "devices are in other slices than planned: " + "; ".join(wrong) + "\n  check MEGASCALE_SLICE_ID"
        )


def _check_counts(mesh: MeshPlan, groups: Mapping[int, list[jax.Device]]) -> None:
    in_slice, slices = math.prod(mesh.ici_shape), math.prod(mesh.dcn_shape)
    wrong = [
        f"slice {index} has {len(group)} devices, expected {in_slice}"
        for index, group in groups.items()
        if len(group) != in_slice
    ]
    if len(groups) != slices:
        wrong.append(f"{len(groups)} slices, expected {slices}")
    if wrong:
        raise HostMismatch(f"the mesh {dict(mesh.sizes)} does not fit the devices: " + "; ".join(wrong))
