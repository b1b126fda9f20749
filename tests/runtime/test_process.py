"""A host process starts as the plan says, or says what is wrong, in time."""

from __future__ import annotations

from tests.runtime.host_processes import answers_of, run_hosts

START_AND_TELL_THE_ERROR = """
from raytpu.errors import RaytpuError
if given.get("use_jax_first"):
    import jax
    jax.devices()
try:
    start(**given["start"])
except RaytpuError as error:
    answer([type(error).__name__, str(error)])
    os._exit(0)  # what a host does after such an error: JAX may still be waiting in a thread
"""


def test_processes_come_up_in_the_plans_order_with_the_plans_devices_and_environment():
    """Poisoned with variables of an earlier gang, a host would wait for slices that are gone."""
    program = """
    me, report = start(slices=2, hosts=1, devices=2)
    import jax
    from raytpu.runtime import stop_process
    facts = report.facts
    answer([jax.process_index(), facts.platform, facts.local_devices, facts.global_devices,
            os.environ["MEGASCALE_SLICE_ID"], os.environ["MEGASCALE_NUM_SLICES"],
            "MEGASCALE_OLD" in os.environ, list(report.removed), sorted(report.seconds)])
    stop_process()
    stop_process()
    """
    poison = {
        "MEGASCALE_SLICE_ID": "5",
        "MEGASCALE_NUM_SLICES": "6",
        "MEGASCALE_OLD": "1",
        "JAX_PROCESS_ID": "9",
        "JAX_COORDINATOR_ADDRESS": "192.0.2.1:1",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=3",
    }

    answers = answers_of(run_hosts(program, 2, environment=poison))

    removed = ["JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID", "MEGASCALE_OLD"]
    phases = ["devices", "import_jax", "jax_init", "roll_call"]
    assert answers == [[index, "cpu", 2, 4, str(index), "2", False, removed, phases] for index in range(2)]


def test_a_process_that_never_starts_is_named_by_those_that_did():
    """JAX's own time limit aborts every healthy host and names nobody."""
    given = {"slices": 2, "hosts": 2, "devices": 1, "jax_init_s": 6}
    answers = answers_of(run_hosts(START_AND_TELL_THE_ERROR, indices=(0, 1, 3), start=given))

    for kind, message in answers:
        assert kind == "DeadlineExceeded"
        assert "late: process 2 (slice 1 of the plan, host 0)" in message


def test_a_process_that_hangs_between_the_roll_call_and_jax_is_an_error_and_not_an_abort():
    """An abort by JAX leaves a stack trace of C++ and no reason."""
    program = """
    if index == 0:
        from raytpu.errors import DeadlineExceeded
        try:
            start(slices=2, hosts=1, devices=1, jax_init_s=6)
        except DeadlineExceeded as error:
            answer(str(error))
            os._exit(0)
    else:
        from raytpu.runtime.roll_call import roll_call
        roll_call(assignment(index, slices=2, hosts=1, devices=1), coordinator, 30)
        answer("in the roll call")
    """

    first, _ = answers_of(run_hosts(program, 2))

    assert "waited 6 s for slice-0/0 (process 0, 127.0.0.1) to join JAX" in first
    assert "one has died or hangs" in first


def test_a_host_with_another_device_count_than_planned_is_refused():
    """A collective over fewer devices than the mesh hangs or fails far from the cause."""
    given = {"slices": 1, "hosts": 1, "devices": 2, "global_devices": 99}
    [[kind, message]] = answers_of(run_hosts(START_AND_TELL_THE_ERROR, 1, start=given))

    assert kind == "HostMismatch"
    assert "slice-0/0 (process 0, 127.0.0.1): jax.device_count() is 2, expected 99" in message


def test_a_tpu_plan_never_falls_back_to_cpu():
    """The run would go on, a thousand times slower, and look healthy."""
    given = {"slices": 1, "hosts": 1, "devices": 4, "platform": "tpu"}
    [[kind, message]] = answers_of(
        run_hosts(START_AND_TELL_THE_ERROR, 1, start=given, environment={"JAX_PLATFORMS": "cpu"})
    )

    assert kind == "HostMismatch"
    assert "slice-0/0" in message
    assert "expected 4 tpu device(s), found no usable backend" in message


def test_a_process_in_which_jax_was_used_before_is_refused():
    """Its platform and device count are fixed, whatever the plan says."""
    given = {"slices": 1, "hosts": 1}
    [[kind, message]] = answers_of(run_hosts(START_AND_TELL_THE_ERROR, 1, start=given, use_jax_first=True))

    assert kind == "HostMismatch"
    assert "JAX was used before start_process" in message


def test_a_warm_process_that_has_imported_jax_gets_the_plans_devices():
    """JAX reads its variables on import; a standby process has done that long ago."""
    program = """
    import jax
    me, report = start(slices=1, hosts=1, devices=3)
    answer([report.facts.platform, report.facts.local_devices])
    """

    assert answers_of(run_hosts(program, 1)) == [["cpu", 3]]


def test_a_process_on_the_wrong_host_is_refused_before_jax_is_loaded():
    """JAX would take the chips of that host from the process that belongs there."""
    program = """
    from raytpu.errors import HostMismatch
    try:
        start(slices=2, hosts=2)
    except HostMismatch as error:
        answer([str(error), "jax" in sys.modules])
    """
    [[message, jax_loaded]] = answers_of(
        run_hosts(program, 1, environment={"TPU_NAME": "slice-0", "TPU_WORKER_ID": "1"})
    )

    assert "TPU_WORKER_ID is '1', expected '0'" in message
    assert not jax_loaded
