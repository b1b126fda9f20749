"""What a simulation is made of: plain data that travels from the owner to the keeper as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from raytpu.errors import WrongRequest
from raytpu.plan import SIMULATED_LABEL

HOST_MARKER = "RAYTPU_SIM_HOST"
"""Environment variable that every process of a simulated host carries: ``<simulation>/<slice>/<k>``."""

LEAST_OBJECT_STORE_BYTES = 75 * 1024 * 1024  # OBJECT_STORE_MINIMUM_MEMORY_BYTES of Ray 2.60

HEAD = "head"
"""Name under which the head node appears where hosts are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePlan:
    """One slice to simulate, with everything that Ray and JAX are told about it."""

    name: str
    """Empty: the keeper gives the next free ``slice-<n>``."""
    generation: str
    topology: str
    chips_per_host: int
    hosts: int
    devices_per_host: int
    pod_type: str
    """What Ray calls the slice, such as ``v5litepod-16``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What every node of a simulation gets."""

    head_cpus: int = 2
    host_cpus: int = 2
    object_store_bytes: int = 200_000_000
    """Of each node. Plasma maps pages as they are used, so this is a limit and not a cost."""
    dashboard: bool = False
    """Ray's dashboard on the head and Ray's real dashboard agent on every host."""
    forward_logs: bool = False
    """Ray's log monitor on every node: what tasks print appears in the driver."""
    warm: tuple[str, ...] | bool = ()
    """Modules that one worker of each host imports before any task arrives; ``True`` is JAX.

    Only the first task or actor of a host that asks for no ``runtime_env`` of its own gets that worker. Every
    worker that is started later imports the modules first as well.
    """
    environment: Mapping[str, str] = field(default_factory=dict)
    """Set on every node. A simulated host is another machine: of the owner's own environment it gets nothing
    that begins with RAY_, JAX_, XLA_, TPU_, LIBTPU_ or MEGASCALE_."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {value}; expected {least} or more"
            for name, value, least in (
                ("head_cpus", self.head_cpus, 0),
                ("host_cpus", self.host_cpus, 1),
                ("object_store_bytes", self.object_store_bytes, LEAST_OBJECT_STORE_BYTES),
            )
            if value < least
        ]
        problems += [
            f"environment sets {name}, which makes the simulation what it is"
            for name in self.environment
            if name in RESERVED_VARIABLES
        ]
        if problems:
            raise WrongRequest("simulated nodes: " + "; ".join(problems))

    @property
    def warm_modules(self) -> tuple[str, ...]:
        if isinstance(self.warm, bool):
            return ("jax",) if self.warm else ()
        return self.warm


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationPlan:
    """Everything that the keeper of one simulation is told when it starts."""

    sim_id: str
    name: str | None
    directory: str
    """Made by the keeper, removed by the keeper: logs, sockets and Ray's temporary files."""
    record_path: str | None
    """Where a named simulation is written down, so that other processes find it."""
    detached: bool
    """Lives on without its owner."""
    slices: tuple[SlicePlan, ...]
    options: NodeOptions = field(default_factory=NodeOptions)

    @property
    def socket_path(self) -> str:
        """Where the keeper listens for commands."""
        return f"{self.directory}/keeper.sock"


def plan_to_json(plan: SimulationPlan) -> str:
    """One line of JSON."""
    return json.dumps(asdict(plan))


def plan_from_json(text: str) -> SimulationPlan:
    """The inverse of :func:`plan_to_json`."""
    fields = json.loads(text)
    options = fields.pop("options")
    if not isinstance(options["warm"], bool):
        options["warm"] = tuple(options["warm"])
    slices = tuple(SlicePlan(**each) for each in fields.pop("slices"))
    return SimulationPlan(**fields, slices=slices, options=NodeOptions(**options))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One Ray node to start: the head or a simulated host."""

    label: str
    """``head`` or ``slice-0/2``."""
    address: str
    """Loopback address of its own."""
    directory: str
    marker: str
    environment: dict[str, str]
    resources: dict[str, float]
    labels: dict[str, str]
    cpus: int
    options: NodeOptions
    head_address: str | None
    """``ip:port`` of the cluster to join; ``None`` for the head."""


def head_plan(plan: SimulationPlan, address: str) -> NodePlan:
    """The head node: no chips, no slice."""
    marker = f"{plan.sim_id}/{HEAD}/0"
    return NodePlan(
        label=HEAD,
        address=address,
        directory=f"{plan.directory}/head",
        marker=marker,
        environment={**plan.options.environment, **_COMMON_ENVIRONMENT, HOST_MARKER: marker},
        resources={},
        labels={SIMULATED_LABEL: "true"},
        cpus=plan.options.head_cpus,
        options=plan.options,
        head_address=None,
    )


def host_plan(
    plan: SimulationPlan, of: SlicePlan, worker_id: int, *, address: str, serial: int, head_address: str
) -> NodePlan:
    """One host of a slice.

    ``serial`` tells a replacement from the host it replaces: each has a directory of its own.
    """
    marker = f"{plan.sim_id}/{of.name}/{worker_id}"
    return NodePlan(
        label=f"{of.name}/{worker_id}",
        address=address,
        directory=f"{plan.directory}/h{serial}",
        marker=marker,
        environment={
            **plan.options.environment,
            **_COMMON_ENVIRONMENT,
            **_slice_environment(of, worker_id),
            **_warm_environment(plan.options),
            "RAY_ADDRESS": head_address,
            HOST_MARKER: marker,
        },
        resources={"TPU": float(of.chips_per_host)},
        labels={SIMULATED_LABEL: "true"},
        cpus=plan.options.host_cpus,
        options=plan.options,
        head_address=head_address,
    )


INHERITED_PREFIX_KEPT = "RAY_AUTH_"
"""How this user's Ray authenticates: drivers have these settings too, and both sides must agree."""

INHERITED_PREFIXES_DROPPED = ("RAY_", "JAX_", "XLA_", "TPU_", "LIBTPU_", "MEGASCALE_", HOST_MARKER)
"""Variables of the owner that would speak of another cluster or of other hardware on a simulated host."""

_COMMON_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    # Ray retitles its workers, and the bundled setproctitle would overwrite the block that
    # /proc/<pid>/environ shows: without this the marker is gone and the worker is not found.
    "SPT_NOENV": "1",
    "RAY_USAGE_STATS_ENABLED": "0",  # a simulation is nobody's usage, and it must work without a network
}


def _slice_environment(of: SlicePlan, worker_id: int) -> dict[str, str]:
    # TPU_*: what GKE sets on a TPU pod and what ray/_private/accelerators/tpu.py (2.60) derives the
    # labels ray.io/tpu-* and the resources <slice>, TPU-<pod type>-head and accelerator_type:* from.
    return {
        "TPU_NAME": of.name,
        "TPU_WORKER_ID": str(worker_id),
        "TPU_ACCELERATOR_TYPE": of.pod_type,
        "TPU_TOPOLOGY": of.topology,
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        # Level 1: all hosts compile on this one machine. A train step of gpt-nano on 4 hosts and 2 cores was
        # there 2 s sooner of 17, with the same losses and step times.
        "XLA_FLAGS": (
            f"--xla_force_host_platform_device_count={of.devices_per_host} --xla_backend_optimization_level=1"
        ),
    }


def _warm_environment(options: NodeOptions) -> dict[str, str]:
    if not options.warm_modules:
        return {}
    # Settings of the raylet (src/ray/common/ray_config_def.h); it hands the modules to its workers.
    return {
        "RAY_enable_worker_prestart": "1",
        "RAY_preload_python_modules": ",".join(options.warm_modules),
    }


RESERVED_VARIABLES = frozenset(
    {
        HOST_MARKER,
        *_COMMON_ENVIRONMENT,
        "TPU_NAME",
        "TPU_WORKER_ID",
        "TPU_ACCELERATOR_TYPE",
        "TPU_TOPOLOGY",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION",
        "XLA_FLAGS",
        "RAY_ADDRESS",
    }
)
"""What the simulation itself sets."""
