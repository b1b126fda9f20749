"""A host that is not who the plan says is named, with everything that differs."""

from __future__ import annotations

import pytest

from raytpu.errors import HostMismatch
from raytpu.runtime.identity import JaxFacts, check_environment, check_jax
from tests.runtime.builders import assignment


def facts(**changes: object) -> JaxFacts:
    plain = {
        "process_index": 3,
        "process_count": 4,
        "platform": "cpu",
        "local_devices": 4,
        "global_devices": 16,
    }
    return JaxFacts(**(plain | changes))


def test_a_host_that_is_who_the_plan_says_passes():
    check_environment(assignment(3), {"TPU_NAME": "slice-1", "TPU_WORKER_ID": "1"})
    check_jax(assignment(3), facts())


def test_a_host_without_tpu_variables_is_left_to_jax_to_check():
    """On Compute Engine the worker id is in the metadata server only."""
    check_environment(assignment(3), {})


def test_a_process_on_another_host_than_planned_names_both():
    """Ray gave worker 0's process to worker 1: every shard would be read by the wrong host."""
    with pytest.raises(HostMismatch) as caught:
        check_environment(assignment(3), {"TPU_NAME": "slice-0", "TPU_WORKER_ID": "0"})

    assert str(caught.value) == (
        "slice-1/1 (process 3, 127.0.0.1): TPU_NAME is 'slice-0', expected 'slice-1'; "
        "TPU_WORKER_ID is '0', expected '1'\n"
        "  the process was placed on another host than planned"
    )


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"process_index": 2}, r"slice-1/1 .*jax.process_index\(\) is 2, expected 3"),
        ({"process_count": 2}, r"jax.process_count\(\) is 2, expected 4"),
        ({"platform": "tpu"}, r"platform is 'tpu', expected 'cpu'"),
        ({"local_devices": 3}, r"jax.local_device_count\(\) is 3, expected 4"),
        ({"global_devices": 8}, r"jax.device_count\(\) is 8, expected 16"),
    ],
)
def test_every_difference_to_the_plan_is_refused(found: dict[str, object], message: str):
    """On TPUs JAX may number processes in the slice's order and not in ours (NovaSky-AI/SkyRL#1252)."""
    with pytest.raises(HostMismatch, match=message):
        check_jax(assignment(3), facts(**found))


def test_all_differences_are_told_at_once():
    """One a restart costs minutes on a real slice."""
    with pytest.raises(HostMismatch) as caught:
        check_jax(assignment(3), facts(process_index=0, local_devices=8, global_devices=32))

    assert str(caught.value).count("expected") == 3


@pytest.mark.parametrize(("count", "visible"), [(1, "3"), (4, "0,1,2,3"), (4, "7,6,5,4"), (4, "")])
def test_neighbouring_chips_make_a_part(count: int, visible: str):
    part = assignment(3, chips=count, environment={"TPU_TOPOLOGY": "2x2"})

    check_environment(part, {"TPU_VISIBLE_CHIPS": visible} if visible else {})


@pytest.mark.parametrize(("count", "visible"), [(1, "2,3"), (4, "0,1,2,5"), (4, "2,3,4,5"), (4, "0,1")])
def test_chips_that_are_no_neighbours_are_found_before_libtpu_hangs_on_them(count: int, visible: str):
    """Ray gives any free chips; beside a job that raytpu does not know they may be scattered."""
    part = assignment(3, chips=count, environment={"TPU_TOPOLOGY": "2x2"})

    with pytest.raises(HostMismatch, match=f"TPU_VISIBLE_CHIPS is '{visible}', expected {count} "):
        check_environment(part, {"TPU_VISIBLE_CHIPS": visible})
