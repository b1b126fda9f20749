"""Hear from Google Cloud's metadata server that this VM is preempted, or ended for maintenance.

It answers a request with ``wait_for_change`` when the value changes, so a notice comes at once and nothing is
polled. See https://cloud.google.com/compute/docs/metadata/querying-metadata and, for the values,
https://cloud.google.com/compute/docs/instances/create-use-spot and …/metadata/getting-live-migration-notice.
"""

from __future__ import annotations

import http.client
import logging
import threading
from collections.abc import Callable, Mapping

from raytpu.plan.hand_over import Source

ON_GOOGLE_CLOUD = "metadata.google.internal"

ADDRESS_VARIABLE = "GCE_METADATA_HOST"
"""Google's own libraries look there for another address, ``host`` or ``host:port``."""

NOTICES = {
    ("preempted", "TRUE"): Source.PREEMPTED,
    # MIGRATE_ON_HOST_MAINTENANCE moves a VM that goes on; VMs with TPUs cannot be moved.
    ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE"): Source.MAINTENANCE,
}

HOLD_S = 60
"""For the server to hold an answer back while nothing changes."""

ANSWER_S = 15.0
"""For an answer that is not held back; added to ``HOLD_S`` for one that is."""

RETRY_S = 10.0
"""After a failure. By feel: it costs nothing, and 10 s of a notice can be spared."""

_log = logging.getLogger(__name__)


def metadata_address(simulated: bool, environment: Mapping[str, str]) -> str | None:
    """Where this host's metadata server is; ``None`` where there is none to be expected."""
    return environment.get(ADDRESS_VARIABLE) or (None if simulated else ON_GOOGLE_CLOUD)


class MetadataWatch:
    """Asks in threads of its own, until ``close``, and never fails: a notice is a favour.

    Args:
        address: of the server, ``host`` or ``host:port``.
        heard: called once for each notice, from such a thread.
    """

    def __init__(self, address: str, heard: Callable[[Source], None]) -> None:
        self._address, self._heard = address, heard
        self._closed = threading.Event()
        for key in dict.fromkeys(key for key, _ in NOTICES):
            thread = threading.Thread(target=self._watch, args=(key,), name=f"raytpu-{key}", daemon=True)
            thread.start()

    def close(self) -> None:
        """Ask no more; an answer that is awaited is ignored."""
        self._closed.set()

    def _watch(self, key: str) -> None:
        told, seen = False, ""
        while not self._closed.is_set():
            try:
                # The first question does not wait. Google warns of maintenance only who has asked once.
                value, seen = self._ask(key, seen)
            except (OSError, http.client.HTTPException) as error:
                if not told:
                    told = True
                    _log.warning("the metadata server %s does not tell %s: %s", self._address, key, error)
                self._closed.wait(RETRY_S)
                continue
            source = NOTICES.get((key, value))
            if source is not None and not self._closed.is_set():
                self._heard(source)
                return

    def _ask(self, key: str, seen: str) -> tuple[str, str]:
        """The value, and its tag; with the tag of a value, as soon as it is another one."""
        path, patience_s = f"/computeMetadata/v1/instance/{key}", ANSWER_S
        if seen:
            path += f"?wait_for_change=true&last_etag={seen}&timeout_sec={HOLD_S}"
            patience_s += HOLD_S
        connection = http.client.HTTPConnection(self._address, timeout=patience_s)
        try:
            connection.request("GET", path, headers={"Metadata-Flavor": "Google"})
            response = connection.getresponse()
            text = response.read().decode(errors="replace").strip()
            tag = response.getheader("ETag")
            if response.status != http.client.OK or response.getheader("Metadata-Flavor") != "Google":
                raise http.client.HTTPException(f"status {response.status}: {text[:100]!r}")
            if tag is None:
                raise http.client.HTTPException("an answer without ETag cannot be waited upon")
            return text, tag
        finally:
            connection.close()
