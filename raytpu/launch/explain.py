"""Why a run waits, what it holds, or how it ended; and whether a workload would fit."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from raytpu.errors import Refused, UnknownRun, WrongRequest
from raytpu.gang.growth import Growth
from raytpu.launch.connect import connected
from raytpu.launch.slices import Seen, look
from raytpu.launch.status import RunStatus, run_status
from raytpu.plan.why_pending import Explanation, explain_owner, explain_wish, owners
from raytpu.record import RunDirectory, StateChanged, find_run
from raytpu.record.storage import join_url
from raytpu.record.summary import DRIVER_SILENT
from raytpu.spec import Workload


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Everything there is to say, and whether a workload file fits now; runs always do."""

    explanations: tuple[Explanation, ...]
    fits: bool = True


def explain_run(reference: str, on: str, *, home: str, environment: Mapping[str, str]) -> Answer:
    """Explain whatever goes by this name: an owner, lease or request in the book of slices, or a run.

    With ``--on auto`` a run that this machine knows is explained from its record when no cluster is there.

    Raises:
        UnknownRun: neither the book nor the index of runs knows it; says what is near.
        WrongRequest, Refused: the cluster that was asked for does not exist or answer.
    """
    directory, unknown = _recorded(reference, home)
    with ExitStack() as cluster:
        address, absent = "", ""
        try:
            address = cluster.enter_context(connected(on, None, home=home, environment=environment))
        except (WrongRequest, Refused) as error:
            if on != "auto":
                raise
            absent = str(error).splitlines()[0]
        seen = None if absent else look()
    if seen is not None:
        name = reference if directory is None else directory.run
        found = explain_owner(seen.view, name)
        if found:
            return Answer(explanations=tuple(_with_status(each, directory) for each in found))
    if directory is not None:
        return Answer(explanations=(explain_record(run_status(directory), address, absent),))
    raise UnknownRun("\n".join([*_near(reference, seen, absent), str(unknown)]))


def _with_status(explanation: Explanation, directory: RunDirectory | None) -> Explanation:
    """Where nothing else is to be done, a run can be looked at."""
    if directory is None or explanation.next_step:
        return explanation
    return replace(explanation, next_step=f"`raytpu status {directory.run}` says how far it is")


def _recorded(reference: str, home: str) -> tuple[RunDirectory | None, UnknownRun | None]:
    try:
        return find_run(reference, join_url(home, "runs")), None
    except UnknownRun as error:
        return None, error


def _near(reference: str, seen: Seen | None, absent: str) -> Iterator[str]:
    if seen is None:
        yield f"no cluster was asked: {absent}"
        return
    known = owners(seen.view)
    near = difflib.get_close_matches(reference, known, n=1)
    yield f"nobody in the book of slices is called {reference!r}" + (
        f"; did you mean {near[0]}?" if near else f"; in the book: {', '.join(known) or 'nobody'}"
    )


def explain_workload(workload: Workload, on: str, *, home: str, environment: Mapping[str, str]) -> Answer:
    """Explain the run of a workload that the book knows; else whether the workload would get its slices now.

    Raises:
        WrongRequest, Refused: the cluster does not exist or answer.
    """
    with connected(on, None, home=home, environment=environment):
        view = look().view
        growable = Growth().possible(workload.slices.shape)
    found = explain_owner(view, workload.name)
    if found:
        return Answer(explanations=found)
    explanation, fits = explain_wish(
        view, workload.name, workload.slices, priority=workload.priority, growable=growable
    )
    return Answer(explanations=(explanation,), fits=fits)


def explain_record(status: RunStatus, address: str, absent: str) -> Explanation:
    """What the record says of a run that no book knows.

    Args:
        address: of the cluster whose book was asked; empty when none was.
        absent: why none was asked.
    """
    summary = status.summary
    waited = _last_wait(status)
    notes = [("book", f"no cluster was asked: {absent}" if absent else f"does not know it, at {address}")]
    if summary.reason:
        notes.append(("reason", summary.reason))
    if summary.state == DRIVER_SILENT:
        notes.append(("driver", str(status.driver)))
    if waited and waited != summary.reason:
        notes.append(("waited", waited))
    if summary.endings:
        notes.append(("attempts", ", ".join(summary.endings)))
    next_step = summary.next_step
    if status.driver_alive and summary.cluster and summary.cluster != address:
        next_step = f"its slices are those of another cluster: --on {summary.cluster}"
    return Explanation(
        owner=summary.run,
        state=summary.state,
        sentence=f"{summary.run} holds no slices and waits for none; its record says: {summary.state}"
        if address and not status.driver_alive
        else f"{summary.run}: its record says: {summary.state}",
        notes=tuple(notes),
        next_step=next_step,
        facts={
            "reason": summary.reason,
            "last_wait": waited,
            "endings": list(summary.endings),
            "cluster": summary.cluster,
            "directory": status.directory.url,
        },
    )


def _last_wait(status: RunStatus) -> str:
    """Why it waited for slices when it last did."""
    for recorded in reversed(status.records):
        if isinstance(recorded.event, StateChanged) and recorded.event.state == "waiting":
            return recorded.event.reason
    return ""
