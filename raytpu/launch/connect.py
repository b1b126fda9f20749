"""Which Ray cluster a command works on, and being connected to it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from raytpu.errors import Refused, SpecError, WrongRequest
from raytpu.spec import Slices

PROBE_S = 5.0
NAMESPACE = "raytpu"
"""Ray namespace of everything that raytpu names in a cluster."""


@contextmanager
def connected(on: str, slices: Slices | None, *, home: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Be a driver on the cluster that ``on`` means; gives its address.

    Args:
        on: ``sim`` for simulated slices of this command alone, ``sim:NAME`` for those of ``raytpu sim up``,
            ``auto`` for RAY_ADDRESS, else the only simulation that is up, else the cluster that this machine
            is a node of; or ``HOST:PORT``.
        slices: what an embedded simulation brings up.
        home: raytpu's folder, where running simulations are recorded.
        environment: of this process; ``RAY_ADDRESS`` is looked up in it.

    Raises:
        WrongRequest: no such cluster.
        Refused: the cluster does not answer.
    """
    if on == "sim":
        if slices is None:
            raise SpecError("an embedded simulation needs to know which slices to bring up")
        from raytpu.cluster import simulate

        with simulate(slices) as cluster, _driver(cluster.address):
            yield cluster.address
        return
    address = existing_address(on, home=home, environment=environment)
    with _driver(address):
        if address == "auto":
            _refuse_private_simulation()
        yield address


def existing_address(on: str, *, home: str, environment: Mapping[str, str]) -> str:
    """Address of the running cluster that ``on`` means, never of one to be brought up.

    Raises:
        WrongRequest: there is no such simulation, or several are meant.
    """
    from raytpu.cluster import named_simulations

    records = named_simulations(home)
    simulations = {each.name: each.address for each in records if each.is_live and each.address is not None}
    known = ", ".join(f"sim:{name}" for name in sorted(simulations)) or "none"
    if on.startswith("sim:"):
        name = on.removeprefix("sim:")
        if name not in simulations:
            raise WrongRequest(
                f"no simulation {name!r} is up; up are: {known}; start one with `raytpu sim up`"
            )
        return simulations[name]
    if on != "auto":
        if not on.rpartition(":")[0] or not on.rpartition(":")[2].isdigit():
            raise WrongRequest(f"--on {on!r} is neither sim, sim:NAME, auto nor an address HOST:PORT")
        return on
    if environment.get("RAY_ADDRESS"):
        return environment["RAY_ADDRESS"]
    if len(simulations) == 1:
        return next(iter(simulations.values()))
    if simulations:
        raise WrongRequest(f"--on auto: several simulations are up, name one of them: {known}")
    return "auto"  # Ray's own word for the cluster that this machine is a node of


def _refuse_private_simulation() -> None:
    """Ray's ``auto`` finds any Ray of this machine, that of somebody's ``raytpu run --on sim`` included."""

    from raytpu.gang import ray_inventory

    if any(state.simulated for state in ray_inventory().slices):
        raise WrongRequest(
            "--on auto: the only Ray on this machine is a simulation that belongs to another command\n"
            "  start slices with `raytpu sim up FILE`, or use --on sim"
        )


def _check_listens(address: str) -> None:
    """Ray itself tries for a minute, and says little."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=PROBE_S).close()
    except OSError as error:
        raise Refused(
            f"nothing listens at {address} ({error.strerror or error}); is the cluster up, and is it the "
            "address of its head, as `raytpu sim status` shows it?"
        ) from error


@contextmanager
def _driver(address: str) -> Iterator[None]:
    import ray

    from raytpu.gang.release import RELEASE_S, within_s

    if address != "auto":
        _check_listens(address)
    try:
        # The record has every host's lines with slice and host; Ray's own copy of them would drop repeats.
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as error:
        if address == "auto":
            raise WrongRequest(
                "--on auto: RAY_ADDRESS is not set, no simulation is up, and no Ray node runs here\n"
                "  start slices with `raytpu sim up FILE`, or use --on sim or --on HOST:PORT"
            ) from error
        raise Refused(
            f"the Ray cluster at {address} does not answer; is it up, and is this machine one of its nodes?\n"
            f"  Ray says: {str(error).splitlines()[0]}"
        ) from error
    try:
        yield
    finally:
        within_s(RELEASE_S, ray.shutdown)


def search_path() -> tuple[str, ...]:
    """Folders where this driver finds the user's modules: the current directory."""
    return (os.getcwd(),)
