"""Facts about each TPU generation. What depends on the size of a slice is in ``slice_shape``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from raytpu.errors import SpecError

_GIB = 2**30
_TERA = 10**12
_GBYTE_IN_BITS = 8 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Facts about one generation. Sizes and rates are of one chip, never of a core."""

    name: str
    """The one name raytpu uses: v4, v5e, v5p, v6e, v7x."""
    axes: int
    """Dimensions of the chip interconnect: 2 for a mesh, 3 for a torus."""
    cores_per_chip: int
    """TensorCores; accelerator names such as ``v5p-32`` count these."""
    devices_per_chip: int
    """What JAX shows: one device a chip, two on v7x. The product of a device mesh counts these."""
    hbm_bytes_per_chip: int
    bf16_flops_per_chip: float
    """Peak dense bf16 operations a second."""
    hbm_bytes_per_s: float
    """Peak memory bandwidth."""
    ici_bits_per_s: float | None
    """Chip interconnect, both directions and all links of a chip; ``None`` where no page gives a figure."""
    gke_accelerator: str
    """Value of the node label ``cloud.google.com/gke-tpu-accelerator``."""
    ray_accelerator_type: str
    """Value of Ray's node label ``ray.io/accelerator-type``, such as ``TPU-V6E``."""
    ray_generation: str
    """Ray's spelling in pod types, such as ``v5litepod`` of ``v5litepod-16``."""
    libtpu_name: str
    """The TPU compiler's spelling, such as ``tpu7x`` of ``tpu7x:2x2x2``."""
    source: str


# Ray's spellings are from ray 2.60.0, ray/_private/accelerators/tpu.py (VALID_TPU_TYPES and
# normalize_tpu_accelerator_type); libtpu's are those that libtpu 0.0.42 accepts.
_ALL = (
    Generation(
        name="v4",
        axes=3,
        cores_per_chip=2,
        devices_per_chip=1,
        hbm_bytes_per_chip=32 * _GIB,
        bf16_flops_per_chip=275 * _TERA,
        hbm_bytes_per_s=1200e9,
        ici_bits_per_s=None,
        gke_accelerator="tpu-v4-podslice",
        ray_accelerator_type="TPU-V4",
        ray_generation="v4",
        libtpu_name="v4",
        source="https://docs.cloud.google.com/tpu/docs/v4",
    ),
    Generation(
        name="v5e",
        axes=2,
        cores_per_chip=1,
        devices_per_chip=1,
        hbm_bytes_per_chip=16 * _GIB,
        bf16_flops_per_chip=197 * _TERA,
        hbm_bytes_per_s=819e9,  # the v5e page; the v6e page says 800
        ici_bits_per_s=400 * _GBYTE_IN_BITS,
        gke_accelerator="tpu-v5-lite-podslice",
        ray_accelerator_type="TPU-V5LITEPOD",
        ray_generation="v5litepod",
        libtpu_name="v5e",
        source="https://docs.cloud.google.com/tpu/docs/v5e",
    ),
    Generation(
        name="v5p",
        axes=3,
        cores_per_chip=2,
        devices_per_chip=1,
        hbm_bytes_per_chip=95 * _GIB,
        bf16_flops_per_chip=459 * _TERA,
        hbm_bytes_per_s=2765e9,
        ici_bits_per_s=1200 * _GBYTE_IN_BITS,  # 4800 Gbit/s each way on an older page: the same
        gke_accelerator="tpu-v5p-slice",
        ray_accelerator_type="TPU-V5P",
        ray_generation="v5p",
        libtpu_name="v5p",
        source="https://docs.cloud.google.com/tpu/docs/v5p ; https://docs.cloud.google.com/tpu/docs/tpu7x",
    ),
    Generation(
        name="v6e",
        axes=2,
        cores_per_chip=1,
        devices_per_chip=1,
        hbm_bytes_per_chip=32 * _GIB,
        bf16_flops_per_chip=918 * _TERA,
        hbm_bytes_per_s=1600e9,  # the v6e page; older 1640, and 1638 on the tpu7x page
        ici_bits_per_s=800 * _GBYTE_IN_BITS,
        gke_accelerator="tpu-v6e-slice",
        ray_accelerator_type="TPU-V6E",
        ray_generation="v6e",
        libtpu_name="v6e",
        source="https://docs.cloud.google.com/tpu/docs/v6e ; https://docs.cloud.google.com/tpu/docs/tpu7x",
    ),
    Generation(
        name="v7x",
        axes=3,
        cores_per_chip=2,
        devices_per_chip=2,
        hbm_bytes_per_chip=192 * _GIB,
        bf16_flops_per_chip=2307 * _TERA,
        hbm_bytes_per_s=7380e9,
        ici_bits_per_s=1200 * _GBYTE_IN_BITS,
        gke_accelerator="tpu7x",
        ray_accelerator_type="TPU-V7X",
        ray_generation="v7x",
        libtpu_name="tpu7x",
        source="https://docs.cloud.google.com/tpu/docs/tpu7x",
    ),
)

GENERATIONS: Mapping[str, Generation] = MappingProxyType({fact.name: fact for fact in _ALL})
"""Every generation by raytpu's name, oldest first."""

# Spellings of other tools: refused, so that one thing has one name, but recognised in the message.
_FOREIGN = {
    "v5litepod": "v5e",
    "v5-lite": "v5e",
    "v5lite": "v5e",
    "tpu7x": "v7x",
    "tpu-7x": "v7x",
    "v7": "v7x",
    "ironwood": "v7x",
    "trillium": "v6e",
}


def generation(name: str) -> Generation:
    """The facts about a generation.

    Raises:
        SpecError: ``name`` is not one of raytpu's names; the message suggests the one that was meant.
    """
    if name in GENERATIONS:
        return GENERATIONS[name]
    meant = raytpu_name(name)
    hint = f"did you mean {meant}? " if meant is not None else ""
    raise SpecError(f"no TPU generation {name!r}; {hint}expected one of {', '.join(GENERATIONS)}")


def raytpu_name(spelling: str) -> str | None:
    """The generation that a spelling of another tool, or a slip of the pen, stands for, if it is clear."""
    plain = spelling.strip().lower()
    for fact in _ALL:
        if plain in (fact.name, fact.ray_generation, fact.ray_accelerator_type.lower(), fact.gke_accelerator):
            return fact.name
    if plain.removeprefix("tpu-") in GENERATIONS:
        return plain.removeprefix("tpu-")
    if plain in _FOREIGN:
        return _FOREIGN[plain]
    close = get_close_matches(plain, GENERATIONS, n=2, cutoff=0.6)
    return close[0] if len(close) == 1 else None
