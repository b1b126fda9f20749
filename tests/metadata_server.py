"""A stand-in for Google Cloud's metadata server, over real HTTP."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


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

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
