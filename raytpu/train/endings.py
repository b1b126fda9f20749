"""Why an attempt ended: one cause out of the many errors that a broken gang raises. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raytpu.errors import HostLost, ProgramFailed, RaytpuError

# When one process of a gang is gone, its peers fail in their next collective. These are the words of
# XLA's gloo transport and of JAX's coordination service for that (seen with jax 0.10.2 on CPU).
PEER_FAILURE_WORDS = (
    "gloo",
    "connection closed by peer",
    "connection reset by peer",
    "coordination service",
    "coordination agent",
    "heartbeat",
)

INTENDED_DEATH = "ray.kill"
"""Ray names the call when an actor was killed on purpose; such a death is an effect, not a cause."""


def is_intended(death: str) -> bool:
    """Whether Ray's account of an actor's death says that it was killed on purpose."""
    return INTENDED_DEATH in death


def is_peer_failure(error: BaseException) -> bool:
    """Whether an error may be the echo of another host's loss."""
    text = str(error).lower()
    return isinstance(error, ProgramFailed) and any(word in text for word in PEER_FAILURE_WORDS)


def cause_of(
    hosts: Sequence[str], failures: Mapping[int, BaseException], deaths: Mapping[str, str]
) -> RaytpuError:
    """The error that explains the ending.

    Args:
        hosts: names in process order.
        failures: what the process of each rank raised, as far as known.
        deaths: Ray's account of each host process that died, by host name.

    What raytpu itself refused comes first, such as a checkpoint of another model. Then a dead host: it
    explains whatever its peers raised. Then the program's own error, before the collectives that failed on
    other hosts because of it.
    """
    for _, error in sorted(failures.items()):
        if isinstance(error, RaytpuError) and not isinstance(error, ProgramFailed):
            return error
    lost = {name: death for name, death in deaths.items() if not is_intended(death)}
    if lost:
        return HostLost(f"lost {', '.join(sorted(lost))}: {next(iter(lost.values()))}")
    own = {rank: error for rank, error in sorted(failures.items()) if not is_peer_failure(error)}
    for rank, error in own.items():
        if isinstance(error, RaytpuError):
            return error
        return ProgramFailed(f"{hosts[rank]}: {type(error).__name__}: {error}")
    if failures:
        rank, error = min(failures.items())
        names = ", ".join(hosts[rank] for rank in sorted(failures))
        return HostLost(
            f"a collective failed on {names}, and no host of the gang is known to have died; first: {error}"
        )
    return ProgramFailed("the run ended without a result and without an error")
