"""What a TPU host has beside its chips: CPUs and memory, by Compute Engine machine type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_PLAN_TPUS = "https://docs.cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus"
_V5E_PAGE = "https://docs.cloud.google.com/tpu/docs/v5e"
_V5P_PAGE = "https://docs.cloud.google.com/tpu/docs/v5p"
_V6E_PAGE = "https://docs.cloud.google.com/tpu/docs/v6e"
_V7X_PAGE = "https://docs.cloud.google.com/tpu/docs/tpu7x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine type."""

    name: str
    vcpus: int
    memory_gb: int
    """As published; read as GB of 10**9 bytes, the smaller of the two meanings."""
    source: str


_ALL = (
    Machine(name="ct4p-hightpu-4t", vcpus=240, memory_gb=407, source=_PLAN_TPUS),
    Machine(name="ct5lp-hightpu-1t", vcpus=24, memory_gb=48, source=_V5E_PAGE),
    Machine(name="ct5lp-hightpu-4t", vcpus=112, memory_gb=192, source=_V5E_PAGE),
    Machine(name="ct5lp-hightpu-8t", vcpus=224, memory_gb=384, source=_V5E_PAGE),
    Machine(name="ct5p-hightpu-4t", vcpus=208, memory_gb=448, source=_V5P_PAGE),
    # 176 GB in some tables: the smaller figure fits either way.
    Machine(name="ct6e-standard-1t", vcpus=44, memory_gb=48, source=_PLAN_TPUS),
    Machine(name="ct6e-standard-4t", vcpus=180, memory_gb=720, source=_V6E_PAGE),
    Machine(name="ct6e-standard-8t", vcpus=180, memory_gb=1440, source=_V6E_PAGE),
    Machine(name="tpu7x-standard-4t", vcpus=224, memory_gb=960, source=_V7X_PAGE),
)

MACHINES: Mapping[str, Machine] = MappingProxyType({machine.name: machine for machine in _ALL})
"""Every machine type that a published shape has, by name."""
