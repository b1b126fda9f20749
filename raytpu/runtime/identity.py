"""Is this host who the plan says it is?

Three orders have to agree: the plan's process index, the TPU worker id inside the slice, and what JAX calls
the process. Ray's world rank is a different permutation in different runs of one slice, and on TPUs
``jax.process_index()`` may come from the slice and not from what was passed to
``jax.distributed.initialize`` (NovaSky-AI/SkyRL#1252). So nothing is assumed; everything is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from raytpu.errors import HostMismatch
from raytpu.plan import ProcessAssignment


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxFacts:
    """What JAX says about this process once its backend is up."""

    process_index: int
    process_count: int
    platform: str
    local_devices: int
    global_devices: int


def describe(assignment: ProcessAssignment) -> str:
    """``slice-0/2 (process 2, 10.0.0.7)``: how messages name a host."""
    return f"{assignment.host} (process {assignment.process_index}, {assignment.address})"


def check_environment(assignment: ProcessAssignment, environ: Mapping[str, str]) -> None:
    """Compare the machine's own TPU variables with the plan, before JAX touches the chips.

    A variable that is absent says nothing: on Compute Engine both come from the metadata server, and the
    comparison with JAX's own order follows anyway.

    Raises:
        HostMismatch: naming the host and all differences.
    """
    expected = {"TPU_NAME": assignment.slice_name, "TPU_WORKER_ID": str(assignment.worker_id)}
    wrong = [
        f"{name} is {environ[name]!r}, expected {value!r}"
        for name, value in expected.items()
        if name in environ and environ[name] != value
    ]
    _raise(assignment, wrong, "the process was placed on another host than planned")
    if assignment.environment:
        _raise(
            assignment,
            list(_wrong_chips(assignment.chips, environ.get("TPU_VISIBLE_CHIPS", ""))),
            "another program on this host has chips that raytpu did not give it; take whole hosts there",
        )


def _wrong_chips(count: int, visible: str) -> Iterator[str]:
    """What is wrong with the chips that Ray gave to a process on a part of a slice.

    Chips of a part that are no neighbours have no links among them. Blocks of 4 begin at chip 0 or 4 (see
    ``topology.sub_slices``).
    """
    if not visible:
        return  # the whole host
    chips = sorted(int(chip) for chip in visible.split(","))
    if len(chips) != count or chips != list(range(chips[0], chips[0] + count)) or chips[0] % count:
        noun = "chip" if count == 1 else "neighbouring chips"
        yield f"TPU_VISIBLE_CHIPS is {visible!r}, expected {count} {noun}"


def check_jax(assignment: ProcessAssignment, found: JaxFacts) -> None:
    """Compare what JAX shows with the plan.

    Raises:
        HostMismatch: naming the host and all differences.
    """
    pairs = {
        "platform": (found.platform, assignment.platform),
        "jax.process_index()": (found.process_index, assignment.process_index),
        "jax.process_count()": (found.process_count, assignment.process_count),
        "jax.local_device_count()": (found.local_devices, assignment.local_devices),
        "jax.device_count()": (found.global_devices, assignment.global_devices),
    }
    wrong = [
        f"{name} is {is_!r}, expected {should!r}" for name, (is_, should) in pairs.items() if is_ != should
    ]
    _raise(assignment, wrong, _hint(assignment, found))


def _hint(assignment: ProcessAssignment, found: JaxFacts) -> str:
    if found.platform != assignment.platform:
        return "another process may hold the chips, or libtpu is not installed (pip install 'raytpu[tpu]')"
    if found.local_devices != assignment.local_devices:
        return "TPU_VISIBLE_CHIPS or a sick chip may hide devices"
    return "JAX orders the hosts of this slice in another way than their TPU worker ids"


def _raise(assignment: ProcessAssignment, wrong: list[str], hint: str) -> None:
    if wrong:
        raise HostMismatch(f"{describe(assignment)}: {'; '.join(wrong)}\n  {hint}")
