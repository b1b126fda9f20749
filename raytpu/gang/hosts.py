"""One actor on every host of a held gang, and calls to all of them with a deadline that names the late."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError

from raytpu.errors import DeadlineExceeded, HostLost, HostMismatch, RaytpuError
from raytpu.gang.held import HeldSlice
from raytpu.plan import ProcessAssignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host of the gang and the actor that is its one process."""

    assignment: ProcessAssignment
    actor: ActorHandle

    @property
    def name(self) -> str:
        """Slice and worker id, such as ``slice-0/2``."""
        return self.assignment.host


class HoldsSlices(Protocol):
    """A lease, or several that make one gang."""

    @property
    def slices(self) -> tuple[HeldSlice, ...]: ...


def start_hosts(
    lease: HoldsSlices,
    actor_class: type,
    arguments: Callable[[ProcessAssignment], dict[str, Any]],
    adopted: Mapping[str, ActorHandle] = MappingProxyType({}),
) -> tuple[Host, ...]:
    """Ask Ray for one process a host, in process order. Does not wait: the first call does.

    Args:
        lease: the slices; each host's process starts in its slice's placement group.
        actor_class: an undecorated class.
        arguments: keyword arguments of ``actor_class`` for one process.
        adopted: processes of ``actor_class`` that are there already, by name of the host.
    """
    return tuple(
        host for held in lease.slices for host in start_hosts_of(held, actor_class, arguments, adopted)
    )


def start_hosts_of(
    held: HeldSlice,
    actor_class: type,
    arguments: Callable[[ProcessAssignment], dict[str, Any]],
    adopted: Mapping[str, ActorHandle] = MappingProxyType({}),
    **options: Any,
) -> tuple[Host, ...]:
    """The same for one slice; ``options`` are further ones of the actors."""
    remote_class = ray.remote(actor_class)
    hosts = []
    for host in held.hosts:
        actor = adopted.get(host.name)
        if actor is None:
            chosen = remote_class.options(**held.options(host), **options)
            actor = chosen.remote(**arguments(host.assignment))
        hosts.append(Host(assignment=host.assignment, actor=actor))
    return tuple(hosts)


def call_hosts(
    hosts: Sequence[Host],
    method: str,
    *arguments: Any,
    waited_for: str,
    deadline_s: float,
    alive: Callable[[], None] = lambda: None,
    failed: Callable[[ProcessAssignment, str], None] = lambda _host, _reason: None,
) -> list[Any]:
    """Call ``method`` on every host at once and return the answers in host order.

    Args:
        hosts: whom to call.
        method: name of an actor method.
        arguments: the same for all.
        waited_for: what the deadline's message says was awaited.
        deadline_s: for all answers together.
        alive: called about twice a second while waiting; may raise to end the wait.
        failed: told of each host that died, was late, or is not who it should be, before an error is raised.

    Raises:
        DeadlineExceeded: naming the hosts that had not answered.
        HostLost: naming the hosts whose process died.
        RaytpuError: what a host raised, if it is one of ours; the first in host order.
    """
    pending = {getattr(host.actor, method).remote(*arguments): host for host in hosts}
    references = list(pending)
    until = time.monotonic() + deadline_s
    while pending:
        alive()
        done, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0.5)
        answers = [(pending.pop(reference), _failure(reference)) for reference in done]
        failures = [(host, error) for host, error in answers if error is not None]
        for host, error in failures:
            if isinstance(error, RayActorError):
                failed(host.assignment, first_line(error))
            elif isinstance(error, RayTaskError) and isinstance(error.cause, HostMismatch):
                failed(host.assignment, first_line(error.cause))
        _raise_first(failures, waited_for)
        if pending and time.monotonic() >= until:
            for host in pending.values():
                failed(host.assignment, f"late: waited {deadline_s:g} s for {waited_for}")
            raise DeadlineExceeded(waited_for, deadline_s, late=[host.name for host in pending.values()])
    return ray.get(references)


def _failure(reference: ray.ObjectRef) -> Exception | None:
    try:
        ray.get(reference)
    except (RayActorError, RayTaskError) as error:
        return error
    return None


def _raise_first(failures: Sequence[tuple[Host, Exception]], waited_for: str) -> None:
    for _, error in failures:
        if isinstance(error, RayTaskError) and isinstance(error.cause, RaytpuError):
            raise error.cause from None
    lost = [(host, error) for host, error in failures if isinstance(error, RayActorError)]
    if lost:
        names = ", ".join(host.name for host, _ in lost)
        raise HostLost(f"lost {names} while waiting for {waited_for}: {first_line(lost[0][1])}")
    for _, error in failures:
        raise error


def first_line(error: Exception) -> str:
    """The first line of a foreign error that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
