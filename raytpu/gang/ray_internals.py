"""The one module of ``gang`` that touches private parts of Ray; ``tests/local_ray/test_ray_internals.py``
tells when Ray changes them.

===========================================  ========================================================
``ray.experimental.internal_kv``             the ledger's place: Ray's own key-value store, which lives
                                             as long as the cluster and outlives every actor
``ray._private.state.jobs``                  which drivers have ended; the public list needs a dashboard
``ray._private.grpc_utils``                  a channel with the cluster's TLS and token settings
``…state.available_resources_per_node``      which chips are free; the public function adds all nodes up
``ray.experimental.internal_kv``             also whether the cluster's autoscaler is v2, and what it says
``ray.core.generated.autoscaler_pb2``        the form of what it says
``…get_placement_group_table``               since when, and for whom; the public table leaves that out
``…get_actor_table``                         which actors have chips; the public list needs a dashboard
``ray._private.state.get_draining_nodes``    which nodes go away, and when; what Ray Train's own watcher asks
``…GcsClient.drain_node``                    tell all of the cluster that a node goes away
===========================================  ========================================================

Seen in Ray 2.60.0. All of them need a connected Ray.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.exceptions import RpcError

_NAMESPACE = "raytpu"

_STATUS_S = 2.0
"""For the GCS to put the state of every node together; the book waits for it."""


def store(key: str, value: bytes) -> None:
    """Write one value; on return the cluster has it."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(key, value, overwrite=True, namespace=_NAMESPACE)


def stored(key: str) -> bytes | None:
    """The value written last; ``None`` when there is none."""
    from ray.experimental import internal_kv

    value: bytes | None = internal_kv._internal_kv_get(key, namespace=_NAMESPACE)
    return value


def free_resources() -> Mapping[str, Mapping[str, float]]:
    """Free resources by node id; Ray leaves out what is zero."""
    from ray._private.state import available_resources_per_node

    free: Mapping[str, Mapping[str, float]] = available_resources_per_node()
    return free


def ended_jobs() -> frozenset[str]:
    """Ids, in hex, of the jobs whose driver has ended."""
    from ray._private import state

    return frozenset(job["JobID"] for job in state.jobs() if job["IsDead"])


def channel(address: str) -> Any:
    """A gRPC channel to a component of this cluster, ``host:port``. Tries again at least every second."""
    from ray._private.grpc_utils import init_grpc_channel

    options = [
        ("grpc.enable_http_proxy", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
    return init_grpc_channel(address, options=options)


def draining_nodes() -> Mapping[str, float | None]:
    """When each node that Ray drains goes away, by its id, in seconds since 1970; ``None``: not known."""
    from ray._private import state

    ends_ms: Mapping[str, int] = state.state.get_draining_nodes()
    return {node_id: end_ms / 1000 if end_ms else None for node_id, end_ms in ends_ms.items()}


def drain_node(node_id: str, reason: str, seconds_left: float) -> None:
    """Tell Ray, and so everybody, that this node goes away: nothing new is put there.

    What runs there goes on; Ray refuses no drain for this reason. See ``Node._drain_node_before_shutdown`` in
    ``ray/_private/node.py``, which does the same when `ray start --block` gets SIGTERM.
    """
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason
    from ray.experimental.internal_kv import internal_kv_get_gcs_client

    internal_kv_get_gcs_client().drain_node(
        node_id,
        DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION,
        reason,
        int((time.time() + seconds_left) * 1000),
        timeout=_STATUS_S,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerState:
    """What the autoscaler makes of what waits, and what it has under way."""

    version: int
    """Of what the GCS has to show to the autoscaler; each look at it is a new one."""
    worked_on: int
    """The version that the autoscaler's last pass was about; 0 before its first."""
    waiting: frozenset[str]
    """Ids, in hex, of the placement groups that wait, in ``version``."""
    refused: frozenset[str]
    """Those that no nodes which it could add would serve, in ``worked_on``."""
    requested: int
    """Nodes that it has asked of the cloud, and no machine is known of."""
    starting: int
    """Machines that do not run Ray yet."""


def autoscaler_v2() -> bool:
    """Whether the cluster was started for autoscaler v2, as KubeRay does it for Ray 2.60.

    One is not necessarily there: without a cloud to ask, what runs under that name refuses everything.
    """
    from ray.experimental.internal_kv import internal_kv_get_gcs_client

    # As ray.autoscaler.v2.utils.is_autoscaler_v2 does, which trusts this process's environment first.
    value: bytes | None = internal_kv_get_gcs_client().internal_kv_get(
        ray._raylet.GCS_AUTOSCALER_V2_ENABLED_KEY.encode(),
        namespace=ray._raylet.GCS_AUTOSCALER_STATE_NAMESPACE.encode(),
    )
    return value == b"1"


def autoscaler_state() -> AutoscalerState | None:
    """The state now; ``None`` when the GCS does not tell in time. Its answer has every node in it."""
    from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply
    from ray.experimental.internal_kv import internal_kv_get_gcs_client

    reply = GetClusterStatusReply()
    try:
        reply.ParseFromString(internal_kv_get_gcs_client().get_cluster_status(timeout_s=_STATUS_S))
    except RpcError:
        return None
    shown, made_of_it = reply.cluster_resource_state, reply.autoscaling_state
    return AutoscalerState(
        version=shown.cluster_resource_state_version,
        worked_on=made_of_it.last_seen_cluster_resource_state_version,
        waiting=_group_ids(shown.pending_gang_resource_requests),
        refused=_group_ids(made_of_it.infeasible_gang_resource_requests),
        requested=sum(each.count for each in made_of_it.pending_instance_requests),
        starting=len(made_of_it.pending_instances),
    )


def _group_ids(requests: Iterable[Any]) -> frozenset[str]:
    # "<id in hex>:STRICT_SPREAD|PENDING" (src/ray/gcs/gcs_server/gcs_autoscaler_state_manager.cc)
    return frozenset(request.details.partition(":")[0] for request in requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taker:
    """A placement group, or an actor in none, that has resources of nodes."""

    kind: Literal["placement group", "actor"]
    name: str
    """Given by its user; an actor without one goes by its class, a placement group by its id."""
    resources: Mapping[str, Mapping[str, float]]
    """What it has, by node id."""
    since_s: float
    """Seconds since 1970."""
    job: str
    """Id, in hex, of the job that made it."""
    detached: bool
    """It outlives its job."""


def takers() -> tuple[Taker, ...]:
    """Whatever has resources of nodes, except tasks, and actors that are in a placement group."""
    accessor = ray._private.state.state._connect_and_get_accessor()
    return (*_groups(accessor), *_actors(accessor))


def _groups(accessor: Any) -> Iterator[Taker]:
    from ray.core.generated.gcs_pb2 import PlacementGroupTableData

    for row in accessor.get_placement_group_table():
        group = PlacementGroupTableData.FromString(row)
        resources: dict[str, dict[str, float]] = {}
        for bundle in group.bundles:
            if bundle.node_id:  # else it is not placed
                on_node = resources.setdefault(bundle.node_id.hex(), {})
                for resource, amount in bundle.unit_resources.items():
                    on_node[resource] = on_node.get(resource, 0.0) + amount
        if resources and group.state != PlacementGroupTableData.REMOVED:
            yield Taker(
                kind="placement group",
                name=group.name or group.placement_group_id.hex(),
                resources=resources,
                since_s=group.placement_group_final_bundle_placement_timestamp_ms / 1000,
                job=group.creator_job_id.hex(),
                detached=group.is_detached,
            )


def _actors(accessor: Any) -> Iterator[Taker]:
    from ray.core.generated.gcs_pb2 import ActorTableData

    for row in accessor.get_actor_table(None, "ALIVE"):
        actor = ActorTableData.FromString(row)
        if actor.HasField("placement_group_id") or not actor.required_resources:
            continue
        yield Taker(
            kind="actor",
            name=actor.name or actor.class_name,
            resources={actor.address.node_id.hex(): dict(actor.required_resources)},
            since_s=actor.start_time / 1000,
            job=actor.job_id.hex(),
            detached=actor.is_detached,
        )


def entrypoints() -> Mapping[str, str]:
    """What each job, by its id in hex, was started with."""
    from ray._private import state

    return {job["JobID"]: job["Entrypoint"] for job in state.jobs()}
