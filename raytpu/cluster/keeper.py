"""The keeper of one simulation: forks the head and the hosts, injects faults, clears everything away.

``python -m raytpu.cluster.keeper PLAN_JSON OWNER_FD OWNER_PID`` is started by the owner, in a session of its
own. It is one thread and one loop: Ray is imported but never connected here, so that forking stays safe.
It ends when told to, when its owner is gone (end of the owner's channel, or another parent process), or
when it is killed; in the last case the host processes notice and clear up.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from raytpu.cluster import host_process, process_sweep, ray_node, simulation_record
from raytpu.cluster.control_channel import Channel, Message, error_message
from raytpu.cluster.loopback import LoopbackNetwork
from raytpu.cluster.simulated_hosts import FAILED, LOST, STARTING, UP, HostTable, SimulatedNode
from raytpu.cluster.simulation_plan import (
    HEAD,
    INHERITED_PREFIX_KEPT,
    INHERITED_PREFIXES_DROPPED,
    NodePlan,
    SimulationPlan,
    SlicePlan,
    head_plan,
    host_plan,
    plan_from_json,
)
from raytpu.errors import RaytpuError, Refused, WrongRequest

_LOOK_S = 0.2
"""Pause between two looks at children, deadlines and the owner."""

PREEMPTION_GRACE_S = 5.0
"""From SIGTERM to SIGKILL on a preempted host; chosen by feel, a spot VM gives no more either."""


class Keeper:
    """See the module. Every public attribute belongs to the one thread that runs :meth:`run`."""

    def __init__(self, plan: SimulationPlan, owner: socket.socket, owner_pid: int) -> None:
        self._plan = plan
        self._owner, self._owner_pid = Channel(owner), owner_pid
        self._selector = selectors.DefaultSelector()
        self._stopping = False
        self._stop_answers: list[tuple[Channel, int | None]] = []
        self._gcs_address: str | None = None
        self._dashboard_url: str | None = None
        self._recorded = False
        self._serial = 0
        self._head = SimulatedNode(label=HEAD)
        self._table = HostTable()
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._operations: dict[str, Callable[[Message], Message]] = {
            "state": lambda _: self._state(),
            "lose_host": self._lose_host,
            "freeze_host": self._freeze_host,
            "thaw_host": self._thaw_host,
            "preempt_host": self._preempt_host,
            "add_host": self._add_host,
            "add_slice": self._add_slice,
        }

    def run(self) -> None:
        """Until the simulation ends."""
        try:
            if self._plan.record_path is not None:
                simulation_record.claim(self._plan)
        except RaytpuError as error:
            self._owner.send(error_message(error))
            return
        try:
            try:
                self._begin()
            except RaytpuError as error:
                self._owner.send(error_message(error))
                return
            self._owner.send({"event": "begun"})
            while not self._stopping:
                self._turn()
        finally:
            self._clear_away()

    def _begin(self) -> None:
        self._network = LoopbackNetwork()
        os.makedirs(self._plan.directory, mode=0o700)
        _write_to(f"{self._plan.directory}/keeper.log")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._plan.socket_path)
        self._listener.listen(16)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._owner, selectors.EVENT_READ, lambda: self._hear(self._owner))
        self._head.address = self._network.head
        for wanted in self._plan.slices:
            self._table.add_slice(wanted)
        self._fork(self._head, head_plan(self._plan, self._network.head))

    def _turn(self) -> None:
        for key, _ in self._selector.select(_LOOK_S):
            key.data()
        self._reap()
        now = time.monotonic()
        due = [timer for timer in self._timers if timer[0] <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for _, act in due:
            act()
        if not self._plan.detached and os.getppid() != self._owner_pid:
            self._stopping = True

    # -- connections ---------------------------------------------------------------------------------

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(5.0)  # a client that does not read must not hold the keeper up
        channel = Channel(connection)
        self._selector.register(channel, selectors.EVENT_READ, lambda: self._hear(channel))

    def _hear(self, channel: Channel) -> None:
        messages = channel.receive()
        if messages is None:
            self._selector.unregister(channel)
            channel.close()
            if channel is self._owner and not self._plan.detached:
                self._stopping = True
            return
        for message in messages:
            if message.get("op") == "stop":
                self._stopping = True
                self._stop_answers.append((channel, message.get("id")))
                continue
            try:
                answer = self._obey(message)
            except RaytpuError as error:
                answer = error_message(error)
            _tell(channel, {**answer, "id": message.get("id")})

    def _obey(self, message: Message) -> Message:
        operation = self._operations.get(message.get("op", ""))
        if operation is None:
            raise WrongRequest(f"the keeper knows no operation {message.get('op')!r}")
        try:
            return operation(message)
        except KeyError as error:
            raise WrongRequest(f"operation {message['op']!r} lacks {error}") from error

    def _state(self) -> Message:
        return {
            "sim_id": self._plan.sim_id,
            "name": self._plan.name,
            "address": self._gcs_address,
            "dashboard_url": self._dashboard_url,
            "directory": self._plan.directory,
            "keeper_pid": os.getpid(),
            "head": self._head.document(),
            "slices": self._table.document(),
        }

    # -- children ------------------------------------------------------------------------------------

    def _fork(self, node: SimulatedNode, plan: NodePlan) -> None:
        here, there = socket.socketpair()
        keeper_pid = os.getpid()  # taken here: a child whose parent has just died would ask too late
        pid = os.fork()
        if pid == 0:
            host_process.run(self._plan, plan, there, keeper_pid)
        there.close()
        channel = Channel(here)
        node.pid, node.channel, node.state, node.marker = pid, channel, STARTING, plan.marker
        node.started_s = time.time()
        self._selector.register(channel, selectors.EVENT_READ, lambda: self._hear_node(node, channel))

    def _start_host(self, node: SimulatedNode) -> None:
        assert self._gcs_address is not None
        of, worker_id = self._table.place(node)
        self._serial += 1
        node.address = self._network.next_address(each.address for each in self._table.nodes())
        plan = host_plan(
            self._plan,
            of,
            worker_id,
            address=node.address,
            serial=self._serial,
            head_address=self._gcs_address,
        )
        self._fork(node, plan)

    def _hear_node(self, node: SimulatedNode, channel: Channel) -> None:
        messages = channel.receive()
        if messages is None:
            self._selector.unregister(channel)
            channel.close()
            return
        for message in messages:
            if message["event"] == "up":
                node.node_id, node.state, node.up_s = message["node_id"], UP, time.time()
                if node is self._head:
                    self._head_is_up(message)
                self._complete_record()
            elif message["event"] == "failed":
                node.reason = message["reason"]
            elif message["event"] == "draining" and message["refusal"] is not None:
                node.reason = f"Ray refused the drain: {message['refusal']}"

    def _head_is_up(self, message: Message) -> None:
        self._gcs_address, self._dashboard_url = message["gcs_address"], message["dashboard_url"]
        for node in self._table.nodes():
            self._start_host(node)

    def _complete_record(self) -> None:
        """Others find the simulation once all of it is up."""
        if self._plan.record_path is None or self._recorded or self._gcs_address is None:
            return
        if all(node.state == UP for node in self._table.nodes()):
            simulation_record.write(self._plan, self._gcs_address)
            self._recorded = True

    def _reap(self) -> None:
        for node in (self._head, *self._table.nodes()):
            if node.pid is None or node.ended:
                continue
            pid, status = os.waitpid(node.pid, os.WNOHANG)
            if pid == 0:
                continue
            node.ended = True
            # The host process is its machine: whatever of the host is left goes with it.
            process_sweep.kill_marked(node.marker, (node.pid,))
            if node.state != LOST:
                node.reason = node.reason or process_sweep.signal_name(status)
                node.state = FAILED if node.state == STARTING else LOST

    # -- operations ----------------------------------------------------------------------------------

    def _lose_host(self, message: Message) -> Message:
        node = self._table.find(message["slice"], message["host"])
        self._kill(node, message.get("reason", "lost on request (SIGKILL)"))
        return {"killed": True}

    def _kill(self, node: SimulatedNode, reason: str) -> None:
        if node.state in (LOST, FAILED) or node.pid is None:
            return
        node.state, node.reason = LOST, reason
        left = process_sweep.kill_marked(node.marker, (node.pid,))
        if left:
            raise Refused(f"{node.label}: processes {left} outlived SIGKILL for 10 s")

    def _freeze_host(self, message: Message) -> Message:
        node = self._table.find_up(message["slice"], message["host"])
        left = process_sweep.stop_marked(node.marker, (node.pid,) if node.pid else ())
        if left:
            raise Refused(f"{node.label}: processes {left} ran on for 10 s after SIGSTOP")
        node.frozen = True
        return {"frozen": True}

    def _thaw_host(self, message: Message) -> Message:
        node = self._table.find_up(message["slice"], message["host"])
        left = process_sweep.continue_marked(node.marker, (node.pid,) if node.pid else ())
        if left:
            raise Refused(f"{node.label}: processes {left} stood still for 10 s after SIGCONT")
        node.frozen = False
        return {"frozen": False}

    def _preempt_host(self, message: Message) -> Message:
        node = self._table.find_up(message["slice"], message["host"])
        if node.frozen:
            raise Refused(f"{node.label} is frozen and cannot hear of a preemption; thaw it first")
        assert node.channel is not None
        deadline_s = float(message["deadline_s"])
        reason = f"raytpu simulation: {node.label} is preempted in {deadline_s:g} s"
        node.channel.send({"op": "drain", "reason": reason, "deadline_s": deadline_s})
        node.preempted_at_s = time.time() + deadline_s
        serial_pid = node.pid

        def same_host(act: Callable[[], None]) -> Callable[[], None]:
            return lambda: act() if node.pid == serial_pid and node.state not in (LOST, FAILED) else None

        def terminate() -> None:
            process_sweep.terminate_marked(node.marker, (node.pid,) if node.pid else ())

        end = time.monotonic() + deadline_s
        kill = same_host(lambda: self._kill(node, "preempted"))
        self._timers += [(end, same_host(terminate)), (end + PREEMPTION_GRACE_S, kill)]
        return {"preempted_at_s": node.preempted_at_s}

    def _add_host(self, message: Message) -> Message:
        self._need_head()
        node = self._table.find(message["slice"], message["host"])
        if node.state not in (LOST, FAILED):
            raise Refused(
                f"{node.label} is {node.state}; add_host replaces a lost host: lose_host comes first"
            )
        process_sweep.kill_marked(node.marker, (node.pid,) if node.pid else ())
        if node.pid is not None and not node.ended:
            os.waitpid(node.pid, 0)
        replacement = self._table.replace(node)
        self._start_host(replacement)
        return {"started": replacement.label}

    def _add_slice(self, message: Message) -> Message:
        self._need_head()
        wanted = message["slice_plan"]
        like = replace(self._plan.slices[0], name="") if wanted is None else SlicePlan(**wanted)
        name = self._table.add_slice(like)
        for node in self._table.nodes_of(name):
            self._start_host(node)
        return {"name": name}

    def _need_head(self) -> None:
        if self._head.state != UP or self._gcs_address is None:
            raise Refused(f"the head of the simulation is {self._head.state}; start the simulation again")

    # -- the end -------------------------------------------------------------------------------------

    def _clear_away(self) -> None:
        leaders = {
            node.pid for node in (self._head, *self._table.nodes()) if node.pid is not None and not node.ended
        }
        left = process_sweep.kill_marked(f"{self._plan.sim_id}/", leaders)
        removed = process_sweep.remove_directory(self._plan.directory)
        if self._plan.record_path is not None:
            simulation_record.forget(self._plan.record_path, self._plan.sim_id)
        for channel, request_id in self._stop_answers:
            _tell(channel, {"left": left, "removed": removed, "id": request_id})


def _tell(channel: Channel, message: Message) -> None:
    try:
        channel.send(message)
    except OSError:
        return  # the client left without waiting; the next look at its channel ends it


def _write_to(path: str) -> None:
    """Standard output and error into a file: the owner's terminal or pipe is not held open."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def main() -> None:
    """Entry of the keeper's process."""
    plan = plan_from_json(sys.argv[1])
    owner = socket.socket(fileno=int(sys.argv[2]))
    for name in list(os.environ):
        if name.startswith(INHERITED_PREFIXES_DROPPED) and not name.startswith(INHERITED_PREFIX_KEPT):
            del os.environ[name]
    # `python` in a submitted job's entrypoint is this one, as it is in an image.
    os.environ["PATH"] = os.pathsep.join(
        [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's, who then closes its channel
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ray_node.prepare()
    Keeper(plan, owner, int(sys.argv[3])).run()


if __name__ == "__main__":
    main()
