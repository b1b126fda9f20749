"""A pod of the stand-in: a Ray node in a process of its own. ``python -m tests.kuberay.pod PLAN_JSON``."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

from raytpu.cluster import ray_node
from raytpu.cluster.simulation_plan import NodeOptions, NodePlan


def main() -> None:
    fields = json.loads(sys.argv[1])
    plan = NodePlan(**{**fields, "options": NodeOptions(**fields["options"])})
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    os.makedirs(plan.directory)
    os.environ.update(plan.environment)
    node = ray_node.RayNode(plan)
    print(json.dumps({"gcs_address": node.gcs_address}), flush=True)
    signal.pause()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.25)
    os._exit(1)  # its raylet has a parent-death signal


if __name__ == "__main__":
    main()
