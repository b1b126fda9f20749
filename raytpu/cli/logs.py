"""``raytpu logs RUN``: what the hosts printed, all of them merged by time or one of them."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from raytpu.cli.home import raytpu_home
from raytpu.errors import WrongRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raytpu.record import LogLine, RunDirectory

_FOLLOW_INTERVAL_S = 0.5


def logs(
    reference: Annotated[
        str, typer.Argument(metavar="RUN", help="Name of a run, its directory, or its workload file.")
    ],
    host: Annotated[
        str | None, typer.Option(metavar="SLICE/HOST", help="Only this host, such as slice-0/1.")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of this attempt; else of the newest.")
    ] = None,
    tail: Annotated[int | None, typer.Option(min=0, metavar="N", help="Only the last N lines.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new lines until the run ends.")
    ] = False,
    output: Annotated[
        Literal["text", "json"], typer.Option(help="Text for a person, or one JSON object a line.")
    ] = "text",
) -> None:
    """Print what the hosts of a run printed: time (UTC), slice/host, out or err, and the line."""
    from raytpu.record import find_run
    from raytpu.record.storage import join_url

    directory = find_run(reference, join_url(raytpu_home(), "runs"))
    lines = _followed(directory, host, attempt, tail) if follow else _stored(directory, host, attempt, tail)
    try:
        for line in lines:
            text = line.text if output == "text" else json.dumps({"host": line.host, "text": line.text})
            sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # `raytpu logs RUN | head`: enough was read. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stored(
    directory: RunDirectory, host: str | None, attempt: int | None, tail: int | None
) -> Iterator[LogLine]:
    from raytpu.record import read_logs

    chosen = _attempt(directory, attempt)
    if chosen is None:
        typer.echo(f"run {directory.run} has no logs yet; --follow waits for them", err=True)
        return
    yield from read_logs(directory, chosen, host, tail)


def _followed(
    directory: RunDirectory, host: str | None, attempt: int | None, tail: int | None
) -> Iterator[LogLine]:
    """Lines until nobody drives the run any more; the newest attempt takes over when it begins."""
    from raytpu.record import LogTail

    lines: LogTail | None = None
    shown: int | None = None
    while True:
        ended = not _is_driven(directory)  # asked before the last poll, so that no line is missed
        newest = _attempt(directory, attempt)
        if newest is not None and newest != shown:
            if lines is not None:
                yield from lines.poll()
            lines, shown = LogTail(directory, newest, host, tail if shown is None else None), newest
        if lines is not None:
            yield from lines.poll()
        if ended:
            return
        sys.stdout.flush()
        time.sleep(_FOLLOW_INTERVAL_S)


def _attempt(directory: RunDirectory, wanted: int | None) -> int | None:
    """The attempt to show, or ``None`` when there are no logs yet."""
    present = directory.attempts_with_logs()
    if wanted is None:
        return max(present, default=None)
    if wanted not in present:
        have = ", ".join(map(str, present)) or "none"
        raise WrongRequest(
            f"attempt {wanted} of run {directory.run!r} has no logs; attempts with logs: {have}"
        )
    return wanted


def _is_driven(directory: RunDirectory) -> bool:
    from raytpu.record import is_alive, read_driver

    driver = read_driver(directory)
    return driver is not None and driver.lineage == directory.lineage and is_alive(driver, time.time())
