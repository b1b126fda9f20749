"""Writing events: one JSON line per event, one growing file per writer, no coordination between writers.

A line is ``{"time": seconds since 1970, "attempt": number or null, "event": {"kind": …, its fields}}``.
The writer is in the name of the file: ``driver.jsonl``, ``slice-0-host1.a003.jsonl`` (attempt 3).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from types import TracebackType

from raytpu.errors import StorageError
from raytpu.record.appending import FLUSH_INTERVAL_S, open_appender
from raytpu.record.events import WrittenEvent, event_document
from raytpu.record.run_directory import RunDirectory
from raytpu.record.storage import join_url
from raytpu.record.writer_name import EVENT_SUFFIX, event_stem


class EventLog:
    """The events of one writer of a run. Thread-safe.

    On a local path each event is on disk, as far as the death of the process is concerned, when ``write``
    returns. On an object store events are flushed every few seconds and by ``flush`` and ``close``; a
    flush in the background that fails is tried again with the next one, and ``flush`` and ``close`` raise.
    """

    def __init__(
        self,
        directory: RunDirectory | str,
        writer: str,
        attempt: int | None = None,
        clock: Callable[[], float] = time.time,
        flush_interval_s: float = FLUSH_INTERVAL_S,
    ) -> None:
        """Open the log of ``writer``, going on where an earlier one of the same name ended.

        Args:
            directory: the run directory, or its URL.
            writer: ``driver``, or a host such as ``slice-0/1``.
            attempt: which attempt a host belongs to; ``None`` for the driver, whose ``AttemptStarted``
                events say so.
            clock: seconds since 1970.
            flush_interval_s: how long an event may stay in memory on an object store.

        Raises:
            StorageError: the record cannot be written.
        """
        self._clock, self._attempt = clock, attempt
        self._lock = threading.Lock()
        self._closed = threading.Event()
        stem = event_stem(writer, attempt)
        self._appender = open_appender(join_url(str(directory), "record"), stem, EVENT_SUFFIX)
        self._flusher: threading.Thread | None = None
        if self._appender.needs_flush:
            self._flusher = threading.Thread(
                target=self._flush_regularly,
                args=(flush_interval_s,),
                name=f"raytpu-events-{stem}",
                daemon=True,
            )
            self._flusher.start()

    def write(self, event: WrittenEvent, time_s: float | None = None) -> None:
        """Add one event.

        Args:
            event: what happened.
            time_s: when it happened (for durations: when they ended), if that was not just now.

        Raises:
            StorageError: the local file cannot be appended to.
            ValueError: the log is closed.
        """
        when = self._clock() if time_s is None else time_s
        document = {"time": round(when, 6), "attempt": self._attempt, "event": event_document(event)}
        line = json.dumps(document, separators=(",", ":"), allow_nan=False)
        with self._lock:
            if self._closed.is_set():
                raise ValueError("the event log is closed")
            self._appender.append(line.encode() + b"\n")

    def flush(self) -> None:
        """Bring everything written so far to the storage.

        Raises:
            StorageError: the storage does not take it.
        """
        with self._lock:
            if not self._closed.is_set():
                self._appender.flush()

    def close(self) -> None:
        """Flush and close. Closing twice is not an error.

        Raises:
            StorageError: the storage does not take what was left.
        """
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            self._appender.close()
        if self._flusher is not None:
            self._flusher.join()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _flush_regularly(self, interval_s: float) -> None:
        while not self._closed.wait(interval_s):
            try:
                self.flush()
            except StorageError:
                # Kept in memory and tried again; whoever calls flush or close next gets the error.
                continue
