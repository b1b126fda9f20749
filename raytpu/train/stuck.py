"""The end of an attempt that makes no step: what its hosts are doing is shown, and the cause is named."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

import ray
from ray.exceptions import RayActorError, RayTaskError

from raytpu.errors import HostLost, ProgramFailed, RaytpuError, SliceLost
from raytpu.gang import Holding, Host
from raytpu.plan import Stuck, StuckKind
from raytpu.record import EventLog, HostsStuck
from raytpu.train.loop_position import Place

STACKS_S = 2.0
"""For hosts to read and print the stacks of their threads, which takes milliseconds where a process runs."""


def end_of(stuck: Stuck, hosts: Sequence[Host], holding: Holding, log: EventLog) -> RaytpuError:
    """Show the stacks of all hosts in their logs, and tell why this attempt cannot go on.

    A process that does not answer cannot be told from a machine that hangs, so its slice is dropped. One that
    answers runs on a host that is well: what keeps it from the step is the program.
    """
    silent = set(stuck.late) if stuck.kind is StuckKind.SILENT else set()
    place = None if silent else _place_of(next(host for host in hosts if host.name == stuck.late[0]))
    if place is not None and stuck.kind is StuckKind.PROGRAM:
        stuck = replace(stuck, place=place.line)
    _show_stacks(hosts, str(stuck), silent)
    log.write(stuck_event(stuck))
    advice = (
        "\n  the stacks of all hosts are in their logs: `raytpu logs RUN --host HOST`; work outside of steps "
        "goes into `context.evaluating`, or raise the limit under `deadlines:`"
    )
    match stuck.kind:
        case StuckKind.SILENT:
            for host in hosts:
                if host.name in stuck.late:
                    holding.drop(host.assignment, f"its process has not answered for {stuck.seconds:.0f} s")
            return SliceLost(dict(holding.lost))
        case StuckKind.PROGRAM:
            error = f"stuck in {place.function}" if place else ""
            return ProgramFailed(f"{stuck}{advice}", step=stuck.step - 1, error=error)
    return HostLost(f"{stuck}{advice}")


def stuck_event(stuck: Stuck) -> HostsStuck:
    """What the record keeps of it."""
    return HostsStuck(
        cause=stuck.kind,
        hosts=stuck.late,
        step=stuck.step,
        seconds=stuck.seconds,
        limit_s=stuck.limit_s,
        reason=str(stuck),
    )


def _place_of(host: Host) -> Place | None:
    question = host.actor.place.remote()
    answered, _ = ray.wait([question], timeout=STACKS_S)
    try:
        return ray.get(question) if answered else None
    except (RayActorError, RayTaskError):
        return None  # it has ended since, which others notice


def _show_stacks(hosts: Sequence[Host], reason: str, silent: Set[str]) -> None:
    """Those that are ``silent`` are asked too, and not waited for: one may only be slow."""
    asked = {host.name: host.actor.show_stacks.remote(reason) for host in hosts}
    awaited = [reference for name, reference in asked.items() if name not in silent]
    if awaited:
        ray.wait(awaited, num_returns=len(awaited), timeout=STACKS_S)
