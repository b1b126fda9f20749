"""Valid inputs for plans; a test changes one thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raytpu.plan import HostState, SliceState
from raytpu.spec import Mesh, Slices, Workload, parse_workload

WORKLOAD = """\
name: stdlib-gpt
slices: {generation: v6e, topology: 2x4, chips_per_host: 4, count: 2}
train:
  entrypoint: raytpu.recipes.pretrain:train
  config: {model: gpt-nano, steps: 200, global_batch: 32, sequence_length: 128, seed: 0}
  mesh: {dcn: {replica: 2}, ici: {fsdp: 8}}
data: {train: {source: python-stdlib, tokenizer: bytes}}
checkpoint: {path: ~/raytpu-runs, every_steps: 50, keep: 3}
"""


def workload(*overrides: str) -> Workload:
    return parse_workload(WORKLOAD, overrides=overrides)


def slices(count: int = 1, **changes: Any) -> Slices:
    """By default v6e 2x4 as two hosts of four chips."""
    values: dict[str, Any] = {"generation": "v6e", "topology": "2x4", "chips_per_host": 4, "count": count}
    return Slices(**(values | changes))


def mesh(ici: dict[str, int], dcn: dict[str, int] | None = None, **changes: Any) -> Mesh:
    return Mesh(ici=ici, dcn=dcn or {}, **changes)


def host(worker_id: int | None, **changes: Any) -> HostState:
    plain = HostState(
        worker_id=worker_id,
        node_id=f"node-{worker_id}",
        address=f"10.0.0.{worker_id}",
        alive=True,
        chips=4,
        chips_free=4,
    )
    return replace(plain, **changes)


def slice_state(
    name: str = "slice-0",
    hosts: int = 2,
    host_states: tuple[HostState, ...] | None = None,
    **changes: Any,
) -> SliceState:
    """By default a whole, idle v6e 2x4 slice of two hosts, on real hardware."""
    if host_states is None:
        host_states = tuple(host(worker_id) for worker_id in range(hosts))
    plain = SliceState(
        name=name, generation="v6e", topology="2x4", chips_per_host=4, hosts=host_states, simulated=False
    )
    return replace(plain, **changes)
