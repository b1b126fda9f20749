"""The node pools of a workload as ``gcloud`` commands.

On GKE a slice of several hosts is a node pool of its own: its nodes come and go together, so that the pool
has all of them or none. Slices of one host share a pool.
"""

from __future__ import annotations

from collections.abc import Sequence

from raytpu.manifest.labels import pool_name
from raytpu.plan import ClusterPlan

_USAGE = """\
#!/usr/bin/env bash
# Node pools of {name}: {what}.
# Written by `raytpu render --kind node-pools`. Give the cluster in the environment:
#   PROJECT=my-project CLUSTER=my-cluster LOCATION=us-east5 ZONE=us-east5-b bash {file}
set -euo pipefail

: "${{PROJECT:?the Google Cloud project}}"
: "${{CLUSTER:?the name of the GKE cluster}}"
: "${{LOCATION:?the region or zone of the GKE cluster}}"
: "${{ZONE:?the zone of the TPUs; gcloud compute tpus locations list}}"
"""


def node_pool_script(plan: ClusterPlan) -> str:
    """A bash script that makes the pools for the most slices of the workload, unless they are there."""
    shape, name = plan.shape, plan.workload.name
    what = f"{plan.most} × {shape}, {shape.hosts} node{'s' if shape.hosts > 1 else ''} each"
    head = _USAGE.format(name=name, what=what, file=f"{name}.node-pools.sh")
    pool = pool_name(plan)
    if shape.hosts == 1:
        return "\n".join([head, _create(plan), _call(pool, _flags(plan, nodes=plan.most), indent="")])
    call = _call(f'"{pool}-$index"', _flags(plan, nodes=shape.hosts), indent="  ")
    loop = f"for index in $(seq 0 {plan.most - 1}); do # a slice is a pool of its own\n{call}done\n"
    return "\n".join([head, _create(plan), loop])


def _call(pool: str, flags: Sequence[str], indent: str) -> str:
    return f" \\\n{indent}  ".join((f"{indent}create_pool {pool}", *flags)) + "\n"


def _create(plan: ClusterPlan) -> str:
    # --accelerator-network-profile is known to gcloud beta only (GKE's page on managed DRANET).
    gcloud = "gcloud beta" if plan.cluster.multislice_network else "gcloud"
    return f"""\
create_pool() {{
  local name="$1"
  shift
  if gcloud container node-pools describe "$name" --project="$PROJECT" --cluster="$CLUSTER" \\
    --location="$LOCATION" >/dev/null 2>&1; then
    echo "$name is there already"
    return
  fi
  {gcloud} container node-pools create "$name" --project="$PROJECT" --cluster="$CLUSTER" \\
    --location="$LOCATION" --node-locations="$ZONE" "$@"
}}
"""


def _flags(plan: ClusterPlan, nodes: int) -> tuple[str, ...]:
    shape, cluster = plan.shape, plan.cluster
    flags = [f"--machine-type={shape.machine_type}"]
    if shape.hosts > 1:  # a pool of single hosts takes the topology from its machine type
        flags.append(f"--tpu-topology={shape.topology}")
    # Pools begin empty and grow with the pods that wait; a multi-host pool grows from none to all.
    flags += ["--num-nodes=0", "--enable-autoscaling"]
    if shape.hosts > 1:
        flags += ["--min-nodes=0", f"--max-nodes={nodes}"]
    else:
        flags += ["--total-min-nodes=0", f"--total-max-nodes={nodes}", "--location-policy=ANY"]
    if cluster.spot:
        flags.append("--spot")
    if cluster.reservation is not None:
        flags += ["--reservation-affinity=specific", f"--reservation={cluster.reservation}"]
    if cluster.queue is not None and cluster.queue.flex_start:
        flags += ["--flex-start", "--enable-queued-provisioning", "--reservation-affinity=none"]
        flags.append("--no-enable-autorepair")
    if cluster.multislice_network:
        flags.append("--accelerator-network-profile=auto")
        flags.append("--node-labels=cloud.google.com/gke-networking-dra-driver=true")
    return tuple(flags)
