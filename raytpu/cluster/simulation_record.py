"""Where a named simulation is written down, so that ``raytpu sim down`` in another shell finds it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import psutil

from raytpu.cluster import process_sweep
from raytpu.cluster.simulation_plan import SimulationPlan
from raytpu.errors import Refused, WrongRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRecord:
    """One file ``<name>.json``."""

    name: str
    sim_id: str
    directory: str
    socket_path: str
    keeper_pid: int
    keeper_created_s: float
    """Tells the keeper from a later process with its number."""
    address: str | None
    """``None`` until the head is up."""

    @property
    def is_live(self) -> bool:
        """Whether the keeper runs; without one the record is stale."""
        return process_sweep.process_lives(self.keeper_pid, self.keeper_created_s)


def claim(plan: SimulationPlan) -> None:
    """Write the record of the calling keeper, unless a live simulation has the name.

    Raises:
        Refused: the name is taken.
        WrongRequest: nothing can be written there.
    """
    try:
        _claim(plan)
    except OSError as error:
        raise _unwritable(plan, error) from error


def _claim(plan: SimulationPlan) -> None:
    assert plan.record_path is not None
    os.makedirs(os.path.dirname(plan.record_path), exist_ok=True)
    whole = _write_aside(plan, None)
    try:
        for _ in range(2):
            try:
                # A link is exclusive and shows a whole file: of two `up` at one moment, one gets the name.
                os.link(whole, plan.record_path)
            except FileExistsError:
                _refuse_if_live(plan)
                _unlink(plan.record_path)  # stale
            else:
                return
    finally:
        os.unlink(whole)
    raise Refused(f"another simulation {plan.name!r} started at the same moment")


def _unwritable(plan: SimulationPlan, error: OSError) -> WrongRequest:
    folder = os.path.dirname(str(plan.record_path))
    return WrongRequest(
        f"cannot write to RAYTPU_HOME, where named simulations are written down: {folder}: "
        f"{error.strerror or error}; set RAYTPU_HOME to a folder that can be written"
    )


def _refuse_if_live(plan: SimulationPlan) -> None:
    assert plan.record_path is not None
    other = read(plan.record_path)
    if other is None or not other.is_live:
        return
    where = "starting" if other.address is None else f"at {other.address}"
    raise Refused(
        f"simulation {plan.name!r} is up already ({where}); use it (--on sim:{plan.name}), "
        f"stop it (raytpu sim down --name {plan.name}) or give the new one another --name"
    )


def write(plan: SimulationPlan, address: str) -> None:
    """Complete the record of the calling keeper, at once for every reader.

    Raises:
        WrongRequest: nothing can be written there any more.
    """
    assert plan.record_path is not None
    try:
        os.replace(_write_aside(plan, address), plan.record_path)
    except OSError as error:
        raise _unwritable(plan, error) from error


def read(path: str) -> SimulationRecord | None:
    """``None`` when there is no record there.

    Raises:
        WrongRequest: the file cannot be read, or is no record of this version of raytpu.
    """
    try:
        with open(path) as file:
            fields: dict[str, Any] = json.load(file)
        return SimulationRecord(**fields)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise WrongRequest(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, TypeError) as error:
        raise WrongRequest(
            f"{path} is not a simulation's record of this raytpu ({error}); "
            "if nothing of that simulation runs, delete the file"
        ) from error


def forget(path: str, sim_id: str) -> None:
    """Remove the record of one simulation; not one that another has put there, and twice is no error."""
    record = read(path)
    if record is not None and record.sim_id == sim_id:
        _unlink(path)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def _write_aside(plan: SimulationPlan, address: str | None) -> str:
    aside = f"{plan.record_path}.{plan.sim_id}"
    with open(aside, "w") as file:
        file.write(_document(plan, address))
    return aside


def _document(plan: SimulationPlan, address: str | None) -> str:
    keeper = psutil.Process()
    record = {
        "name": plan.name,
        "sim_id": plan.sim_id,
        "directory": plan.directory,
        "socket_path": plan.socket_path,
        "keeper_pid": keeper.pid,
        "keeper_created_s": keeper.create_time(),
        "address": address,
    }
    return json.dumps(record, indent=2) + "\n"
