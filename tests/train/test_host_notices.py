"""What a host hears of its own end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from raytpu.plan.hand_over import Source
from raytpu.train.host_notices import SIGTERM_SETTLES_S, HostNotices
from raytpu.train.metadata_server import ON_GOOGLE_CLOUD, MetadataWatch, metadata_address
from tests.metadata_server import MetadataServer
from tests.waiting import await_true


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    server = MetadataServer()
    yield server
    server.close()


@pytest.mark.parametrize(
    ("key", "value", "source"),
    [
        ("preempted", "TRUE", Source.PREEMPTED),
        ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE", Source.MAINTENANCE),
    ],
)
def test_what_the_metadata_server_announces_is_heard_when_it_changes(
    server: MetadataServer, key: str, value: str, source: Source
) -> None:
    """Half a minute is all there is: a question every ten seconds would waste a third of it."""
    heard = HostNotices()
    watch = MetadataWatch(server.address, heard.hear)
    await_true("both questions to be held back", lambda: server.waits() == 2)
    assert heard.ages_s() == {}
    server.set("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
    await_true("it to be asked again", lambda: server.waits() == 3)
    assert heard.ages_s() == {}, "the VM goes on"

    server.set(key, value)

    assert await_true("the notice", heard.ages_s) < 1
    assert set(heard.ages_s()) == {source}
    assert len([each for each in server.asked if "wait_for_change" not in each]) == 2
    watch.close()


def test_a_notice_that_was_there_before_is_heard_too(server: MetadataServer) -> None:
    server.set("preempted", "TRUE")
    heard = HostNotices()

    watch = MetadataWatch(server.address, heard.hear)

    await_true("the notice", heard.ages_s)
    watch.close()


def test_a_server_that_fails_is_asked_again(
    server: MetadataServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is restarted would never be heard of again."""
    monkeypatch.setattr("raytpu.train.metadata_server.RETRY_S", 0.01)
    server.failing = 4
    heard = HostNotices()
    watch = MetadataWatch(server.address, heard.hear)
    await_true("both questions to be held back", lambda: server.waits() == 2)

    server.set("preempted", "TRUE")

    await_true("the notice", heard.ages_s)
    assert f"the metadata server {server.address} does not tell" in caplog.text
    assert len(caplog.records) <= 2, "once for each key"
    watch.close()


@pytest.mark.parametrize(
    ("simulated", "environment", "address"),
    [
        (False, {}, ON_GOOGLE_CLOUD),
        (True, {}, None),
        (True, {"GCE_METADATA_HOST": "127.0.0.1:80"}, "127.0.0.1:80"),
        (False, {"GCE_METADATA_HOST": "10.0.0.1"}, "10.0.0.1"),
    ],
)
def test_simulated_hosts_ask_only_a_server_that_was_named(
    simulated: bool, environment: dict[str, str], address: str | None
) -> None:
    assert metadata_address(simulated, environment) == address


PROGRAM = """
import sys, threading
from raytpu.train.host_notices import on_sigterm
done = threading.Event()
on_sigterm(done.set)
print("listening", flush=True)
sys.exit(0 if done.wait(20) else 1)
"""


def test_sigterm_is_a_notice_and_not_the_end() -> None:
    """Ray's own handler ends the process: nothing would be saved."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"

    process.terminate()

    assert process.wait(20) == 0
    process.stdout.close()


def test_sigterm_counts_only_for_a_process_that_outlives_it() -> None:
    """Ray ends processes with SIGTERM, then SIGKILL: taken for a notice, it would drain a healthy machine."""
    heard = HostNotices()
    heard.hear(Source.SIGTERM)
    heard.hear(Source.PREEMPTED)
    assert set(heard.ages_s()) == {Source.PREEMPTED}

    heard.heard_s[Source.SIGTERM] -= SIGTERM_SETTLES_S

    assert heard.ages_s()[Source.SIGTERM] == pytest.approx(SIGTERM_SETTLES_S, abs=0.5)
