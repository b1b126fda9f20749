"""Names of hosts and drivers as parts of file names, and back."""

from __future__ import annotations

import re
import urllib.parse

DRIVER = "driver"
EVENT_SUFFIX = ".jsonl"
LOG_SUFFIX = ".log"

_HOST_STEM = re.compile(r"^(?P<slice>.+)-host(?P<host>\d+)$")
_ATTEMPT = re.compile(r"^(?P<stem>.+)\.a(?P<attempt>\d+)$")


def writer_stem(writer: str) -> str:
    """``slice-0/1`` → ``slice-0-host1``; others, such as ``driver``, stay. Unsafe characters are quoted."""
    slice_name, separator, host = writer.rpartition("/")
    if separator and host.isdigit():
        return f"{_quoted(slice_name)}-host{host}"
    return _quoted(writer)


def writer_of(stem: str) -> str:
    """The reverse of ``writer_stem``."""
    match = _HOST_STEM.match(stem)
    if match is None:
        return urllib.parse.unquote(stem)
    return f"{urllib.parse.unquote(match['slice'])}/{match['host']}"


def event_stem(writer: str, attempt: int | None) -> str:
    """Stem of the event file of a writer, in one attempt where it lives no longer than that."""
    return writer_stem(writer) if attempt is None else f"{writer_stem(writer)}.a{attempt:03d}"


def writer_of_event_stem(stem: str) -> str:
    """The writer in a stem made by ``event_stem``."""
    match = _ATTEMPT.match(stem)
    return writer_of(stem if match is None else match["stem"])


def _quoted(name: str) -> str:
    # A dot separates attempt and segment from the name, so a dot inside a name is quoted as well.
    return urllib.parse.quote(name, safe="").replace(".", "%2E")


def name_order(writer: str) -> tuple[object, ...]:
    """Sort key that puts ``slice-2/0`` before ``slice-10/0`` and the driver first."""
    parts = re.split(r"(\d+)", writer)
    return (writer != DRIVER, *((part.isdigit(), int(part) if part.isdigit() else part) for part in parts))
