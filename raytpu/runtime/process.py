"""From a plan's assignment to a running, checked JAX process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as futures_wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from raytpu.errors import DeadlineExceeded, HostMismatch
from raytpu.plan import ProcessAssignment
from raytpu.runtime.environment import process_environment
from raytpu.runtime.identity import JaxFacts, check_environment, check_jax, describe
from raytpu.runtime.roll_call import await_listener, roll_call

T = TypeVar("T")

FATAL_MARGIN_S = 30.0
"""JAX's own wait ends this much after ours, with an abort of the process: time to report our error first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """A host process that is up and is who the plan says."""

    process_index: int
    host: str
    pid: int
    facts: JaxFacts
    jax_version: str
    environment: dict[str, str]
    """What was set from the plan, for the record."""
    removed: tuple[str, ...]
    """Stale variables that were found and removed."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time per phase: import_jax, roll_call, jax_init, devices."""


def start_process(
    assignment: ProcessAssignment,
    coordinator: str,
    *,
    jax_init_s: float,
    heartbeat_s: float,
    stop_s: float = 15.0,
    cache_dir: str | None = None,
) -> ProcessReport:
    """Make this Python process the JAX process that the plan assigns, and check that it is.

    ``coordinator`` is "address:port" on the host of process 0. ``jax_init_s`` bounds everything from the
    roll call to the first look at the devices. ``heartbeat_s`` is how long JAX bears a silent peer; then
    it aborts this process. ``stop_s`` bounds the wait for the others in ``stop_process``.

    Collective: every process of the plan must call it. It can be called once in the life of a process;
    after an error the process is of no further use and must end.

    Raises:
        HostMismatch: this host is not, or does not have, what the plan says; or JAX was in use before.
        DeadlineExceeded: naming the processes that were late.
        HostLost: process 0 went away during the roll call.
    """
    end = time.monotonic() + jax_init_s
    seconds: dict[str, float] = {}
    check_environment(assignment, os.environ)
    change = process_environment(assignment, coordinator, os.environ)
    change.apply(os.environ)
    with _timed(seconds, "import_jax"):
        _configure_jax(assignment)
        if cache_dir is not None:
            from raytpu.runtime.compile_cache import enable_compile_cache

            enable_compile_cache(cache_dir)
    with _timed(seconds, "roll_call"):
        roll_call(assignment, coordinator, round(max(end - time.monotonic(), 0.0), 1))
    with _timed(seconds, "jax_init"):
        _bounded(
            lambda: _initialize(assignment, coordinator, end, heartbeat_s, stop_s),
            end,
            f"{describe(assignment)} to join JAX at {coordinator}",
            jax_init_s,
        )
    with _timed(seconds, "devices"):
        facts = _bounded(
            lambda: _look_at_devices(assignment),
            end,
            f"{describe(assignment)} to see the devices of all {assignment.process_count} processes",
            jax_init_s,
        )
    check_jax(assignment, facts)
    import jax

    return ProcessReport(
        process_index=facts.process_index,
        host=assignment.host,
        pid=os.getpid(),
        facts=facts,
        jax_version=jax.__version__,
        environment=dict(change.set),
        removed=change.remove,
        seconds=seconds,
    )


def stop_process() -> None:
    """Leave the JAX world: waits up to ``stop_s`` for the others to leave as well.

    Collective. Doing it twice, or without a start, is not an error.
    """
    import jax

    jax.distributed.shutdown()


def _configure_jax(assignment: ProcessAssignment) -> None:
    """JAX reads its variables when it is imported; a warm process has done that long ago."""
    import jax

    try:
        jax.config.update("jax_platforms", assignment.platform)
        # It would take SIGTERM over, and agree on a step by itself: that is for whoever runs this process.
        jax.config.update("jax_enable_preemption_service", False)
        if assignment.platform == "cpu":
            jax.config.update("jax_num_cpu_devices", assignment.local_devices)
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
    except RuntimeError as error:
        raise HostMismatch(
            f"{describe(assignment)}: JAX was used before start_process: {error}\n"
            "  start a fresh process for every attempt"
        ) from error


def _initialize(
    assignment: ProcessAssignment, coordinator: str, end: float, heartbeat_s: float, stop_s: float
) -> None:
    if assignment.process_count == 1:
        return  # nobody to meet; and no port to hold
    import jax

    if assignment.process_index != 0:
        await_listener(coordinator, max(end - time.monotonic(), 0.0))
    try:
        jax.distributed.initialize(
            coordinator_address=coordinator,
            num_processes=assignment.process_count,
            process_id=assignment.process_index,
            # Otherwise JAX asks the metadata server, Slurm, … for what the plan has decided.
            cluster_detection_method="deactivate",
            initialization_timeout=int(max(end - time.monotonic(), 0.0) + FATAL_MARGIN_S),
            heartbeat_timeout_seconds=max(1, round(heartbeat_s)),
            shutdown_timeout_seconds=max(1, round(stop_s)),
            # JAX's default is every interface of the machine.
            coordinator_bind_address=coordinator,
        )
    except RuntimeError as error:
        raise HostMismatch(f"{describe(assignment)}: jax.distributed.initialize: {error}") from error


def _look_at_devices(assignment: ProcessAssignment) -> JaxFacts:
    """Brings the backend up, in which all processes exchange their devices."""
    import jax

    try:
        devices = jax.devices()
    except RuntimeError as error:
        raise HostMismatch(
            f"{describe(assignment)}: expected {assignment.local_devices} {assignment.platform} device(s), "
            f"found no usable backend: {error}"
        ) from error
    return JaxFacts(
        process_index=jax.process_index(),
        process_count=jax.process_count(),
        platform=devices[0].platform,
        local_devices=jax.local_device_count(),
        global_devices=len(devices),
    )


def _bounded(work: Callable[[], T], end: float, waited_for: str, deadline_s: float) -> T:
    """The result of ``work``, or DeadlineExceeded while ``work`` goes on in its thread.

    JAX's waits are in C++ and cannot be interrupted; the process has to end after the error.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # the thread's boundary: raised again by outcome.result below
            outcome.set_exception(error)

    threading.Thread(target=run, name="raytpu-start", daemon=True).start()
    done, _ = futures_wait([outcome], timeout=max(end - time.monotonic(), 0.0))
    if not done:
        raise DeadlineExceeded(
            waited_for,
            deadline_s,
            hint="all answered the roll call before; one has died or hangs since: see the logs of the hosts",
        )
    return outcome.result()


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    seconds[phase] = time.monotonic() - started
