"""What a host process can do before it knows its place: import, without touching a device."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from raytpu.errors import EntrypointError
from raytpu.train.entrypoint import load_entrypoint

LOWEST_PRIORITY = 19
"""Of Linux: what trains on the same cores goes first."""

_POLL_S = 0.02


def import_jax(*, with_orbax: bool) -> None:
    """JAX, and what nearly every loop imports on top: 2 s of CPU, better spent before it is waited for."""
    import flax.nnx  # noqa: F401
    import optax  # noqa: F401

    import raytpu.runtime
    import raytpu.train.context

    # Orbax tells every step of a save at level INFO, in which a user's own lines drown.
    logging.getLogger("absl").setLevel(logging.WARNING)
    if with_orbax:
        import raytpu.checkpoint.orbax_store  # noqa: F401


def extend_path(folders: Iterable[str]) -> None:
    """Let modules be found in ``folders`` too."""
    sys.path.extend(folder for folder in folders if folder not in sys.path)


class WarmUp:
    """Imports in a thread of the lowest priority; on Linux a priority is a thread's own.

    A module of the user's that cannot be imported is told of by ``load``, when an attempt needs it.

    Args:
        entrypoint: the train function, or ``None`` when it travels whole.
        with_orbax: whether the run saves.
        python_path: folders where modules are looked for too.
    """

    def __init__(self, entrypoint: str | None, with_orbax: bool, python_path: tuple[str, ...]) -> None:
        self._entrypoint, self._with_orbax, self._python_path = entrypoint, with_orbax, python_path
        self._thread = threading.Thread(target=self._import, name="raytpu-warm-up", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Until all is imported. Its priority does no harm then: nothing trains on the host."""
        self._thread.join()

    def _import(self) -> None:
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        extend_path(self._python_path)
        import_jax(with_orbax=self._with_orbax)
        if self._entrypoint is not None:
            with contextlib.suppress(EntrypointError):
                load_entrypoint(self._entrypoint)


def await_gone(pid: int, deadline_s: float) -> bool:
    """Whether process ``pid`` of this machine has ended within ``deadline_s``; a zombie holds nothing."""
    until = time.monotonic() + deadline_s
    while _is_there(pid):
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_S)
    return True


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # gone meanwhile, or a system without /proc
        return sys.platform != "linux"
