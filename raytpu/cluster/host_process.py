"""The process that is a simulated host: forked from the keeper, it runs one Ray node and watches.

It leads a session of its own. It ends, and takes everything of its host with it, when the keeper is gone;
it ends when its raylet ends, as a TPU pod does.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
import traceback

from raytpu.cluster import process_sweep, ray_node, simulation_record
from raytpu.cluster.control_channel import Channel, Message
from raytpu.cluster.simulation_plan import HEAD, NodePlan, SimulationPlan

_LOOK_S = 0.25
"""Pause between two looks at the keeper and at the raylet."""


def run(plan: SimulationPlan, node: NodePlan, connection: socket.socket, keeper_pid: int) -> None:
    """Never returns: the forked process ends here."""
    code = 1
    try:
        _become_a_host(plan, node, connection)
        channel = Channel(connection)
        # A thread, because starting a Ray node blocks for up to half a minute.
        threading.Thread(target=_watch_keeper, args=(plan, node, keeper_pid), daemon=True).start()
        try:
            code = _serve(node, channel)
        except Exception as error:  # process boundary: the keeper tells the owner, the log has it all
            traceback.print_exc()
            if os.getppid() != keeper_pid:
                signal.pause()  # as below: clearing away is in hand
            channel.send({"event": "failed", "reason": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(code)


def _become_a_host(plan: SimulationPlan, node: NodePlan, connection: socket.socket) -> None:
    os.setsid()
    os.mkdir(node.directory)
    log = os.open(log_path(plan, node.label), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for name in os.listdir("/proc/self/fd"):
        # The other hosts' channels must not stay open here: their end of file is the death notice.
        if int(name) > 2 and int(name) != connection.fileno():
            try:
                os.close(int(name))
            except OSError:
                continue  # the descriptor that listed the directory
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.environ.update(node.environment)
    random.seed()  # a forked process repeats its parent's numbers, and Ray draws ports from them


def _watch_keeper(plan: SimulationPlan, node: NodePlan, keeper_pid: int) -> None:
    while os.getppid() == keeper_pid:
        time.sleep(_LOOK_S)
    _clear_away_without_keeper(plan, node)
    os._exit(1)


def _serve(node: NodePlan, channel: Channel) -> int:
    ray_process = ray_node.RayNode(node)
    resource = None if node.label == HEAD else "TPU"
    while not ray_process.is_alive_with(resource):
        time.sleep(0.05)
    channel.send(
        {
            "event": "up",
            "node_id": ray_process.node_id,
            "gcs_address": ray_process.gcs_address,
            "dashboard_url": ray_process.dashboard_url,
        }
    )
    channel.settimeout(_LOOK_S)
    while True:
        try:
            messages = channel.receive()
        except TimeoutError:
            messages = []
        if messages is None:
            signal.pause()  # the keeper is gone, and the thread that watches it ends this process
        for message in messages or ():
            channel.send(_obey(ray_process, message))
        ended = ray_process.ended_processes()
        if ended:
            channel.send({"event": "failed", "reason": f"its {', '.join(sorted(set(ended)))} ended"})
            return 1


def _obey(ray_process: ray_node.RayNode, message: Message) -> Message:
    if message["op"] == "drain":
        refusal = ray_process.drain(message["reason"], message["deadline_s"])
        return {"event": "draining", "refusal": refusal}
    raise ValueError(f"a host knows no operation {message['op']!r}")


def _clear_away_without_keeper(plan: SimulationPlan, node: NodePlan) -> None:
    """The keeper was killed: each host clears itself away, the head everything that is left."""
    process_sweep.kill_marked(node.marker)
    if node.label != HEAD:
        return
    # Each host notices within one look; until then it may still write below the directory.
    time.sleep(4 * _LOOK_S)
    process_sweep.kill_marked(f"{plan.sim_id}/")
    process_sweep.remove_directory(plan.directory)
    if plan.record_path is not None:
        simulation_record.forget(plan.record_path, plan.sim_id)


def log_path(plan: SimulationPlan, label: str) -> str:
    """Where the host process of ``label`` writes what it and its Ray processes print."""
    return f"{plan.directory}/{label.replace('/', '-host')}.log"
