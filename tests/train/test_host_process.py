"""What leaves a host process can travel."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from raytpu.train.host_process import that_pickles


def unpicklable() -> Any:
    return threading.Lock()


class Stubborn:
    def __reduce__(self) -> str:
        raise ValueError("not on every host")


@pytest.mark.parametrize(
    ("result", "program", "words"),
    [
        (
            unpicklable(),
            "myloop:unpicklable",
            "what myloop:unpicklable returned (a _thread.lock) cannot be pickled; its result is dropped",
        ),
        ([Stubborn()], unpicklable, ":unpicklable returned (a list) cannot be pickled"),
    ],
)
def test_a_result_that_cannot_travel_is_dropped_and_told(
    result: Any, program: Any, words: str, caplog: pytest.LogCaptureFixture
):
    """Ray Train pickles it after the last step: a training that is complete would fail, at every try."""
    assert that_pickles(result, program) is None
    assert words in caplog.text


def test_a_result_that_can_travel_is_kept(caplog: pytest.LogCaptureFixture):
    result = {"loss": 1.5, "function": lambda: 3}

    assert that_pickles(result, "myloop:train") is result
    assert caplog.text == ""
