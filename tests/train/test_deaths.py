"""Ray's accounts of dead actors, as Ray 2.60.0 gave them."""

from __future__ import annotations

import pytest

from raytpu.train.deaths import in_words, is_intended, is_taken_back

HEAD = (
    "The actor died unexpectedly before finishing this task. class_name: HostWorker "
    "actor_id: 26d4f4e20deb592265e666b601000000 pid: 19836 namespace: e6c71ef5-4c83-4434-8d56-2adee7561f8b "
    "ip: 192.0.2.2 "
)
DIED = "The actor is dead because its worker process has died. "
CRASHED = (
    HEAD + DIED + "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a "
    "connection error code 2. End of file. Some common causes include: (1) the process was killed by the OOM "
    "killer due to high memory usage, (2) ray stop --force was called, or (3) the worker crashed "
    "unexpectedly due to SIGSEGV or another unexpected error. If the process was killed by the kernel "
    "OOM killer (verifiable by checking for OOM in dmesg of the OOMing node), consider enabling resource "
    "isolation via --enable-resource-isolation to prevent node deaths by resource contention and significant "
    "loss of progress by uninformed kernel OOM killing."
)
"""Of os._exit(7), SIGKILL and SIGSEGV alike."""
LEFT = (
    HEAD
    + DIED
    + "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker exits unexpectedly. Worker exits "
    "with an exit code 3."
)
KILLED = HEAD + "The actor is dead because it was killed by `ray.kill`."
TAKEN_BACK = (
    HEAD + DIED + "Worker exit type: INTENDED_SYSTEM_EXIT Worker exit detail: Destroying worker since its "
    "placement group was removed. Placement group id: 480075074810ddce30b8eb38adc901000000, bundle index: "
    "-1, lease id: 0600000000a1de4f1d47d9f0cb9abf32db8ae51b77b3f9f54ee8f06cfb453b54, actor id: "
    "dd77c4fb1c300e35e00c2e5a01000000, worker id: 0bbfbf20371c448107966f6e0a2997b8511254467e4e96269e63dc08"
)


@pytest.mark.parametrize(
    ("account", "words"),
    [
        (CRASHED, "its process ended unexpectedly"),
        (LEFT, "its process ended (exit code 3)"),
        (LEFT.replace("code 3", "code -9"), "its process ended (killed by signal 9)"),
        (KILLED, "its process was killed on purpose"),
        (TAKEN_BACK, "its process was ended, because its slice was taken back"),
        (HEAD + "The actor is dead because its node has died.", "Ray counts its node as dead"),
        ("ModuleNotFoundError: no module named 'foo'", "ModuleNotFoundError: no module named 'foo'"),
    ],
)
def test_a_death_is_told_in_one_clause(account: str, words: str) -> None:
    """Nine hundred characters about what may have been hide what is known."""
    assert in_words(account) == words


def test_deaths_that_have_a_cause_elsewhere_are_told_from_the_others() -> None:
    """A restart after a slice was taken back would train on slices of somebody else."""
    accounts = (CRASHED, LEFT, KILLED, TAKEN_BACK)
    assert [is_intended(each) for each in accounts] == [False, False, True, False]
    assert [is_taken_back(each) for each in accounts] == [False, False, False, True]
