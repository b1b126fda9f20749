"""Values exchanged between the processes of a gang, without its devices and with a deadline.

Over the key-value store of JAX's coordination service, which every process of a gang is joined to.
Collectives on devices would do for the restore, but not in the background of a save: there they would mix
with those of the train step. The store's client is private to JAX (0.10.2); Orbax's barriers use it as well.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import jax
from jax._src.distributed import global_state

from raytpu.errors import DeadlineExceeded, StorageError

GRACE_S = 5.0
"""How much longer than process 0 the others wait: they do not begin at the same moment. By feel."""

_names = itertools.count()


class Agreement:
    """A series of exchanges. Collective: every process makes it, and every exchange, in the same order.

    One thread at a time may use it. Values are JSON.
    """

    def __init__(self, deadline_s: float) -> None:
        """``deadline_s`` bounds how long one exchange waits for the process that is last."""
        self._deadline_s = deadline_s
        self._name = f"raytpu/agreement-{next(_names)}"
        self._numbers = itertools.count()
        self._old: list[str] = []

    def all_of(self, what: str, mine: Any) -> list[Any]:
        """The value of every process, in their order, on every process.

        Raises:
            DeadlineExceeded: naming ``what`` was waited for and who was late.
        """
        count, me = jax.process_count(), jax.process_index()
        if count == 1:
            return [mine]
        key = f"{self._name}/{next(self._numbers)}"
        if me != 0:
            self._tell(f"{key}/{me}", mine)
            values: list[Any] = self._hear(
                f"{key}/all", what, 0, time.monotonic() + self._deadline_s + GRACE_S
            )
            return values
        end = time.monotonic() + self._deadline_s
        values = [mine, *(self._hear(f"{key}/{other}", what, other, end) for other in range(1, count))]
        self._forget(key, count)
        self._tell(f"{key}/all", values)
        return values

    def of_first(self, what: str, work: Callable[[], Any]) -> Any:
        """What ``work`` gives on process 0, on every process; it is called nowhere else.

        Raises:
            StorageError: ``work`` raised it; then on every process.
            DeadlineExceeded: as ``all_of``.
        """
        mine = None
        if jax.process_index() == 0:
            try:
                mine = {"value": work()}
            except StorageError as error:
                mine = {"error": str(error)}
        first = self.all_of(what, mine)[0]
        if "error" in first:
            raise StorageError(first["error"])
        return first["value"]

    def _tell(self, key: str, value: Any) -> None:
        _client().key_value_set(key, json.dumps(value))

    def _hear(self, key: str, what: str, process: int, end: float) -> Any:
        left_ms = max(1, round(1000 * (end - time.monotonic())))
        try:
            return json.loads(_client().blocking_key_value_get(key, left_ms))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            raise DeadlineExceeded(what, self._deadline_s, [f"process {process}"]) from error

    def _forget(self, key: str, count: int) -> None:
        """Everybody has taken part in this exchange, so everybody has read the one before."""
        for old in self._old:
            _client().key_value_delete(old)
        self._old = [f"{key}/all", *(f"{key}/{other}" for other in range(1, count))]


def _client() -> Any:
    assert global_state.client is not None, "several processes, and JAX's coordination service is not joined"
    return global_state.client
