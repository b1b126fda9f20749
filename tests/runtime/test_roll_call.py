"""Every process is there before JAX starts, or the missing ones are named."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from raytpu.errors import DeadlineExceeded, HostLost, HostMismatch
from raytpu.plan import ProcessAssignment
from raytpu.runtime.roll_call import ANSWER_GRACE_S, await_listener, roll_call, split_address
from tests.runtime.builders import assignment
from tests.runtime.host_processes import free_port


def call_all(*assignments: ProcessAssignment, deadline_s: float = 10) -> list[BaseException | None]:
    """What each process got from the roll call, ``None`` for a return."""
    coordinator = f"127.0.0.1:{free_port()}"
    with ThreadPoolExecutor(len(assignments)) as pool:
        futures: list[Future[None]] = [
            pool.submit(roll_call, who, coordinator, deadline_s) for who in assignments
        ]
        return [future.exception(timeout=deadline_s + ANSWER_GRACE_S + 5) for future in futures]


def until_connected(coordinator: str) -> socket.socket:
    end = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(split_address(coordinator))
        except OSError:
            assert time.monotonic() < end


def test_all_processes_return_when_all_have_called():
    assert call_all(*[assignment(index) for index in (2, 0, 3, 1)]) == [None] * 4


def test_a_single_process_waits_for_nobody():
    roll_call(assignment(slices=1, hosts=1), "127.0.0.1:1", 0)


def test_everybody_learns_which_processes_are_missing():
    """JAX aborts the process after its own time limit, and names nobody."""
    errors = call_all(assignment(0), assignment(2), deadline_s=0.5)

    for error in errors:
        assert isinstance(error, DeadlineExceeded)
        assert error.late == (
            "process 1 (slice 0 of the plan, host 1)",
            "process 3 (slice 1 of the plan, host 1)",
        )


def test_a_missing_process_zero_is_named():
    [error] = call_all(assignment(2), deadline_s=0.3)

    assert isinstance(error, DeadlineExceeded)
    assert error.late == ("process 0 (slice 0 of the plan, host 0)",)


def test_two_processes_with_one_index_are_both_refused():
    """Two hosts with one rank would read the same rows, and a third would hang."""
    impostor = assignment(1, slice_name="slice-9")
    errors = call_all(assignment(0), assignment(1), impostor)

    assert all(isinstance(error, HostMismatch | HostLost) for error in errors)
    assert "claims to be process 1" in str(errors[0])


def test_a_process_of_another_plan_is_refused():
    """A process left over from an attempt with more slices must not take a seat in this one."""
    errors = call_all(assignment(0), assignment(1, slices=4))

    assert "expects 8 processes" in str(errors[0])
    assert "expects 8 processes" in str(errors[1])


def test_a_stranger_on_the_port_changes_nothing():
    """Port scanners and health checks connect to everything."""
    coordinator = f"127.0.0.1:{free_port()}"
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(roll_call, assignment(0), coordinator, 10)
        for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\xff\x00", b"[]\n", b""):
            with until_connected(coordinator) as stranger:
                stranger.sendall(noise)
        others = [pool.submit(roll_call, assignment(index), coordinator, 10) for index in (1, 2, 3)]

        assert [future.exception(timeout=20) for future in (first, *others)] == [None] * 4


def test_a_process_that_came_and_died_is_missing():
    """It had started; counted as present, everybody would enter JAX and wait there for it."""
    coordinator = f"127.0.0.1:{free_port()}"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(roll_call, assignment(0, slices=3, hosts=1), coordinator, 1.0)
        with until_connected(coordinator) as dying:
            dying.sendall(b'{"index": 1, "count": 3, "host": "slice-1/0"}\n')
        error = waiting.exception(timeout=20)

    assert isinstance(error, DeadlineExceeded)
    assert error.late == (
        "process 1 (slice 1 of the plan, host 0)",
        "process 2 (slice 2 of the plan, host 0)",
    )


def test_the_death_of_process_zero_ends_the_wait_of_the_others():
    """They would sit out the whole deadline for an answer that cannot come."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def die() -> None:
            connection, _ = listener.accept()
            connection.recv(1000)
            connection.close()

        threading.Thread(target=die, daemon=True).start()
        with pytest.raises(HostLost, match="slice-0/1 waited"):
            roll_call(assignment(1), f"127.0.0.1:{listener.getsockname()[1]}", 60)


def test_an_address_of_another_machine_is_refused_at_once():
    """Process 0 would never be reached, and everybody would wait for it."""
    with pytest.raises(HostMismatch, match=r"slice-0/0: cannot listen on .* 192\.0\.2\.1:9"):
        roll_call(assignment(0), "192.0.2.1:9", 10)


def test_the_port_is_free_again_afterwards():
    """JAX's coordinator listens on the same port right after."""
    coordinator = f"127.0.0.1:{free_port()}"
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda index: roll_call(assignment(index, slices=1), coordinator, 10), (0, 1)))

    with socket.create_server(split_address(coordinator)):
        await_listener(coordinator, 1)
