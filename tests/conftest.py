"""What holds for every test: order, time limits, devices, temporary folders, and that no host is left behind.

A test is *fast* unless marked ``local_ray``, ``workflow``, ``thorough``, ``bench`` or ``soak``. Fast tests
run first, may not warn, and see 8 JAX devices on the CPU.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.leftover_processes import await_no_leftovers, mark_this_session

SLOW_MARKS = (
    "local_ray",
    "workflow",
    "thorough",
    "bench",
    "soak",
)  # in the order in which they run, after the fast ones

# Folders of the half that only decides. 5 s: such a test takes milliseconds, so one that takes seconds waits
# for something or loads a heavy package.
DECIDING = ("topology", "spec", "plan", "lint", "manifest")
DECIDING_LIMIT_S = 5
FAST_LIMIT_S = 120  # by feel: the first compilation of a model on a busy core

# Only fast tests may see it: a simulated host sets its own number of devices.
DEVICES_FLAG = "--xla_force_host_platform_device_count=8"

LEFT_BEHIND = pytest.StashKey[str]()

os.environ["JAX_PLATFORMS"] = "cpu"

# A shell ignores SIGINT in background commands, and children inherit that: no Ctrl-C would reach them.
signal.signal(signal.SIGINT, signal.default_int_handler)
mark_this_session()


def slow_marks(item: pytest.Item) -> list[str]:
    """The marks of ``item`` that make it run late, in the order of ``SLOW_MARKS``; empty when it is fast."""
    return [mark for mark in SLOW_MARKS if item.get_closest_marker(mark)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first, whole stories last; a close time limit and no warnings where no cluster starts."""
    items.sort(key=lambda item: max((SLOW_MARKS.index(mark) + 1 for mark in slow_marks(item)), default=0))
    tests = Path(__file__).parent
    for item in items:
        if slow_marks(item):
            item.add_marker(pytest.mark.filterwarnings("default"))
        elif not item.get_closest_marker("timeout"):
            deciding = item.path.relative_to(tests).parts[0] in DECIDING
            item.add_marker(pytest.mark.timeout(DECIDING_LIMIT_S if deciding else FAST_LIMIT_S))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture of the test: what a cluster inherits is a user's environment, not this suite's."""
    if slow_marks(item):
        os.environ.pop("XLA_FLAGS", None)
    else:
        os.environ["XLA_FLAGS"] = DEVICES_FLAG


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A folder with a short path, gone after the test.

    The sockets of a Ray node lie below its temporary folder, and the path of a Unix socket may have 107
    bytes; ``tmp_path`` alone can use them up.
    """
    path = Path(tempfile.mkdtemp(prefix="rt-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.hookimpl(trylast=True)  # after pytest's own, which tears down what an interrupted session left set up
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session, whatever its tests said, when a process of a simulated host outlives it."""
    leftovers = await_no_leftovers(
        deadline_s=10
    )  # 10 s: hosts of a fixture that was just torn down may be dying
    if not leftovers:
        return
    session.config.stash[LEFT_BEHIND] = "\n".join(leftovers)
    session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the processes that were left behind (and are now killed)."""
    if LEFT_BEHIND in config.stash:
        terminalreporter.section("processes of simulated hosts left behind", red=True)
        terminalreporter.write_line(config.stash[LEFT_BEHIND])
