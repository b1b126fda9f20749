"""The step of a train function, with its shardings, taken without running it.

The train function is called with a context of the same interface whose arrays have shapes and shardings but
no contents. Each program it calls is traced for its shapes alone; at its first ``report`` the step is known,
and the function is left. So whoever wants to compile the step for other devices, such as compile-only ones
of the real TPU compiler, gets the very step that a run would take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from raytpu.errors import EntrypointError
from raytpu.plan import MeshPlan
from raytpu.train.entrypoint import TrainFunction, bind
from raytpu.train.programs import fused


@dataclass(frozen=True, kw_only=True)
class CapturedStep:
    """The program that a run would call at every step."""

    name: str
    arguments: tuple[Any, ...]
    """Pytrees of ``jax.ShapeDtypeStruct``, with shardings on the mesh that was given."""
    jitted: Any

    def lower(self) -> jax.stages.Lowered:
        """Traced for its arguments; ``.compile()`` compiles it for the devices of the mesh."""
        return self.jitted.lower(*self.arguments)


def capture_step(
    function: TrainFunction,
    config: Mapping[str, Any],
    *,
    mesh: Mesh,
    plan: MeshPlan,
    streams: tuple[str, ...],
) -> CapturedStep:
    """The step of ``function`` on ``mesh``.

    Args:
        function: a train function that takes ``context``.
        config: its config; ``global_batch`` and ``sequence_length`` give the shape of a batch.
        mesh: may be of devices that can only compile.
        plan: names the batch axes of the mesh.
        streams: data streams that the function may ask for.

    Raises:
        EntrypointError: the function ended without a report, or computed with the contents of an array
            before its first one.
    """
    context = _CaptureContext(config, mesh, plan, streams)
    call = bind(function, config)
    try:
        call(context)
    except _Reported:
        pass
    except TypeError as error:  # jax.errors.ConcretizationTypeError is one too
        if "ShapeDtypeStruct" not in str(error) and not isinstance(error, jax.errors.ConcretizationTypeError):
            raise
        raise EntrypointError(
            f"{function.__qualname__} looks at the contents of an array before its first report: {error}"
        ) from error
    step = context.last_call
    if step is None:
        raise EntrypointError(f"{function.__qualname__} reported no step made by a program of context.jit")
    return step


class _Reported(BaseException):
    """Leaves the train function at its first report; no ``except Exception`` of the user's stops it."""


class _Program:
    def __init__(
        self, function: Callable[..., Any], options: dict[str, Any], context: _CaptureContext
    ) -> None:
        self._jitted = jax.jit(function, **options)
        self._out_shardings = options.get("out_shardings")
        self._name = getattr(function, "__name__", type(function).__name__)
        self._context = context

    def lower(self, *args: Any) -> jax.stages.Lowered:
        return self._jitted.lower(*args)

    def __call__(self, *args: Any) -> Any:
        self._context.last_call = CapturedStep(name=self._name, arguments=args, jitted=self._jitted)
        shapes = self._jitted.eval_shape(*args)
        if self._out_shardings is None:
            return shapes
        leaves, structure = jax.tree.flatten(shapes)
        shardings = jax.tree.leaves(
            jax.tree.broadcast(self._out_shardings, shapes, is_leaf=lambda leaf: leaf is None),
            is_leaf=lambda leaf: leaf is None,
        )
        placed = [
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
            for leaf, sharding in zip(leaves, shardings, strict=True)
        ]
        return jax.tree.unflatten(structure, placed)


class _CaptureContext:
    """``TrainContext`` without contents: the same names, the same arguments."""

    def __init__(
        self, config: Mapping[str, Any], mesh: Mesh, plan: MeshPlan, streams: tuple[str, ...]
    ) -> None:
        self.config, self.mesh = config, mesh
        self.start_step, self.process_index, self.process_count = 0, 0, 1
        self.batch_spec = PartitionSpec(tuple(plan.batch_axes))
        self.batch_sharding = NamedSharding(mesh, self.batch_spec)
        self.last_call: CapturedStep | None = None
        self._streams = streams

    def jit(self, function: Callable[..., Any], **options: Any) -> _Program:
        return _Program(function, options, self)

    def step(
        self,
        gradients: Callable[..., Any],
        apply: Callable[..., Any],
        parameters: Callable[[Any], Any] | None = None,
    ) -> _Program:
        del parameters  # of replicas only
        return self.jit(fused(gradients, apply), donate_argnums=0)

    def restore(self, state: Any) -> Any:
        return state

    def has_data(self, name: str) -> bool:
        return name in self._streams

    def batches(self, name: str = "train") -> Iterator[dict[str, jax.ShapeDtypeStruct]]:
        del name
        shape = (int(self.config["global_batch"]), int(self.config["sequence_length"]))
        rows = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=self.batch_sharding)
        while True:
            yield {"tokens": rows, "targets": rows}

    def report(self, *_: Any, **__: Any) -> None:
        raise _Reported

    @contextmanager
    def evaluating(self, step: int) -> Iterator[dict[str, Any]]:
        del step
        yield {}

    def record_sample(self, text: str) -> None:
        pass
