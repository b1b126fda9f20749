"""The environment of a host process is the plan's, whatever the machine's was."""

from __future__ import annotations

from raytpu.runtime.environment import process_environment
from tests.runtime.builders import assignment

COORDINATOR = "10.0.0.1:8476"
POISON = {
    "MEGASCALE_NUM_SLICES": "9",
    "MEGASCALE_SLICE_ID": "7",
    "MEGASCALE_COORDINATOR_ADDRESS": "10.9.9.9",
    "MEGASCALE_TRANSPORT_TYPE": "old",
    "JAX_COORDINATOR_ADDRESS": "10.9.9.9:1",
    "JAX_LOCAL_DEVICE_IDS": "0",
    "HOME": "/home/someone",
}


def after(index: int = 0, inherited: dict[str, str] | None = None, **changes: object) -> dict[str, str]:
    environ = dict(POISON if inherited is None else inherited)
    process_environment(assignment(index, **changes), COORDINATOR, environ).apply(environ)
    return environ


def test_variables_of_an_earlier_gang_are_replaced_by_the_plan():
    """libtpu would wait for slices that no longer exist (ray-project/ray#62893)."""
    environ = after(index=3, slices=2)

    assert environ["MEGASCALE_NUM_SLICES"] == "2"
    assert environ["MEGASCALE_SLICE_ID"] == "1"
    assert environ["MEGASCALE_COORDINATOR_ADDRESS"] == "10.0.0.1"
    assert "MEGASCALE_TRANSPORT_TYPE" not in environ


def test_a_single_slice_has_no_megascale_variables_at_all():
    """One left over is enough for libtpu to look for other slices."""
    environ = after(slices=1)

    assert [name for name in environ if name.startswith("MEGASCALE_")] == []


def test_what_jax_would_prefer_to_its_arguments_is_removed_and_the_rest_is_kept():
    """JAX_LOCAL_DEVICE_IDS of a debugging session would hide chips."""
    environ = after()

    assert [name for name in environ if name.startswith("JAX_")] == [
        "JAX_PLATFORMS",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION",
        "JAX_NUM_CPU_DEVICES",
    ]
    assert environ["HOME"] == "/home/someone"


def test_the_removed_variables_are_reported():
    """Nobody finds out why a host behaved oddly when its stale variables vanish without a word."""
    change = process_environment(assignment(slices=1), COORDINATOR, POISON)

    assert change.remove == (
        "JAX_COORDINATOR_ADDRESS",
        "JAX_LOCAL_DEVICE_IDS",
        "MEGASCALE_COORDINATOR_ADDRESS",
        "MEGASCALE_NUM_SLICES",
        "MEGASCALE_SLICE_ID",
        "MEGASCALE_TRANSPORT_TYPE",
    )


def test_a_real_slice_names_tpu_as_its_only_platform():
    """With more than one JAX would fall back to CPU when the chips are busy, and train there."""
    environ = after(platform="tpu")

    assert environ["JAX_PLATFORMS"] == "tpu"
    assert "JAX_NUM_CPU_DEVICES" not in environ


def test_the_device_count_is_the_plans_and_other_xla_flags_stay():
    """Two different counts for one process: which one wins is an accident."""
    environ = after(
        devices=4, inherited={"XLA_FLAGS": "--xla_a=1 --xla_force_host_platform_device_count=8 --xla_b=2"}
    )

    assert environ["JAX_NUM_CPU_DEVICES"] == "4"
    assert environ["XLA_FLAGS"] == "--xla_a=1 --xla_b=2"
