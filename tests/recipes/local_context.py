"""A train context of one process: the recipe's protocol on local devices and real text."""

from __future__ import annotations

import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from raytpu.models import BytesTokenizer
from raytpu.train.programs import fused


def stdlib_rows(sequence_length: int, limit_bytes: int = 3_000_000) -> np.ndarray:
    """The interpreter's own sources, packed: int32 ``[rows, sequence_length + 1]``, shuffled."""
    tokenizer = BytesTokenizer()
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    np.random.default_rng(0).shuffle(files)
    parts: list[np.ndarray] = []
    while files and sum(map(len, parts)) < limit_bytes:
        parts += [tokenizer.encode(files.pop().read_bytes()), np.array([tokenizer.separator], np.int32)]
    stream = np.concatenate(parts)
    starts = np.arange((len(stream) - 1) // sequence_length) * sequence_length
    return stream[starts[:, None] + np.arange(sequence_length + 1)]


class LocalContext:
    """Keeps what the loop reports in lists. ``saved`` holds the states given to ``report`` at ``save_at``."""

    process_index, process_count = 0, 1

    def __init__(
        self,
        mesh: Mesh,
        batch_axes: tuple[str, ...],
        rows: Mapping[str, np.ndarray],
        *,
        global_batch: int,
        start: tuple[int, Any] | None = None,
        save_at: int | None = None,
    ) -> None:
        self.mesh, self._rows, self._global_batch = mesh, rows, global_batch
        self.batch_sharding = NamedSharding(mesh, PartitionSpec(batch_axes))
        self._start, self._save_at = start, save_at
        self.start_step = 0
        self.losses: list[float] = []
        self.metrics: list[dict[str, float]] = []
        self.seconds: list[float] = []
        self.evaluations: list[tuple[int, dict[str, float]]] = []
        self.samples: list[str] = []
        self.saved: Any = None
        self._stepped_at = time.perf_counter()

    def jit(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        return jax.jit(function, **options)

    def step(
        self,
        gradients: Callable[..., Any],
        apply: Callable[..., Any],
        parameters: Callable[[Any], Any] | None = None,
    ) -> Callable[..., Any]:
        del parameters  # of replicas only
        return self.jit(fused(gradients, apply), donate_argnums=0)

    def restore(self, state: Any) -> Any:
        if self._start is None:
            return state
        self.start_step, host_state = self._start
        return jax.tree.map(lambda new, old: jax.device_put(old, new.sharding), state, host_state)

    def has_data(self, name: str) -> bool:
        return name in self._rows

    def batches(self, name: str = "train") -> Iterator[dict[str, jax.Array]]:
        """Row order is a function of the step alone, as in a real run."""
        rows, step = self._rows[name], self.start_step if name == "train" else 0
        while True:
            chosen = np.random.default_rng(step).choice(len(rows), self._global_batch, replace=False)
            picked = rows[chosen]
            yield {
                "tokens": jax.device_put(picked[:, :-1], self.batch_sharding),
                "targets": jax.device_put(picked[:, 1:], self.batch_sharding),
            }
            step += 1

    def report(self, step: int, metrics: Mapping[str, Any], state: Any = None) -> None:
        assert step == self.start_step + len(self.losses) + 1
        self.metrics.append({name: float(value) for name, value in metrics.items()})
        self.losses.append(self.metrics[-1]["loss"])
        if step == self._save_at:
            self.saved = (step, jax.tree.map(np.asarray, state))
        self.seconds.append(time.perf_counter() - self._stepped_at)
        self._stepped_at = time.perf_counter()

    @contextmanager
    def evaluating(self, step: int) -> Iterator[dict[str, Any]]:
        metrics: dict[str, Any] = {}
        yield metrics
        self.evaluations.append((step, {name: float(value) for name, value in metrics.items()}))

    def record_sample(self, text: str) -> None:
        self.samples.append(text)
