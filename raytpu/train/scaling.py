"""Ray's ``ScalingConfig`` for TPUs, understood as slices."""

from __future__ import annotations

from ray.train import ScalingConfig

from raytpu.errors import SpecError
from raytpu.spec import Slices
from raytpu.topology import GENERATIONS


def slices_of(scaling: ScalingConfig | None) -> Slices:
    """The slices that a ``ScalingConfig(use_tpu=True, topology=…, accelerator_type=…, num_workers=…)`` means.

    ``resources_per_worker["TPU"]`` is the chips per host. Ignored: ``placement_strategy`` (the hosts are
    chosen by name). Refused: elastic ``num_workers`` and everything without TPUs.

    Raises:
        SpecError: naming what is missing or does not divide.
    """
    if scaling is None or not (scaling.use_tpu and scaling.topology and scaling.accelerator_type):
        raise SpecError(
            "raytpu trains on TPU slices: ScalingConfig needs use_tpu=True, topology and accelerator_type, "
            'such as ScalingConfig(use_tpu=True, topology="4x4", accelerator_type="TPU-V6E", num_workers=4)'
        )
    if not isinstance(scaling.num_workers, int):
        raise SpecError(f"num_workers={scaling.num_workers!r}: a range of slices is not supported yet")
    by_ray_name = {each.ray_accelerator_type: name for name, each in GENERATIONS.items()}
    if scaling.accelerator_type not in by_ray_name:
        known = ", ".join(sorted(by_ray_name))
        raise SpecError(f"accelerator_type {scaling.accelerator_type!r} is no TPU that raytpu knows: {known}")
    chips = (scaling.resources_per_worker or {}).get("TPU")
    one = Slices(
        generation=by_ray_name[scaling.accelerator_type],
        topology=scaling.topology,
        chips_per_host=int(chips) if chips else None,
    )
    hosts = one.shape.hosts
    if scaling.num_workers % hosts:
        raise SpecError(
            f"num_workers={scaling.num_workers} is not a multiple of the {hosts} hosts of a "
            f"{one.generation} {one.topology} slice; a slice is used whole or not at all"
        )
    return one.model_copy(update={"count": scaling.num_workers // hosts})
