"""The environment of one host process, computed from the plan before JAX is imported."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from raytpu.plan import ProcessAssignment, megascale_environment
from raytpu.runtime.roll_call import split_address

_DEVICE_COUNT_FLAG = "--xla_force_host_platform_device_count"

STALE = (
    # jax.distributed.initialize reads these where an argument is None, and would prefer them to the plan
    # (jax/_src/distributed.py).
    "JAX_COORDINATOR_ADDRESS",
    "JAX_COORDINATOR_BIND_ADDRESS",
    "JAX_LOCAL_DEVICE_IDS",
    "JAX_NUM_PROCESSES",
    "JAX_PARTITION_INDEX",
    "JAX_PROCESS_ID",
    "JAX_SLICE_INDEX",
)
"""Variables of an earlier life of the machine that must not reach JAX."""

WHOLE_SLICE = ("CLOUD_TPU_TASK_ID", "TPU_PROCESS_ADDRESSES", "TPU_PROCESS_PORT")
"""Variables about all hosts of a slice that a process on a part of it must not see, and for which the part
has nothing to put in their place (jax/_src/clusters/cloud_tpu_cluster.py prefers the addresses)."""


HIDES_CHIPS = "TPU_VISIBLE_CHIPS"
CHIPS_OF_HOST, HOSTS_OF_WORLD = "TPU_CHIPS_PER_HOST_BOUNDS", "TPU_HOST_BOUNDS"
"""Ray sets them to what it gave the process (``ray/_private/accelerators/tpu.py``): of a standby process, no
chip at all; of a worker that ran something smaller before, that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentChange:
    """What to set and what to remove, so that the environment says exactly what the plan says."""

    set: dict[str, str]
    remove: tuple[str, ...]
    """Only names that were there; sorted."""

    def apply(self, environ: MutableMapping[str, str]) -> None:
        for name in self.remove:
            environ.pop(name, None)
        environ.update(self.set)


def process_environment(
    assignment: ProcessAssignment, coordinator: str, inherited: Mapping[str, str]
) -> EnvironmentChange:
    """The changes that turn ``inherited`` into the environment of this process.

    ``MEGASCALE_*`` is always the plan's: a replacement host may inherit the variables of a gang that no
    longer exists, and libtpu then waits for its slices (ray-project/ray#62893). A single slice has none.

    On a part of a slice the variables are those of the part (``ProcessAssignment.environment``). On a whole
    one every chip of the host is seen, whatever Ray showed this process before it was the host's.

    ``JAX_PLATFORMS`` names one platform, so that JAX raises where it would otherwise fall back to CPU.
    """
    address, _ = split_address(coordinator)
    wanted = dict(assignment.environment) | megascale_environment(assignment, address)
    wanted["JAX_PLATFORMS"] = assignment.platform
    if assignment.platform == "cpu":
        wanted |= {
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
            "JAX_NUM_CPU_DEVICES": str(assignment.local_devices),
            # No metadata server outside Google Cloud: libtpu, where installed, would wait for one.
            "TPU_SKIP_MDS_QUERY": "1",
        }
        if "XLA_FLAGS" in inherited:
            wanted["XLA_FLAGS"] = _without_device_count(inherited["XLA_FLAGS"])
    unwanted = STALE + (WHOLE_SLICE if assignment.environment else ())
    stale = {name for name in inherited if name.startswith("MEGASCALE_") or name in unwanted}
    if not assignment.environment:
        stale |= _chip_limits(assignment.chips, inherited)
    return EnvironmentChange(set=wanted, remove=tuple(sorted(stale - set(wanted))))


def _chip_limits(chips: int, inherited: Mapping[str, str]) -> set[str]:
    """Variables of ``inherited`` that would show a process of a whole host fewer chips than the host has."""
    stale = {HIDES_CHIPS} & inherited.keys()
    sizes = inherited.get(CHIPS_OF_HOST, "").split(",")
    if CHIPS_OF_HOST in inherited and not _multiply_to(chips, sizes):
        stale |= {CHIPS_OF_HOST, HOSTS_OF_WORLD} & inherited.keys()
    return stale


def _multiply_to(product: int, sizes: Sequence[str]) -> bool:
    return all(size.strip().isdigit() for size in sizes) and math.prod(map(int, sizes)) == product


def _without_device_count(flags: str) -> str:
    """``flags`` without the one that JAX_NUM_CPU_DEVICES replaces; the plan decides the count."""
    return " ".join(flag for flag in flags.split() if not flag.startswith(_DEVICE_COUNT_FLAG))
