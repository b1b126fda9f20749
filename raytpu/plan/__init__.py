"""Spec + inventory → what will happen, or why it cannot. Functions of a snapshot; nothing here acts."""

from __future__ import annotations

from raytpu.plan.batch import BatchPlan as BatchPlan
from raytpu.plan.batch import RowSpan as RowSpan
from raytpu.plan.batch import plan_batch as plan_batch
from raytpu.plan.cluster import ClusterPlan as ClusterPlan
from raytpu.plan.cluster import plan_cluster as plan_cluster
from raytpu.plan.diagnosis import Diagnosis as Diagnosis
from raytpu.plan.diagnosis import diagnose as diagnose
from raytpu.plan.diagnosis import diagnosis_document as diagnosis_document
from raytpu.plan.diagnosis import never_fits as never_fits
from raytpu.plan.explanation import explain_plan as explain_plan
from raytpu.plan.explanation import plan_document as plan_document
from raytpu.plan.gang import GangPlan as GangPlan
from raytpu.plan.gang import PlannedSlice as PlannedSlice
from raytpu.plan.gang import ProcessAssignment as ProcessAssignment
from raytpu.plan.gang import deal_again as deal_again
from raytpu.plan.gang import plan_gang as plan_gang
from raytpu.plan.inventory import SIMULATED_LABEL as SIMULATED_LABEL
from raytpu.plan.inventory import SIMULATED_ZONE as SIMULATED_ZONE
from raytpu.plan.inventory import HostState as HostState
from raytpu.plan.inventory import Inventory as Inventory
from raytpu.plan.inventory import SliceState as SliceState
from raytpu.plan.inventory import imagined_inventory as imagined_inventory
from raytpu.plan.inventory import natural_order as natural_order
from raytpu.plan.mesh import MeshPlan as MeshPlan
from raytpu.plan.mesh import plan_mesh as plan_mesh
from raytpu.plan.multislice import megascale_environment as megascale_environment
from raytpu.plan.restart import Ending as Ending
from raytpu.plan.restart import EndingKind as EndingKind
from raytpu.plan.restart import decide as decide
from raytpu.plan.watchdog import HostSeen as HostSeen
from raytpu.plan.watchdog import Patience as Patience
from raytpu.plan.watchdog import Stuck as Stuck
from raytpu.plan.watchdog import StuckKind as StuckKind
from raytpu.plan.watchdog import Whereabouts as Whereabouts
from raytpu.plan.watchdog import find_stuck as find_stuck
from raytpu.plan.workload import WorkloadPlan as WorkloadPlan
from raytpu.plan.workload import plan_workload as plan_workload

__all__ = [
    "SIMULATED_LABEL",
    "SIMULATED_ZONE",
    "BatchPlan",
    "ClusterPlan",
    "Diagnosis",
    "Ending",
    "EndingKind",
    "GangPlan",
    "HostSeen",
    "HostState",
    "Inventory",
    "MeshPlan",
    "Patience",
    "PlannedSlice",
    "ProcessAssignment",
    "RowSpan",
    "SliceState",
    "Stuck",
    "StuckKind",
    "Whereabouts",
    "WorkloadPlan",
    "deal_again",
    "decide",
    "diagnose",
    "diagnosis_document",
    "explain_plan",
    "find_stuck",
    "imagined_inventory",
    "megascale_environment",
    "natural_order",
    "never_fits",
    "plan_batch",
    "plan_cluster",
    "plan_document",
    "plan_gang",
    "plan_mesh",
    "plan_workload",
]
