"""The slice shapes that exist, as published: the only table of shapes; all else is computed from it.

Only shapes seen in the cited source are listed. Ray's own table (2.60.0) is another set: it lacks many v5p
shapes and v4 8x16x16, has permuted ones such as ``8x4x4``, and knows v5e and v6e ``2x4`` as one host only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedShapes:
    """Topologies that one source lists for one kind of host."""

    generation: str
    chips_per_host: int
    machine_type: str
    """The Compute Engine machine type of a host."""
    topologies: tuple[str, ...]
    source: str


_SAMPLES = "https://github.com/GoogleCloudPlatform/applied-ai-engineering-samples"
_SAMPLES_TABLE = f'{_SAMPLES} (README table "TPU types"; repository inferred)'
_SAXML_TABLE = f"{_SAMPLES}/tree/main/ai-infrastructure/saxml-on-gke (README 'TPU types' table)"
_V5P_PAGE = (
    f"https://docs.cloud.google.com/tpu/docs/v5p ; {_SAMPLES} "
    "(ai-infrastructure README 'TPU types' table; seen; repo inferred)"
)
_V6E_PAGE = "https://docs.cloud.google.com/tpu/docs/v6e"
_XPK = "https://github.com/AI-Hypercomputer/xpk/blob/367c838/src/xpk/core/system_characteristics.py"
_WEBHOOK = "https://github.com/ai-on-gke/kuberay-tpu-webhook/blob/ef658db/Troubleshooting.md"
_V7X_PAGE = (
    f"restatement of the Google tpu7x page; agrees with xpk and Ray ; {_XPK} ; "
    "ray 2.60.0 ray/_private/accelerators/tpu.py VALID_TPU_TOPOLOGY"
)


def _listed(
    generation: str, chips_per_host: int, machine_type: str, source: str, text: str
) -> PublishedShapes:
    return PublishedShapes(
        generation=generation,
        chips_per_host=chips_per_host,
        machine_type=machine_type,
        topologies=tuple(text.split()),
        source=source,
    )


PUBLISHED_SHAPES: tuple[PublishedShapes, ...] = (
    _listed(
        "v4",
        4,
        "ct4p-hightpu-4t",
        _SAMPLES_TABLE,
        "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x12 8x8x16 8x16x16",
    ),
    _listed("v5e", 1, "ct5lp-hightpu-1t", _SAXML_TABLE, "1x1"),
    _listed("v5e", 4, "ct5lp-hightpu-4t", _SAXML_TABLE, "2x2 4x4 4x8 8x8 8x16 16x16"),
    _listed("v5e", 4, "ct5lp-hightpu-4t", f"{_XPK} ; {_WEBHOOK}", "2x4"),
    _listed("v5e", 8, "ct5lp-hightpu-8t", _SAXML_TABLE, "2x4"),
    _listed(
        "v5p",
        4,
        "ct5p-hightpu-4t",
        _V5P_PAGE,
        "2x2x1 2x2x2 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16 16x16x16 16x16x24",
    ),
    _listed(
        "v5p",
        4,
        "ct5p-hightpu-4t",
        _SAMPLES_TABLE,
        """
        2x2x4 4x4x12 4x4x20 4x8x12 4x4x28 4x12x12 4x8x20 4x4x44 8x8x12 4x4x52 4x8x28 4x12x20
        4x4x68 8x12x12 4x4x76 8x8x20 4x12x28 4x8x44 4x4x92 4x20x20 4x8x52 12x12x12 8x8x28 4x4x116
        8x12x20 4x4x124 4x12x44 4x8x68 4x20x28 12x12x16 4x4x148 4x8x76 4x12x52 8x16x20 4x4x164
        8x12x28 4x4x172 8x8x44 12x12x20 4x8x92 4x4x188 12x16x16 4x28x28 8x20x20 4x12x68 8x8x52
        4x4x212 12x12x24 4x20x44 8x16x28 4x12x76 4x8x116 4x4x236 12x16x20 4x4x244 4x8x124 12x12x28
        4x20x52 8x12x44 8x8x68 4x12x92 8x20x28 12x16x24 4x8x148 12x20x20 8x8x76 4x28x44 8x12x52
        16x16x20 12x12x36 4x8x164 12x16x28 4x20x68 4x8x172 4x12x116 8x16x44 12x20x24 4x28x52
        8x8x92 4x12x124 4x8x188 4x20x76 12x24x24 16x20x28
        """,
    ),
    _listed("v6e", 1, "ct6e-standard-1t", _V6E_PAGE, "1x1"),
    # Two 4-chip hosts of a v6e 2x4 can be had through the GKE API only (same page).
    _listed("v6e", 4, "ct6e-standard-4t", _V6E_PAGE, "2x2 2x4 4x4 4x8 8x8 8x16 16x16"),
    _listed("v6e", 8, "ct6e-standard-8t", _V6E_PAGE, "2x4"),
    _listed(
        "v7x",
        4,
        "tpu7x-standard-4t",
        _V7X_PAGE,
        "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16",
    ),
)
