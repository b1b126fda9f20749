"""One cause out of the many errors of a broken gang."""

from __future__ import annotations

import pytest

from raytpu.errors import CheckpointMismatch, HostLost, ProgramFailed, RaytpuError
from raytpu.train.endings import cause_of

HOSTS = ["slice-0/0", "slice-0/1", "slice-1/0", "slice-1/1"]
GLOO = ProgramFailed("slice-0/0: XlaRuntimeError: Gloo all-reduce failed: Connection closed by peer")
BUG = ProgramFailed("slice-1/0: ValueError: no")
DIED = "The actor died unexpectedly before finishing this task."
KILLED = "The actor is dead because it was killed by `ray.kill`."


@pytest.mark.parametrize(
    ("failures", "deaths", "kind", "words"),
    [
        ({2: BUG}, {}, ProgramFailed, "ValueError: no"),
        ({0: GLOO, 2: BUG}, {}, ProgramFailed, "ValueError: no"),
        ({0: GLOO}, {"slice-1/1": DIED}, HostLost, "lost slice-1/1"),
        ({0: GLOO}, {"slice-0/0": KILLED, "slice-1/1": DIED}, HostLost, "lost slice-1/1"),
        ({0: GLOO, 1: GLOO}, {"slice-0/0": KILLED}, HostLost, "a collective failed on slice-0/0, slice-0/1"),
        ({3: CheckpointMismatch("another model")}, {"slice-0/0": DIED}, CheckpointMismatch, "another model"),
        ({1: MemoryError("no room")}, {}, ProgramFailed, "slice-0/1: MemoryError: no room"),
        ({}, {}, ProgramFailed, "without a result"),
    ],
)
def test_the_cause_is_told_from_its_echoes(
    failures: dict[int, BaseException], deaths: dict[str, str], kind: type[RaytpuError], words: str
) -> None:
    """A person who reads "gloo failed on slice-0" looks at the wrong slice."""
    cause = cause_of(HOSTS, failures, deaths)
    assert type(cause) is kind
    assert words in str(cause)
