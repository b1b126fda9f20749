"""Start one Ray node in this process: everything private of Ray that the simulation needs is here.

Written against Ray 2.60: ``ray._private.node.Node``, ``ray._private.parameter.RayParams`` and the
command line that ``ray._private.services.start_raylet`` builds. ``tests/local_ray`` fails when a later
Ray changes what is used.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from raytpu.cluster.simulation_plan import NodePlan

# A port is free on every address, and every simulated host has an address of its own.
_RUNTIME_ENV_AGENT_PORT = 18601

# The raylet insists on a dashboard agent, ends when it ends, and gives it a pipe as standard input.
# ``cat`` does all that is asked and ends with the raylet: 1 MB and no start-up time, where the real
# agent takes 78 MB and 2 s of CPU, before the raylet registers.
_STAND_IN_AGENT = "cat"

_NO_PORT = -1  # what the real agent reports for a service that it does not offer


def prepare() -> None:
    """Import what a node needs, once, before nodes are forked from this process."""
    import ray._private.node
    import ray._private.parameter
    import ray._private.services
    import ray._private.state
    import ray.core.generated.autoscaler_pb2  # noqa: F401


class RayNode:
    """A running Ray node. Its processes end with this process (parent-death signal)."""

    def __init__(self, plan: NodePlan) -> None:
        import ray._private.node
        import ray._private.parameter

        self._plan = plan
        is_head = plan.head_address is None
        params = ray._private.parameter.RayParams(**_ray_params(plan))
        node_type = ray._private.node.Node if plan.options.dashboard else _node_without_dashboard()
        with_light_raylet = _LightRaylet(
            stand_in_agent=not plan.options.dashboard, warm_workers=1 if plan.options.warm_modules else 0
        )
        with with_light_raylet:
            self._node = node_type(params, head=is_head, shutdown_at_exit=False, spawn_reaper=True)

    @property
    def gcs_address(self) -> str:
        return str(self._node.gcs_address)

    @property
    def node_id(self) -> str:
        return str(self._node.node_id)

    @property
    def dashboard_url(self) -> str | None:
        return self._node.webui_url or None

    def is_alive_with(self, resource: str | None) -> bool:
        """Whether the GCS lists this node as alive, with some of ``resource`` in its total."""
        from ray.core.generated.gcs_pb2 import GcsNodeInfo

        wanted = GcsNodeInfo.GcsNodeState.ALIVE
        for info in self._node.get_gcs_client().get_all_node_info(state_filter=wanted).values():
            if info.node_id.hex() == self.node_id:
                return resource is None or info.resources_total[resource] > 0
        return False

    def ended_processes(self) -> list[str]:
        """Kinds of Ray processes of this node that have ended, such as ``raylet``."""
        return [kind for kind, _ in self._node.dead_processes()]

    def drain(self, reason: str, deadline_s: float) -> str | None:
        """Tell Ray that this node will be preempted ``deadline_s`` from now; an answer is a refusal."""
        from ray.core.generated.autoscaler_pb2 import DrainNodeReason

        accepted, refusal = self._node.get_gcs_client().drain_node(
            self.node_id,
            DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION,
            reason,
            int((time.time() + deadline_s) * 1000),
            timeout=10,
        )
        return None if accepted else str(refusal)


def _ray_params(plan: NodePlan) -> dict[str, Any]:
    params: dict[str, Any] = {
        "gcs_address": plan.head_address,
        "node_ip_address": plan.address,
        "node_name": plan.label,
        "num_cpus": plan.cpus,
        "num_gpus": 0,
        "resources": dict(plan.resources),
        "labels": dict(plan.labels),
        "object_store_memory": plan.options.object_store_bytes,
        # Explicit names: the generated ones of parallel starts collide, and their paths are too long.
        "raylet_socket_name": os.path.join(plan.directory, "raylet"),
        "plasma_store_socket_name": os.path.join(plan.directory, "plasma"),
        "temp_dir": plan.directory,
        "include_log_monitor": plan.options.forward_logs,
        "include_dashboard": plan.options.dashboard,
        "dashboard_host": plan.address,
        "dashboard_port": None,
        "dashboard_agent_listen_port": 0,
        "no_monitor": True,
    }
    if not plan.options.dashboard:
        # A known port: the raylet registers without waiting until the agent has been imported.
        params["runtime_env_agent_port"] = _RUNTIME_ENV_AGENT_PORT
    return params


def _node_without_dashboard() -> type:
    from ray._private.node import Node
    from ray._raylet import (
        DASHBOARD_AGENT_LISTEN_PORT_NAME,
        METRICS_AGENT_PORT_NAME,
        METRICS_EXPORT_PORT_NAME,
        persist_port,
    )

    class NodeWithoutDashboard(Node):
        """Even with ``include_dashboard=False`` Ray starts an API server: 80 MB for usage statistics."""

        def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
            """Starts nothing."""

        def start_raylet(self, *args: Any, **kwargs: Any) -> None:
            """The raylet waits until its dashboard agent has written down its ports; ``cat`` does not."""
            for service in (
                METRICS_AGENT_PORT_NAME,
                METRICS_EXPORT_PORT_NAME,
                DASHBOARD_AGENT_LISTEN_PORT_NAME,
            ):
                persist_port(self.get_session_dir_path(), self.node_id, service, _NO_PORT)
            super().start_raylet(*args, **kwargs)

    return NodeWithoutDashboard


class _LightRaylet:
    """While open, the raylet's command line is edited before it is run."""

    def __init__(self, *, stand_in_agent: bool, warm_workers: int) -> None:
        self._edits = {"--num_prestart_python_workers=": str(warm_workers)}
        if stand_in_agent:
            self._edits["--dashboard_agent_command="] = _STAND_IN_AGENT

    def __enter__(self) -> None:
        import ray._private.services as services

        self._services, self._original = services, services.start_ray_process
        services.start_ray_process = self._edited(services.start_ray_process)

    def __exit__(self, *_: object) -> None:
        self._services.start_ray_process = self._original

    def _edited(self, start: Callable[..., Any]) -> Callable[..., Any]:
        def start_edited(command: list[str], process_type: str, *args: Any, **kwargs: Any) -> Any:
            if process_type == "raylet":
                command = edited_command(command, self._edits)
            return start(command, process_type, *args, **kwargs)

        return start_edited


def edited_command(command: list[str], edits: dict[str, str]) -> list[str]:
    """``command`` with the value of each option in ``edits`` replaced.

    Raises:
        RuntimeError: an option is not there: this Ray builds another command line.
    """
    missing = [option for option in edits if not any(word.startswith(option) for word in command)]
    if missing:
        raise RuntimeError(f"this Ray starts its raylet without {', '.join(missing)}; raytpu knows Ray 2.60")
    edited = []
    for word in command:
        option = next((option for option in edits if word.startswith(option)), None)
        edited.append(word if option is None else option + edits[option])
    return edited
