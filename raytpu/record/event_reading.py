"""Reading events back: of all writers, merged by time, whatever state the files are in."""

from __future__ import annotations

import heapq
import json
from dataclasses import dataclass

from raytpu.record.appending import GrowingFiles
from raytpu.record.events import AttemptEnded, AttemptStarted, Damaged, Event, RunStarted, event_of
from raytpu.record.run_directory import RunDirectory
from raytpu.record.storage import join_url
from raytpu.record.writer_name import EVENT_SUFFIX, writer_of_event_stem

# Longest begin of a damaged line that is kept, to show it.
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event with what the log knows about it."""

    time_s: float
    """Seconds since 1970 by the clock of the writer."""
    writer: str
    """``driver`` or a host such as ``slice-0/1``."""
    attempt: int | None
    """The attempt it belongs to; ``None`` for what the driver does between attempts."""
    event: Event


def read_events(directory: RunDirectory | str) -> list[Recorded]:
    """All events of a run so far, merged by time; the order of each single writer is kept.

    A last line without its end is left out (a writer died in it, or is in it now). Lines that are no
    events become ``Damaged``, events of other versions ``Unknown``.

    Raises:
        StorageError: the record cannot be read.
    """
    return EventTail(directory).poll()


class EventTail:
    """Incremental reader, for progress: each ``poll`` gives what is new since the last one."""

    def __init__(self, directory: RunDirectory | str) -> None:
        self._files = GrowingFiles(join_url(str(directory), "record"), EVENT_SUFFIX)
        self._attempt: dict[str, int | None] = {}
        self._time_s: dict[str, float] = {}

    def poll(self) -> list[Recorded]:
        """New events of all writers, merged by time within this poll.

        Raises:
            StorageError: the record cannot be read.
        """
        streams = [self._recorded(stem, lines) for stem, lines in self._files.poll()]
        return list(heapq.merge(*streams, key=lambda recorded: recorded.time_s))

    def _recorded(self, stem: str, lines: list[bytes]) -> list[Recorded]:
        writer = writer_of_event_stem(stem)
        found = []
        for line in filter(None, lines):
            time_s, attempt, event = _parse(line)
            if time_s is None:  # a damaged line has no time: it stands where it was found
                time_s = self._time_s.get(stem, 0.0)
            if isinstance(event, AttemptStarted):
                attempt = event.attempt
            if attempt is None:
                attempt = self._attempt.get(stem)
            self._time_s[stem] = time_s
            self._attempt[stem] = None if isinstance(event, AttemptEnded | RunStarted) else attempt
            found.append(Recorded(time_s, writer, attempt, event))
        return found


def _parse(line: bytes) -> tuple[float | None, int | None, Event]:
    try:
        document = json.loads(line)
        time_s, attempt = float(document["time"]), document.get("attempt")
        event = event_of(document["event"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        shown = line[:_SHOWN].decode(errors="replace")
        return None, None, Damaged(text=shown, why=f"{type(error).__name__}: {error}")
    return time_s, attempt if isinstance(attempt, int) else None, event
