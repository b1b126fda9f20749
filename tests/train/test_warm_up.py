"""What a host process does before it has a place."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from raytpu.train.warm_up import await_gone


def test_a_process_waits_until_the_one_before_it_has_let_go_of_the_chips():
    """libtpu refuses a second process, and the attempt would fail on every host that it used before."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as before:
        try:
            assert not await_gone(before.pid, deadline_s=0.1)
            threading.Timer(0.2, before.kill).start()
            assert await_gone(before.pid, deadline_s=10), "a zombie, which its parent has not collected"
        finally:
            before.kill()
    assert await_gone(before.pid, deadline_s=0)


def test_a_process_that_warms_up_touches_no_device():
    """It stands beside the process that trains, and would take its chips."""
    code = (
        "from raytpu.train.warm_up import WarmUp; WarmUp(None, True, ()).join(); "
        "from jax._src import xla_bridge; print(xla_bridge.backends_are_initialized())"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)

    assert told.stdout.strip() == "False", told.stderr
