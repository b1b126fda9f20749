"""The one process on each host: it joins JAX's world, then runs the user's train function in it.

An actor of this class is started on every host as soon as the slices are held, or stands by there already,
so that importing JAX and joining overlap with what the driver still prepares. The class is made a Ray Train
worker in ``ray_train_seam``; here is all that does not need to know Ray Train.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ray import cloudpickle

from raytpu.errors import DeadlineExceeded, ProgramFailed, RaytpuError, SpecError
from raytpu.plan import ProcessAssignment, Whereabouts
from raytpu.plan.hand_over import Source
from raytpu.record import EventLog, HostLog, HostReady, PhaseTimed, RunDirectory
from raytpu.train.entrypoint import TrainFunction, bind, load_entrypoint, takes_context
from raytpu.train.farewell import Farewell
from raytpu.train.host_notices import HostNotices, Outlook, on_sigterm
from raytpu.train.job import TrainJob
from raytpu.train.loop_position import LoopPosition, Place, show_stacks
from raytpu.train.metadata_server import MetadataWatch, metadata_address
from raytpu.train.warm_up import WarmUp, await_gone, extend_path, import_jax

if TYPE_CHECKING:  # loads JAX
    from raytpu.train.step_record import Announce

_log = logging.getLogger(__name__)

_this_process: HostProcess | None = None


def this_process() -> HostProcess:
    """The host process that runs here. Raises RuntimeError anywhere else."""
    if _this_process is None:
        raise RuntimeError("this is not a host process of a raytpu run")
    return _this_process


class HostProcess:
    """State of the process between the calls of the driver and of Ray Train.

    It may stand by for a while before it is needed: what it is to do comes with ``begin``, not before.
    """

    assignment: ProcessAssignment
    job: TrainJob

    def __init__(self, host: str) -> None:
        global _this_process
        self._host = host
        self._warm_up: WarmUp | None = None
        self._rows: dict[str, Any] = {}
        self._rows_changed = threading.Condition()
        self._joined = threading.Event()
        self._farewell = Farewell()
        self._position = LoopPosition()
        self._notices = HostNotices()
        self._begun = threading.Event()
        on_sigterm(self._terminated)
        _this_process = self

    def ping(self) -> int:
        """This process's id; answers while the train function runs."""
        return os.getpid()

    def stand_by(self, entrypoint: str | None, with_orbax: bool, python_path: tuple[str, ...]) -> None:
        """Import in the background, at the lowest priority, what ``load`` will need."""
        self._warm_up = WarmUp(entrypoint, with_orbax, python_path)

    def current_step(self) -> int:
        """See ``Farewell``; as the two below."""
        return self._farewell.current_step()

    def propose_last_step(self, step: int) -> bool:
        return self._farewell.propose(step)

    def decide_last_step(self, step: int, agreed: bool, reason: str) -> None:
        self._farewell.decide(step, agreed, reason)

    def whereabouts(self) -> Whereabouts:
        """Where the train loop is; answers while it runs, waits in C, or hangs."""
        return self._position.whereabouts(*self._farewell.steps())

    def place(self) -> Place | None:
        """Where the train function is, for one that hangs."""
        return self._position.place()

    def show_stacks(self, reason: str) -> None:
        """Print what every thread is doing, into the host's log."""
        show_stacks(reason)

    def outlook(self) -> Outlook:
        """Whether this host goes away, and how fast it saves."""
        return Outlook(ages_s=self._notices.ages_s(), pace=self._farewell.pace())

    def _terminated(self) -> None:
        """SIGTERM: of a process that stands by, the end; else its driver has until SIGKILL to act on it."""
        if not self._begun.is_set():
            os._exit(128 + signal.SIGTERM)
        self._notices.hear(Source.SIGTERM)

    def begin(self, job: TrainJob, predecessors: Mapping[str, int]) -> int:
        """Become the process of this host in one attempt; the answer is its id.

        Args:
            job: what the attempt is to do.
            predecessors: id of the process that the attempt before had, by host name. It was killed, and
                holds the chips until it is gone: libtpu refuses a second process.

        Raises:
            DeadlineExceeded: the process before this one did not end within ``deadlines.stop_s``.
        """
        self.job = job
        self.assignment = next(each for each in job.gang.processes if each.host == self._host)
        self._cache = None if job.compile_cache is None else os.path.expanduser(job.compile_cache)
        directory = RunDirectory.at(job.directory)
        self._host_log = HostLog(directory, job.attempt, self._host)
        self._log = EventLog(directory, self._host, job.attempt)
        extend_path(job.python_path)
        self._begun.set()
        if address := metadata_address(job.gang.simulated, os.environ):
            MetadataWatch(address, self._notices.hear)
        before = predecessors.get(self._host)
        if before is not None and not await_gone(before, job.deadlines.stop_s):
            raise DeadlineExceeded(
                f"process {before} of the attempt before to end", job.deadlines.stop_s, late=[self._host]
            )
        return os.getpid()

    def coordinator_address(self) -> str:
        """``ip:port`` on this host, for JAX's coordination service. Asked of process 0."""
        with socket.socket() as probe:
            probe.bind((self.assignment.address, 0))
            return f"{self.assignment.address}:{probe.getsockname()[1]}"

    def load(self, entrypoint: str | None) -> None:
        """Import JAX and the train function's module; the costly part of a start, needing no peer."""
        if self._warm_up is not None:
            self._phase("finish warming up", self._warm_up.join)
        self._phase("import JAX", lambda: import_jax(with_orbax=self.job.checkpoint is not None))
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
        """Run the train function to its end. What it returns or raises leaves here so that it pickles."""
        try:
            return that_pickles(self._run(program, announce), program)
        except SpecError as error:  # a wrong call of the context's: the run had started, so it failed
            raise self._failure(error, str(error)) from None
        except RaytpuError:
            raise
        except Exception as error:  # the boundary of the user's program
            raise self._failure(error, f"{type(error).__name__}: {error}") from None
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
            position=self._position,
            session=session,
        )
        try:
            with self._position.running(reports=takes_context(function)):
                result = call(context)
                context.finish()
        finally:
            context.close()
        return result

    def _failure(self, error: Exception, words: str) -> ProgramFailed:
        """``error`` as one that pickles, with the step and the place by which it is known again."""
        place = traceback.extract_tb(error.__traceback__)[-1]
        return ProgramFailed(
            f"{self._host}: {words}\n{''.join(traceback.format_exception(error))}",
            step=self._farewell.current_step(),
            error=f"{type(error).__name__} at {os.path.basename(place.filename)}:{place.lineno}",
        )

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


def that_pickles(result: Any, program: str | TrainFunction) -> Any:
    """``result``, or ``None`` where it cannot be pickled: a complete training must not fail for it."""
    try:
        # Large arrays are not copied for the look.
        cloudpickle.dumps(result, protocol=5, buffer_callback=lambda _: None)
    except Exception as error:  # the user's own __reduce__ may raise anything
        kind = type(result)
        place = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        _log.warning(
            "what %s returned (a %s%s) cannot be pickled; its result is dropped: %s",
            _name_of(program),
            place,
            kind.__qualname__,
            error,
        )
        return None
    return result


def _name_of(program: str | TrainFunction) -> str:
    if isinstance(program, str):
        return program
    return f"{program.__module__}:{getattr(program, '__qualname__', program)}"
