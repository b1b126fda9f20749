"""Simulated TPU slices on this machine: real Ray nodes and real processes; only the chips are simulated."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from raytpu.cluster import process_sweep, simulation_record
from raytpu.cluster.control_channel import Channel, Message
from raytpu.cluster.simulation_plan import SlicePlan
from raytpu.errors import DeadlineExceeded, HostLost, Refused, WrongRequest
from raytpu.spec import Slices

START_DEADLINE_S = 120.0
"""For all hosts to be up. 16 hosts on 2 busy cores took 25 s; the rest is for slower machines."""

_ANSWER_DEADLINE_S = 30.0
"""For the keeper to answer. Its slowest operation, a sweep, has a deadline of 10 s."""

_LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedHost:
    """A host as the simulation sees it; Ray may still believe in a host that is lost."""

    slice_name: str
    worker_id: int
    ip: str
    node_id: str | None
    """Ray's id of the node in hex; ``None`` until the host is up."""
    pid: int | None
    """Of the process that leads the host's session."""
    state: str
    """``starting``, ``up``, ``frozen``, ``lost`` or ``failed`` (never came up)."""
    alive: bool
    """The host exists: it is starting, up or frozen."""
    reason: str | None
    """Why it is lost or has failed."""
    seconds_to_up: float | None

    @property
    def name(self) -> str:
        """Such as ``slice-0/1``."""
        return f"{self.slice_name}/{self.worker_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSlice:
    """A slice of a simulation, with its hosts in worker order."""

    name: str
    generation: str
    topology: str
    chips_per_host: int
    hosts: tuple[SimulatedHost, ...]


class SimulatedCluster:
    """A Ray cluster of simulated TPU slices on this machine, with faults on demand.

    Every host is a real Ray node with an address of its own (``127.77.<n>.<k>``), the resources and labels
    that Ray derives on GKE, and real processes; JAX in them sees as many CPU devices as the host would
    have TPU devices. As a context manager it stops at the end of the block. It stops as well when this
    process ends in any way, SIGKILL included; nothing is left of it, neither processes nor files.

    What it does not model:

    * speed: no HBM, no MXU, no interconnect; ICI and DCN are both gloo over loopback, and all hosts share
      this machine's cores and memory, so step times say nothing about a TPU;
    * libtpu: no device files, no TPU runtime metrics, no libtpu lock, no TPU compiler (XLA compiles for
      CPU), no bf16 rounding of the MXU, no Pallas TPU kernels except in interpret mode;
    * ``slice_index``, ``coords`` and ``core_on_chip`` of devices: JAX on CPU reports one slice; process
      order is the only identity. MEGASCALE variables are set for programs to read, but nothing acts on them;
    * memory limits: a model that would not fit in HBM runs here;
    * the network: no packet loss, no partition, no slow link, and a killed process resets its connections
      at once where a dead machine is silent (``freeze_host`` is the silent case);
    * the machine: files are shared, so a lost host's local disk is not lost; one clock, one kernel, one
      page cache; no GCE metadata server;
    * Google Cloud: no quota, no queueing, no maintenance events, no pod scheduling, no image pulls;
      ``add_host`` takes seconds;
    * Ray's dashboard agents and log forwarding, unless ``dashboard=True`` and ``forward_logs=True``.

    Methods may be called from several threads.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        sim_id: str,
        directory: str,
        record_path: str | None,
        owned: bool,
        keeper: subprocess.Popen[bytes] | None = None,
    ) -> None:
        """Use :func:`simulate`, :func:`start_detached` or :func:`find`."""
        self._channel, self._owned, self._keeper = channel, owned, keeper
        self._sim_id, self._directory, self._record_path = sim_id, directory, record_path
        self._lock = threading.Lock()
        self._stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owned:
            self.stop()
        else:
            self._channel.close()

    # -- what there is -------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Ray's address, ``ip:port``, as ``ray.init(address=…)`` and ``raytpu run --on …`` take it."""
        address = self.state()["address"]
        if address is None:
            raise Refused("the head of the simulation is not up yet")
        return str(address)

    @property
    def slices(self) -> tuple[SimulatedSlice, ...]:
        """Slices and hosts as they are now."""
        return tuple(_slice(document) for document in self.state()["slices"])

    def host(self, slice_name: str, worker_id: int) -> SimulatedHost:
        """One host as it is now.

        Raises:
            WrongRequest: there is no such host.
        """
        for each in self.slices:
            if each.name == slice_name and 0 <= worker_id < len(each.hosts):
                return each.hosts[worker_id]
        raise WrongRequest(f"no host {slice_name}/{worker_id} in this simulation")

    @property
    def directory(self) -> str:
        """Temporary directory with the logs of all hosts; removed with the simulation."""
        return self._directory

    def state(self) -> dict[str, Any]:
        """Everything the keeper knows, as plain data.

        Raises:
            Refused: the simulation has ended.
        """
        return self._ask({"op": "state"})

    # -- faults --------------------------------------------------------------------------------------

    def lose_host(self, slice_name: str, worker_id: int) -> None:
        """SIGKILL everything on a host; none of its processes is left on return. Twice is not an error."""
        self._ask({"op": "lose_host", "slice": slice_name, "host": worker_id})

    def freeze_host(self, slice_name: str, worker_id: int) -> None:
        """SIGSTOP everything on a host: its connections stay open and silent, as with a hung kernel."""
        self._ask({"op": "freeze_host", "slice": slice_name, "host": worker_id})

    def thaw_host(self, slice_name: str, worker_id: int) -> None:
        """SIGCONT everything on a frozen host. Ray may have given the node up meanwhile; then it ends."""
        self._ask({"op": "thaw_host", "slice": slice_name, "host": worker_id})

    def preempt_host(self, slice_name: str, worker_id: int, deadline_s: float = 30.0) -> None:
        """Announce a preemption and carry it out; returns once it is announced.

        Ray drains the node (reason PREEMPTION) with this deadline; at the deadline everything on the host
        gets SIGTERM, and 5 s later SIGKILL. 30 s is the notice of a spot VM on Google Cloud.
        """
        if not deadline_s >= 0:
            raise WrongRequest(f"deadline_s is {deadline_s}; expected seconds, 0 or more")
        self._ask({"op": "preempt_host", "slice": slice_name, "host": worker_id, "deadline_s": deadline_s})

    # -- growth --------------------------------------------------------------------------------------

    def add_host(
        self, slice_name: str, worker_id: int, deadline_s: float = START_DEADLINE_S
    ) -> SimulatedHost:
        """Replace a lost host by a new one of the same name, with another address, and wait until it is up.

        Raises:
            Refused: the host is not lost.
            DeadlineExceeded: the new host is late.
        """
        self._ask({"op": "add_host", "slice": slice_name, "host": worker_id})
        self.wait_until_up(
            deadline_s, only=lambda host: (host.slice_name, host.worker_id) == (slice_name, worker_id)
        )
        return self.host(slice_name, worker_id)

    def add_slice(self, slices: Slices | None = None, deadline_s: float = START_DEADLINE_S) -> str:
        """Add one slice, like the first one when ``slices`` is ``None``, and return its name once it is up.

        Raises:
            WrongRequest: ``slices`` means more than one slice.
            DeadlineExceeded: a host of it is late.
        """
        if slices is not None and slices.count != 1:
            raise WrongRequest(f"add_slice adds one slice, not {slices.count}; call it once for each")
        plan = None if slices is None else asdict(slice_plan(slices))
        name = str(self._ask({"op": "add_slice", "slice_plan": plan})["name"])
        self.wait_until_up(deadline_s, only=lambda host: host.slice_name == name)
        return name

    def wait_until_up(
        self, deadline_s: float = START_DEADLINE_S, only: Callable[[SimulatedHost], bool] = lambda _: True
    ) -> None:
        """Wait for the head and for the hosts that ``only`` accepts.

        Raises:
            HostLost: one of them ended while starting; the message has the end of its log.
            DeadlineExceeded: naming the hosts that are late.
        """
        end = time.monotonic() + deadline_s
        while True:
            state = self.state()
            hosts = [host for each in state["slices"] for host in _slice(each).hosts if only(host)]
            lost = [host for host in hosts if not host.alive]
            if state["head"]["state"] in ("lost", "failed"):
                log = f"{state['directory']}/head.log"
                raise HostLost(_start_failure("the head", state["head"]["reason"], log))
            if lost:
                log = f"{state['directory']}/{lost[0].slice_name}-host{lost[0].worker_id}.log"
                raise HostLost(_start_failure(f"host {lost[0].name}", lost[0].reason, log))
            late = [host.name for host in hosts if host.node_id is None]
            if state["address"] is None:
                late = ["the head"]
            if not late:
                return
            if time.monotonic() > end:
                raise DeadlineExceeded(
                    f"{len(hosts)} simulated hosts to join Ray",
                    deadline_s,
                    late,
                    f"logs are in {state['directory']} while it runs; a busy machine needs a longer deadline",
                )
            time.sleep(_LOOK_S)

    # -- the end -------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Take everything down; nothing is left on return. Twice is not an error.

        A Ray driver in this process that is connected to the simulation is disconnected first.
        """
        if self._stopped:
            return
        try:
            _disconnect_ray(self.state()["address"])
            answer = self._ask({"op": "stop"})
        except (Refused, DeadlineExceeded):
            answer = self._clear_away_without_keeper()
        self._stopped = True
        self._channel.close()
        if self._keeper is not None:
            self._keeper.wait(timeout=_ANSWER_DEADLINE_S)
        if answer["left"] or not answer["removed"]:
            raise Refused(still_there(answer["left"], None if answer["removed"] else self._directory))

    def _clear_away_without_keeper(self) -> Message:
        if self._keeper is not None:
            self._keeper.kill()
        left = process_sweep.kill_marked(f"{self._sim_id}/")
        removed = process_sweep.remove_directory(self._directory)
        if self._record_path is not None:
            simulation_record.forget(self._record_path, self._sim_id)
        return {"left": left, "removed": removed}

    def _ask(self, message: Message) -> Message:
        if self._stopped:
            raise Refused("the simulation has been stopped; start a new one")
        with self._lock:
            return self._channel.ask(message, _ANSWER_DEADLINE_S)

    def wait_until_begun(self, deadline_s: float = _ANSWER_DEADLINE_S) -> None:
        """Wait for the keeper that was started for this object to say that it works, or why not."""
        self._channel.next(deadline_s)


def slice_plan(group: Slices) -> SlicePlan:
    """One slice of ``group``, without a name.

    Raises:
        TopologyError: no such slice exists.
    """
    shape = group.shape
    return SlicePlan(
        name="",
        generation=shape.generation,
        topology=shape.topology,
        chips_per_host=shape.chips_per_host,
        hosts=shape.hosts,
        devices_per_host=shape.devices_per_host,
        pod_type=shape.ray_pod_type,
    )


def still_there(left: list[int], directory: str | None) -> str:
    """The message for what could not be cleared away."""
    what = [f"processes {', '.join(map(str, left))} outlived SIGKILL for 10 s"] if left else []
    what += [f"{directory} could not be removed"] if directory is not None else []
    return f"the simulation is down, but not all of it is gone: {'; '.join(what)}"


def _slice(document: Message) -> SimulatedSlice:
    hosts = tuple(
        SimulatedHost(
            slice_name=document["name"],
            worker_id=worker_id,
            **{
                key: host[key]
                for key in ("ip", "node_id", "pid", "state", "alive", "reason", "seconds_to_up")
            },
        )
        for worker_id, host in enumerate(document["hosts"])
    )
    return SimulatedSlice(
        name=document["name"],
        generation=document["generation"],
        topology=document["topology"],
        chips_per_host=document["chips_per_host"],
        hosts=hosts,
    )


def _start_failure(who: str, reason: str | None, log: str) -> str:
    """The message for a node that ended while starting, with the last lines that it printed."""
    try:
        with open(log, errors="replace") as file:
            last = file.readlines()[-15:]
    except FileNotFoundError:
        last = []
    return f"{who} of the simulation ended while starting: {reason}\n" + "".join(f"  {line}" for line in last)


def _disconnect_ray(address: str | None) -> None:
    ray = sys.modules.get("ray")
    if ray is None or address is None or not ray.is_initialized():
        return
    if ray.get_runtime_context().gcs_address == address:
        ray.shutdown()
