"""Everything that will happen when a workload is run on an inventory."""

from __future__ import annotations

from dataclasses import dataclass

from raytpu.errors import SpecError
from raytpu.plan.batch import BatchPlan, plan_batch
from raytpu.plan.gang import GangPlan, plan_gang
from raytpu.plan.inventory import Inventory
from raytpu.plan.mesh import MeshPlan, plan_mesh
from raytpu.spec import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPlan:
    """A decision that is not yet acted on."""

    workload: Workload
    gang: GangPlan
    mesh: MeshPlan
    batch: BatchPlan | None
    """``None`` when ``train.config`` has no ``global_batch``: the entrypoint feeds itself."""


def plan_workload(
    workload: Workload, inventory: Inventory, exclude: frozenset[str] = frozenset()
) -> WorkloadPlan:
    """The slices, the mesh and the batch of a workload.

    Raises:
        SpecError: the workload cannot be right on any cluster.
        Unplaceable: the inventory has no such slices now.
    """
    mesh = plan_mesh(workload.train.mesh, workload.slices)
    gang = plan_gang(workload.slices, inventory, exclude)
    global_batch = whole_number(workload, "global_batch")
    batch = None if global_batch is None else plan_batch(global_batch, mesh, gang)
    return WorkloadPlan(workload=workload, gang=gang, mesh=mesh, batch=batch)


def whole_number(workload: Workload, key: str) -> int | None:
    """A well-known whole number of ``train.config``; ``None`` when it is not there.

    Raises:
        SpecError: it is there and not a whole number.
    """
    if key not in workload.train.config:
        return None
    value = workload.train.config[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(f"train.config.{key}: expected a whole number, got {value!r}")
    return value
