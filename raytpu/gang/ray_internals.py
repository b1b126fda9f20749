"""The one module of ``gang`` that touches private parts of Ray; ``tests/local_ray/test_ray_internals.py``
tells when Ray changes them.

===========================================  ========================================================
``ray.experimental.internal_kv``             the ledger's place: Ray's own key-value store, which lives
                                             as long as the cluster and outlives every actor
``ray._private.state.jobs``                  which drivers have ended; the public list needs a dashboard
``ray._private.grpc_utils``                  a channel with the cluster's TLS and token settings
``…state.available_resources_per_node``      which chips are free; the public function adds all nodes up
``…state.get_cluster_config``                what Ray's autoscaler could bring up, as it told the GCS
===========================================  ========================================================

Seen in Ray 2.60.0. All of them need a connected Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray

_NAMESPACE = "raytpu"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """A kind of node that the autoscaler can add."""

    name: str
    resources: Mapping[str, float]
    max_count: int
    """Most nodes of this kind; -1 for no limit."""


def node_groups() -> tuple[NodeGroup, ...]:
    """Kinds of nodes that Ray's autoscaler can bring up; empty when the cluster has none."""
    config = ray._private.state.state.get_cluster_config()
    if config is None:
        return ()
    return tuple(
        NodeGroup(name=group.name, resources=dict(group.resources), max_count=group.max_count)
        for group in config.node_group_configs
    )
