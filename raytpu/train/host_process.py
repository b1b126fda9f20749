"""The one process on each host: it joins JAX's world, then runs the user's train function in it.

An actor of this class is started on every host as soon as the slices are held, so that importing JAX and
joining overlap with what the driver still prepares. The class is made a Ray Train worker in
``ray_train_seam``; here is all that does not need to know Ray Train.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raytpu.errors import DeadlineExceeded, ProgramFailed, RaytpuError, SpecError
from raytpu.plan import ProcessAssignment
from raytpu.record import EventLog, HostLog, HostReady, PhaseTimed, RunDirectory
from raytpu.train.entrypoint import TrainFunction, bind, load_entrypoint
from raytpu.train.farewell import Farewell
from raytpu.train.job import TrainJob

if TYPE_CHECKING:  # loads JAX
    from raytpu.train.step_record import Announce

_this_process: HostProcess | None = None


def this_process() -> HostProcess:
    """The host process that runs here. Raises RuntimeError anywhere else."""
    if _this_process is None:
        raise RuntimeError("this is not a host process of a raytpu run")
    return _this_process


class HostProcess:
    """State of the process between the calls of the driver and of Ray Train."""

    def __init__(self, assignment: ProcessAssignment, job: TrainJob) -> None:
        global _this_process
        self.assignment, self.job = assignment, job
        self._cache = None if job.compile_cache is None else os.path.expanduser(job.compile_cache)
        directory = RunDirectory.at(job.directory)
        self._host_log = HostLog(directory, job.attempt, assignment.host)
        self._log = EventLog(directory, assignment.host, job.attempt)
        self._rows: dict[str, Any] = {}
        self._rows_changed = threading.Condition()
        self._joined = threading.Event()
        self._farewell = Farewell()
        sys.path.extend(path for path in job.python_path if path not in sys.path)
        _this_process = self

    def ping(self) -> int:
        """This process's id; answers while the train function runs."""
        return os.getpid()

    def current_step(self) -> int:
        """See ``Farewell``; as the two below."""
        return self._farewell.current_step()

    def propose_last_step(self, step: int) -> bool:
        return self._farewell.propose(step)

    def decide_last_step(self, step: int, agreed: bool, reason: str) -> None:
        self._farewell.decide(step, agreed, reason)

    def coordinator_address(self) -> str:
        """``ip:port`` on this host, for JAX's coordination service. Asked of process 0."""
        with socket.socket() as probe:
            probe.bind((self.assignment.address, 0))
            return f"{self.assignment.address}:{probe.getsockname()[1]}"

    def load(self, entrypoint: str | None) -> None:
        """Import JAX and the train function's module; the costly part of a start, needing no peer."""
        self._phase("import JAX", lambda: _import_jax(with_orbax=self.job.checkpoint is not None))
        if entrypoint is not None:
            self._phase("import train function", lambda: load_entrypoint(entrypoint))

    def join(self, coordinator: str) -> None:
        """Join JAX's world and check that this process is who the plan says. Collective.

        Raises:
            HostMismatch: naming what differs.
            DeadlineExceeded: the others did not come within ``deadlines.jax_init_s``.
        """
        from raytpu.runtime import start_process

        deadlines = self.job.deadlines
        report = start_process(
            self.assignment,
            coordinator,
            jax_init_s=deadlines.jax_init_s,
            heartbeat_s=deadlines.heartbeat_s,
            stop_s=deadlines.stop_s,
            cache_dir=self._cache,
        )
        for name, seconds in report.seconds.items():
            self._log.write(PhaseTimed(name=f"join: {name}", seconds=seconds))
        self._log.write(
            HostReady(
                host=report.host,
                process_index=report.process_index,
                address=self.assignment.address,
                pid=report.pid,
                platform=report.facts.platform,
                devices=report.facts.local_devices,
            )
        )
        self._joined.set()

    def provide(self, name: str, rows: Any) -> None:
        """Hand over the packed rows of a data stream."""
        with self._rows_changed:
            self._rows[name] = rows
            self._rows_changed.notify_all()

    def run(self, program: str | TrainFunction, announce: Announce) -> Any:
        """Run the train function to its end. Whatever it raises leaves here as an error that pickles."""
        try:
            return self._run(program, announce)
        except SpecError as error:  # a wrong call of the context's: the run had started, so it failed
            raise ProgramFailed(f"{self.assignment.host}: {error}\n{traceback.format_exc()}") from None
        except RaytpuError:
            raise
        except Exception as error:  # the boundary of the user's program
            raise ProgramFailed(
                f"{self.assignment.host}: {type(error).__name__}: {error}\n{traceback.format_exc()}"
            ) from None
        finally:
            self._log.flush()

    def _run(self, program: str | TrainFunction, announce: Announce) -> Any:
        from raytpu.runtime import ProgramCache, device_mesh, slice_of_process
        from raytpu.train.context import TrainContext

        job, assignment = self.job, self.assignment
        self._wait_to_join()
        function = load_entrypoint(program) if isinstance(program, str) else program
        call = bind(function, job.config)
        mesh = device_mesh(job.mesh, slice_of_process(assignment))
        store = None
        if job.checkpoint is not None:
            from raytpu.checkpoint import CheckpointStore

            store = CheckpointStore(
                RunDirectory.at(job.directory).checkpoints,
                job.checkpoint.keep,
                job.deadlines.checkpoint_s,
                clean=job.replica is None or job.replica.first,
            )
        session = None
        if job.replica is not None:
            from raytpu.train.replicas.session import ReplicaSession

            session = ReplicaSession(job.replica, assignment, job.deadlines)

        context = TrainContext(
            job=job,
            mesh=mesh,
            rows=self._wait_for_rows,
            store=store,
            programs=ProgramCache(self._cache, mesh),
            log=self._log,
            announce=announce,
            farewell=self._farewell,
            session=session,
        )
        try:
            result = call(context)
            context.finish()
        finally:
            context.close()
        return result

    def _wait_to_join(self) -> None:
        """Ray Train may call sooner than the driver has told this process to join."""
        deadline_s = self.job.deadlines.host_start_s + self.job.deadlines.jax_init_s
        if not self._joined.wait(deadline_s):
            raise DeadlineExceeded("this host to join JAX's world", deadline_s, late=[self.assignment.host])

    def _wait_for_rows(self, name: str) -> Any:
        deadline_s = self.job.deadlines.data_s
        with self._rows_changed:
            if not self._rows_changed.wait_for(lambda: name in self._rows, timeout=deadline_s):
                raise DeadlineExceeded(f"the driver to prepare the data stream {name!r}", deadline_s)
            return self._rows[name]

    def _phase(self, name: str, work: Callable[[], Any]) -> None:
        began = time.perf_counter()
        work()
        self._log.write(PhaseTimed(name=name, seconds=time.perf_counter() - began))


def _import_jax(*, with_orbax: bool) -> None:
    """JAX, and what nearly every loop imports on top: 2 s of CPU, better spent before it is waited for."""
    import flax.nnx  # noqa: F401
    import optax  # noqa: F401

    import raytpu.train.context

    # Orbax tells every step of a save at level INFO, in which a user's own lines drown.
    logging.getLogger("absl").setLevel(logging.WARNING)
    if with_orbax:
        import raytpu.checkpoint.orbax_store  # noqa: F401
