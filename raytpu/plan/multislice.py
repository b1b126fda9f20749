"""What libtpu on a host must be told when several slices work as one."""

from __future__ import annotations

from raytpu.errors import SpecError
from raytpu.plan.gang import ProcessAssignment

MEGASCALE_PORT = 8081
"""libtpu's default 8080 is taken by Ray's metrics on GKE. Source: ray 2.60.0,
``ray._private.accelerators.tpu.DEFAULT_MEGASCALE_PORT``."""


def megascale_environment(assignment: ProcessAssignment, coordinator_address: str) -> dict[str, str]:
    """Environment variables of one host for collectives over DCN; empty for a single slice.

    The names are those of ray 2.60.0, ``ray.util.tpu.get_tpu_coordinator_env_vars``. They must be set over
    whatever the host already has: values of an earlier gang make libtpu wait for slices that are gone
    (https://github.com/ray-project/ray/pull/62893).

    Args:
        coordinator_address: IPv4 address or name of the host of process 0, without a port.

    Raises:
        SpecError: the address carries a port; libtpu listens on a port of its own.
    """
    if assignment.slice_count == 1:
        return {}
    if not coordinator_address or ":" in coordinator_address:
        raise SpecError(
            f"coordinator address {coordinator_address!r}: expected an IPv4 address or a host name, "
            f"without a port (libtpu listens on port {MEGASCALE_PORT}, JAX's coordinator on another)"
        )
    return {
        "MEGASCALE_COORDINATOR_ADDRESS": coordinator_address,
        "MEGASCALE_PORT": str(MEGASCALE_PORT),
        "MEGASCALE_NUM_SLICES": str(assignment.slice_count),
        "MEGASCALE_SLICE_ID": str(assignment.slice_index),
    }
