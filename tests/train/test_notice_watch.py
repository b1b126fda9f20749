"""What Ray says of nodes becomes one fact for each slice of the run."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raytpu.gang import ray_internals
from raytpu.plan.hand_over import Source
from raytpu.record import PreemptionNoticed
from raytpu.spec import Recovery
from raytpu.train.notice_watch import NoticeWatch
from tests.waiting import await_true


def held(name: str, *node_ids: str) -> Any:
    hosts = [SimpleNamespace(name=f"{name}/{at}", node_id=node_id) for at, node_id in enumerate(node_ids)]
    return SimpleNamespace(name=name, hosts=hosts)


def test_the_host_of_a_slice_that_goes_first_speaks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline that is believed to be later than it is leaves no time for the save."""
    now_s = time.time()
    draining = {"a": now_s + 20, "b": now_s + 10, "c": None, "stranger": now_s + 5}
    monkeypatch.setattr(ray_internals, "draining_nodes", lambda: draining)
    slices = [held("slice-0", "a", "b"), held("slice-1", "c", "d"), held("slice-2", "e")]
    written: list[Any] = []
    log = SimpleNamespace(write=written.append, flush=lambda: None)
    watch = NoticeWatch(lambda: slices, list, Recovery(notice_s=40), cast(Any, log))

    await_true("all three", lambda: len(written) == 3)
    going = watch.going()

    assert {name: (each.host, each.source) for name, each in going.items()} == {
        "slice-0": ("slice-0/1", Source.DRAIN),
        "slice-1": ("slice-1/0", Source.DRAIN),
    }
    assert going["slice-0"].seconds_left == pytest.approx(10, abs=2)
    assert going["slice-1"].seconds_left == pytest.approx(40, abs=2), "Ray does not say"
    slices[1] = held("slice-1", "new", "d")
    assert set(watch.going()) == {"slice-0"}, "the name came back as another machine"
    watch.close()
    assert [type(each) for each in written] == [PreemptionNoticed] * 3, "once each"


def test_a_look_that_fails_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GCS that restarts would make the run deaf for good."""
    answers = iter([ConnectionError("the GCS restarts"), {"a": time.time() + 20}])

    def draining() -> Any:
        answer = next(answers, {})
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(ray_internals, "draining_nodes", draining)
    written: list[Any] = []
    log = SimpleNamespace(write=written.append, flush=lambda: None)
    watch = NoticeWatch(lambda: [held("slice-0", "a")], list, Recovery(), cast(Any, log))

    await_true("the notice", lambda: written)
    watch.close()
