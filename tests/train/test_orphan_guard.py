"""A gang ends when its driver has fallen silent, and only then."""

from __future__ import annotations

from raytpu.train.orphan_guard import HeartbeatWatch


def test_a_heartbeat_that_moves_keeps_the_gang():
    """A healthy run must never end itself."""
    watch = HeartbeatWatch("mine", grace_s=30, now_s=0)
    for now_s in range(0, 1000, 6):
        assert watch.verdict("mine", 5.0 * (now_s // 5), now_s) is None


def test_a_heartbeat_that_stands_still_ends_the_gang_after_the_grace():
    """A frozen driver would hold its slices for ever."""
    watch = HeartbeatWatch("mine", grace_s=30, now_s=0)
    assert watch.verdict("mine", 100.0, 0) is None
    assert watch.verdict("mine", 100.0, 30) is None
    assert watch.verdict("mine", 100.0, 31) == "the driver has not been heard of for 31 s"


def test_a_driver_that_let_go_counts_as_silent():
    """It may be taking its gang down at this moment: the grace is for that."""
    watch = HeartbeatWatch("mine", grace_s=30, now_s=0)
    assert watch.verdict("mine", 100.0, 0) is None
    assert watch.verdict(None, None, 20) is None
    assert watch.verdict(None, None, 31) is not None


def test_another_driver_ends_the_gang_at_once():
    """Two gangs on one run would write each other's checkpoints."""
    watch = HeartbeatWatch("mine", grace_s=30, now_s=0)
    assert watch.verdict("other", 100.0, 1) == "another driver has taken the run"


def test_a_storage_that_does_not_answer_says_nothing_about_the_driver():
    """An outage of the storage must not end every run on it."""
    watch = HeartbeatWatch("mine", grace_s=30, now_s=0)
    assert watch.verdict("mine", 100.0, 0) is None
    watch.cannot_tell(40)
    assert watch.verdict("mine", 100.0, 60) is None
