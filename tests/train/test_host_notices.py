"""What a host hears of its own end."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from raytpu.plan.hand_over import Source
from raytpu.train.host_notices import SIGTERM_SETTLES_S, HostNotices
from raytpu.train.metadata_server import ON_GOOGLE_CLOUD, MetadataWatch, metadata_address
from tests.waiting import await_true


class MetadataServer:
    """Google's, as far as a host asks it: values with tags, and answers that wait for a change."""

    def __init__(self) -> None:
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.asked: list[str] = []
        self.changed = threading.Condition()
        self.failing = 0
        owner = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.answer(self)

            def log_message(self, *_: object) -> None:
                """Prints nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        key, query = url.path.removeprefix("/computeMetadata/v1/instance/"), parse_qs(url.query)
        with self.changed:
            self.asked.append(request.path)
            failing, self.failing = self.failing > 0, self.failing - 1
            if "wait_for_change" in query and not failing:
                seen = query["last_etag"][0]
                self.changed.wait_for(lambda: self.values[key] != seen, float(query["timeout_sec"][0]))
            body = self.values[key].encode()
        flavoured = request.headers["Metadata-Flavor"] == "Google" and not failing
        request.send_response(200 if flavoured else 403)
        request.send_header("Metadata-Flavor", "Google")
        request.send_header("ETag", body.decode())
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def set(self, key: str, value: str) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def waits(self) -> int:
        """Questions that were held back."""
        with self.changed:
            return sum("wait_for_change=true" in each for each in self.asked)


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    server = MetadataServer()
    yield server
    server.server.shutdown()
    server.server.server_close()


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
