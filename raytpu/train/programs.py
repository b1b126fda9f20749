"""Programs compiled through the context: ahead of time, timed, and found again in the compile cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import jax

from raytpu.errors import SpecError
from raytpu.record import EventLog, ProgramCompiled
from raytpu.runtime import ProgramCache

Signature = tuple[Any, ...]


class Program:
    """A jitted function that compiles on its first call, for each distinct set of argument shapes.

    Calling it is calling ``jax.jit(function, **options)``. ``lower`` gives the traced program with its
    shardings, without running it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: dict[str, Any],
        *,
        cache: ProgramCache,
        log: EventLog,
        pause: Callable[[], AbstractContextManager[None]],
        waiting: Callable[[], AbstractContextManager[None]],
    ) -> None:
        static = sorted(set(options) & {"static_argnums", "static_argnames"})
        if static:
            raise SpecError(
                f"context.jit does not take {', '.join(static)}: a compiled step has array arguments only; "
                "bind constants with functools.partial"
            )
        self.name = _name(function)
        self._jitted = jax.jit(function, **options)
        self._compiler_options = options.get("compiler_options")
        self._cache, self._log, self._pause, self._waiting = cache, log, pause, waiting
        self._compiled: dict[Signature, Callable[..., Any]] = {}

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """The traced program for these arguments (arrays or ``jax.ShapeDtypeStruct``)."""
        return self._jitted.lower(*args, **kwargs)

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        """Compile for arguments like these (arrays, or ``jax.ShapeDtypeStruct`` with shardings); what the
        program will give for them, as ``jax.ShapeDtypeStruct`` with shardings."""
        compiled = self._compiled_for(*args, **kwargs)
        shapes = jax.eval_shape(self._jitted, *args, **kwargs)
        return jax.tree.map(
            lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding),
            shapes,
            compiled.output_shardings,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        compiled = self._compiled_for(*args, **kwargs)
        with self._waiting():  # some backends run a program with collectives in its call
            return compiled(*args, **kwargs)

    def _compiled_for(self, *args: Any, **kwargs: Any) -> Any:
        signature = _signature((args, kwargs))
        compiled = self._compiled.get(signature)
        if compiled is None:
            with self._pause():  # compiling is not part of a step's time
                program = self._cache.compile(self.lower(*args, **kwargs), self.name, self._compiler_options)
            self._log.write(ProgramCompiled(name=self.name, seconds=program.seconds, cache=program.cache))
            compiled = self._compiled[signature] = program.compiled
        return compiled


def fused(
    gradients: Callable[..., Any], apply: Callable[..., Any]
) -> Callable[[Any, Any], tuple[Any, Mapping[str, Any]]]:
    """Both functions as one program, for slices that are one world."""

    def train_step(state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        slopes, metrics = gradients(state, batch)
        state, more = apply(state, slopes)
        return state, {**metrics, **more}

    return train_step


def _name(function: Callable[..., Any]) -> str:
    inner = function
    while hasattr(inner, "func"):  # functools.partial
        inner = inner.func
    return getattr(inner, "__name__", type(inner).__name__)


def _signature(arguments: Any) -> Signature:
    """What a compiled program depends on: tree structure, shapes, dtypes, shardings."""
    leaves, structure = jax.tree.flatten(arguments)
    return (structure, *(_leaf_signature(leaf) for leaf in leaves))


def _leaf_signature(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return (leaf.shape, leaf.dtype, _layout(leaf.sharding))
    return (type(leaf), getattr(leaf, "shape", ()), getattr(leaf, "dtype", None))


def _layout(sharding: jax.sharding.Sharding) -> Any:
    """A sharding by its meaning: XLA spells the spec of an output otherwise than its input's was spelt."""
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return sharding
    axes = [axis if isinstance(axis, tuple) else (axis,) for axis in sharding.spec]
    while axes and axes[-1] in ((None,), ()):
        axes.pop()
    return (sharding.mesh, tuple(axes), sharding.memory_kind)
