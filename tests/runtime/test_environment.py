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


PART = {"TPU_WORKER_ID": "0", "TPU_TOPOLOGY": "2x2", "TPU_HOST_BOUNDS": "1,1,1"}


def test_on_a_part_of_a_slice_the_part_is_all_there_is():
    """libtpu would look for the hosts of the other jobs, and JAX would count them as its own."""
    whole = {
        "TPU_WORKER_ID": "3",
        "TPU_TOPOLOGY": "4x4",
        "TPU_PROCESS_ADDRESSES": "10.0.0.1:8471,10.0.0.2:8471",
    }

    environ = after(inherited=whole, environment=PART, slices=1, platform="tpu")

    assert {name: environ[name] for name in PART} == PART
    assert "TPU_PROCESS_ADDRESSES" not in environ


def test_on_a_whole_slice_its_own_variables_stay():
    whole = {"TPU_WORKER_ID": "3", "TPU_PROCESS_ADDRESSES": "10.0.0.1:8471,10.0.0.2:8471"}

    environ = after(inherited=whole, slices=1, platform="tpu")

    assert {name: environ[name] for name in whole} == whole


def test_a_simulated_part_of_a_host_shows_its_own_number_of_devices():
    """The host's XLA_FLAGS speak of all of its chips: a job on one chip would see four."""
    environ = after(
        devices=1,
        inherited={"XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
        environment=PART | {"JAX_NUM_CPU_DEVICES": "1"},
    )

    assert environ["JAX_NUM_CPU_DEVICES"] == "1"
    assert environ["XLA_FLAGS"] == ""


def test_a_process_that_ray_gave_no_chips_sees_all_of_its_host_when_it_becomes_the_host_process():
    """A standby process would find no TPU at all, in the one moment for which it was kept."""
    of_a_standby = {"TPU_VISIBLE_CHIPS": "", "TPU_CHIPS_PER_HOST_BOUNDS": "1,2,1", "TPU_HOST_BOUNDS": "1,1,1"}

    environ = after(platform="tpu", inherited=of_a_standby)

    assert [name for name in environ if name.startswith("TPU_")] == []


def test_bounds_that_are_those_of_the_host_stay():
    """GKE sets them for libtpu on a slice of several hosts."""
    of_the_host = {"TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1", "TPU_HOST_BOUNDS": "2,2,1"}

    environ = after(platform="tpu", inherited=of_the_host)

    assert {name: environ[name] for name in of_the_host} == of_the_host


def test_the_chips_that_ray_chose_for_a_part_of_a_host_stay():
    """Ray knows which chips other programs have; the process checks the rest."""
    chosen = {"TPU_VISIBLE_CHIPS": "0,1"}

    environ = after(
        platform="tpu", inherited=chosen, devices=2, environment={"TPU_CHIPS_PER_HOST_BOUNDS": "1,2,1"}
    )

    assert environ["TPU_VISIBLE_CHIPS"] == "0,1"
