"""Bring simulated slices up: for the length of a ``with`` block, or detached under a name."""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from raytpu.cluster import process_sweep, simulation_record
from raytpu.cluster.control_channel import Channel, connect
from raytpu.cluster.simulated_cluster import START_DEADLINE_S, SimulatedCluster, slice_plan, still_there
from raytpu.cluster.simulation_plan import NodeOptions, SimulationPlan, plan_to_json
from raytpu.cluster.simulation_record import SimulationRecord
from raytpu.errors import Refused, WrongRequest
from raytpu.spec import Slices

DEFAULT_HOME = "~/.raytpu"
"""Where named simulations are written down, under ``sims/``."""

_SOCKET_PATH_BYTES = 107  # sun_path of a Unix socket on Linux, less its final zero


def simulate(
    slices: Slices | Sequence[Slices],
    *,
    name: str | None = None,
    home: str | Path = DEFAULT_HOME,
    options: NodeOptions | None = None,
    start_deadline_s: float = START_DEADLINE_S,
) -> SimulatedCluster:
    """Bring slices up on this machine and return once every host is up; they end with this process.

    Args:
        slices: what to bring up; slices are named ``slice-0`` onwards.
        name: other processes can find the simulation under it, to look at it or to inject faults.
        home: where named simulations are written down.
        options: CPUs and object store of each node, dashboard, warm workers.

    Raises:
        TopologyError: no such slice exists.
        Refused: a simulation of this name is up.
        WrongRequest: it has a name, and ``home`` cannot be written.
        DeadlineExceeded: naming the hosts that were late; nothing is left.
        HostLost: a host ended while starting; nothing is left.

    Example:
        >>> with raytpu.simulate(Slices(generation="v6e", topology="4x4", count=2)) as cluster:
        ...     ray.init(address=cluster.address)
        ...     cluster.lose_host("slice-1", 2)
    """
    plan = _plan(slices, name=name, home=home, options=options, detached=False)
    return _start(plan, start_deadline_s)


def start_detached(
    slices: Slices | Sequence[Slices],
    *,
    name: str = "default",
    home: str | Path = DEFAULT_HOME,
    options: NodeOptions | None = None,
    start_deadline_s: float = START_DEADLINE_S,
) -> SimulatedCluster:
    """Like :func:`simulate`, but it lives on until it is stopped by name."""
    plan = _plan(slices, name=name, home=home, options=options, detached=True)
    return _start(plan, start_deadline_s)


def _start(plan: SimulationPlan, start_deadline_s: float) -> SimulatedCluster:
    here, there = socket.socketpair()
    pid = str(os.getpid())
    keeper = subprocess.Popen(
        [sys.executable, "-m", "raytpu.cluster.keeper", plan_to_json(plan), str(there.fileno()), pid],
        pass_fds=(there.fileno(),),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    there.close()
    cluster = SimulatedCluster(
        Channel(here),
        sim_id=plan.sim_id,
        directory=plan.directory,
        record_path=plan.record_path,
        owned=not plan.detached,
        keeper=keeper,
    )
    try:
        cluster.wait_until_begun()
        cluster.wait_until_up(start_deadline_s)
    except BaseException as first:  # Ctrl-C while starting included: nothing may be left
        try:
            cluster.stop()
        except Exception as error:  # boundary: why it did not start is what the user needs to know
            first.add_note(f"clearing away what had started failed as well: {error}")
        raise
    return cluster


def _plan(
    slices: Slices | Sequence[Slices],
    *,
    name: str | None,
    home: str | Path,
    options: NodeOptions | None,
    detached: bool,
) -> SimulationPlan:
    groups = (slices,) if isinstance(slices, Slices) else tuple(slices)
    if not groups:
        raise WrongRequest("simulate needs at least one Slices")
    sim_id = secrets.token_hex(4)
    return SimulationPlan(
        sim_id=sim_id,
        name=name,
        directory=_new_directory(sim_id),
        record_path=None if name is None else str(record_path(name, home)),
        detached=detached,
        slices=tuple(slice_plan(group) for group in groups for _ in range(group.count)),
        options=options or NodeOptions(),
    )


def _new_directory(sim_id: str) -> str:
    directory = os.path.join(tempfile.gettempdir(), f"raytpu-{sim_id}")
    longest = len(os.fsencode(f"{directory}/h10000/raylet"))
    if longest > _SOCKET_PATH_BYTES:
        raise WrongRequest(
            f"the temporary folder {tempfile.gettempdir()} has too long a path: sockets in it would have "
            f"{longest} bytes, the system allows {_SOCKET_PATH_BYTES}; set TMPDIR to a shorter one (/tmp)"
        )
    return directory


def named_simulations(home: str | Path = DEFAULT_HOME) -> tuple[SimulationRecord, ...]:
    """Every record in name order, stale ones included."""
    directory = _records(home)
    if not directory.is_dir():
        return ()
    found = [simulation_record.read(str(path)) for path in sorted(directory.glob("*.json"))]
    return tuple(record for record in found if record is not None)


def find(name: str = "default", home: str | Path = DEFAULT_HOME) -> SimulatedCluster:
    """A named simulation that is up, started by whichever process.

    Raises:
        WrongRequest: none has this name, or only a stale record of it is left.
    """
    record = simulation_record.read(str(record_path(name, home)))
    if record is None:
        names = ", ".join(each.name for each in named_simulations(home)) or "none"
        raise WrongRequest(
            f"no simulation {name!r}; up are: {names}; start it with: raytpu sim up FILE --name {name}"
        )
    try:
        return SimulatedCluster(
            connect(record.socket_path),
            sim_id=record.sim_id,
            directory=record.directory,
            record_path=str(record_path(name, home)),
            owned=False,
        )
    except OSError as error:
        raise WrongRequest(
            f"simulation {name!r} has ended without taking its record away; "
            f"clear it with: raytpu sim down --name {name}"
        ) from error


def stop(name: str = "default", home: str | Path = DEFAULT_HOME) -> None:
    """Stop a named simulation and clear away what is left of it; a stale one is cleared as well.

    Raises:
        WrongRequest: none has this name.
        Refused: a process outlived SIGKILL.
    """
    path = str(record_path(name, home))
    try:
        find(name, home).stop()
    except WrongRequest:
        record = simulation_record.read(path)
        if record is None:
            raise
        _clear_stale(record)
        simulation_record.forget(path, record.sim_id)


def record_path(name: str, home: str | Path = DEFAULT_HOME) -> Path:
    """Where the simulation ``name`` is written down.

    Raises:
        WrongRequest: ``name`` cannot be a file name.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", name):
        raise WrongRequest(
            f"simulation name {name!r}: expected at most 40 letters, digits, '.', '_' and '-', "
            "beginning with a letter or digit"
        )
    return _records(home) / f"{name}.json"


def _records(home: str | Path) -> Path:
    return Path(home).expanduser() / "sims"


def _clear_stale(record: SimulationRecord) -> None:
    left = process_sweep.kill_marked(f"{record.sim_id}/")
    removed = process_sweep.remove_directory(record.directory)
    if left or not removed:
        raise Refused(still_there(left, None if removed else record.directory))
