"""A replica that never gets to take part is not waited for."""

from __future__ import annotations

from typing import Any

import pytest

from raytpu.train.replicas.replica import Replica


def replica(**facts: Any) -> Replica:
    nothing: Any = None
    return Replica("a#1", nothing, nothing, (), nothing, **facts)


def test_it_is_late_from_the_call_of_its_train_function_on() -> None:
    assert replica(called_s=100.0).late_s(160.0) == 60


@pytest.mark.parametrize(
    "facts",
    [{}, {"admitted": True}, {"reserve": True}, {"lost": "its host is down"}],
    ids=["still starting", "takes part", "in reserve", "lost already"],
)
def test_who_is_not_expected_is_not_late(facts: dict[str, Any]) -> None:
    called = {"called_s": 100.0} if facts else {}
    assert replica(**called, **facts).late_s(10_000.0) == 0
