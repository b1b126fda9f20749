"""Compiled programs that outlive the process: JAX's own cache, and a store of ours where that cannot help.

JAX's persistent cache is written by process 0 alone (``jax/_src/compiler.py``, ``_cache_write``). On TPUs the
other processes read what it wrote. On CPU they never can: the key holds a fingerprint of the topology that
differs from process to process (``_hash_accelerator_config``; jax 0.10.2, seen). So on CPU, where simulated
slices run, ``ProgramCache`` keeps one executable per process.

A cache directory is code: whoever can write to it runs programs in your processes.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import re
import threading
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import fsspec
import jax
import jaxlib.version
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from jax import monitoring
from jax.experimental import serialize_executable

_HIT = "/jax/compilation_cache/cache_hits"
_REQUEST = "/jax/compilation_cache/compile_requests_use_cache"
_COMPILE_SECONDS = "/jax/core/compile/backend_compile_duration"

_MAGIC = b"raytpu program 1\n"

_CALLBACK = re.compile(r"custom_call @\w*callback|is_host_transfer = true")
"""Python functions of this process inside a program: ``jax.debug.print``, ``pure_callback``. On CPU they are
addresses, which mean nothing in another process."""


def enable_compile_cache(directory: str) -> None:
    """Let JAX keep compiled programs in ``directory`` (a path or URL), small and quick ones too.

    Only takes effect before the first compilation of the process.
    """
    jax.config.update("jax_compilation_cache_dir", directory)
    # The defaults, 1 s and a minimum size, leave out most programs of a start-up.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class CompileCounter:
    """What JAX compiled in this process since the counter was made, by JAX's public monitoring events."""

    def __init__(self) -> None:
        self.requests = 0
        """Programs looked up in JAX's persistent cache."""
        self.hits = 0
        """Those found there."""
        self.compile_s = 0.0
        """Seconds spent in the compiler or in reading from the cache."""
        monitoring.register_event_listener(self._count)
        monitoring.register_event_duration_secs_listener(self._add)

    @property
    def misses(self) -> int:
        return self.requests - self.hits

    def close(self) -> None:
        """Stop counting."""
        monitoring.unregister_event_listener(self._count)
        monitoring.unregister_event_duration_listener(self._add)

    def _count(self, event: str, **_: Any) -> None:
        self.requests += event == _REQUEST
        self.hits += event == _HIT

    def _add(self, event: str, duration_secs: float, **_: Any) -> None:
        if event == _COMPILE_SECONDS:
            self.compile_s += duration_secs


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProgram:
    """A program that is ready to be called."""

    name: str
    compiled: jax.stages.Compiled
    seconds: float
    """From the lowered program to the loaded executable."""
    cache: Literal["hit", "miss", "off"]
    """off: this program is not kept; ``warnings`` says why."""
    warnings: tuple[str, ...] = field(default=())
    """What went wrong with the cache. The program is right all the same."""


class ProgramCache:
    """Compiles lowered programs, or loads what this process compiled in an earlier life.

    Local: each process has entries of its own and waits for nobody. The compiled programs are collective, as
    always.
    """

    def __init__(self, directory: str | None, mesh: jax.sharding.Mesh) -> None:
        """
        Args:
            directory: a path or URL, the one given to ``enable_compile_cache``; ``None`` turns the cache off.
            mesh: the devices that programs run on, in their order.
        """
        self._directory, self._mesh = directory, mesh
        # Where JAX's own cache serves every process, a second copy per process would only cost storage.
        self._stores = directory is not None and jax.default_backend() == "cpu"

    def compile(
        self, lowered: jax.stages.Lowered, name: str, compiler_options: Mapping[str, Any] | None = None
    ) -> CompiledProgram:
        """The executable of ``lowered``, which must be for the devices of the cache's mesh.

        An entry that is damaged or cannot be read or written is a miss and a warning, never an error.

        Args:
            compiler_options: also those given to ``jax.jit``: they are not part of ``lowered``'s text.
        """
        started = time.monotonic()
        text = lowered.as_text()
        entry, warnings = None, []
        if self._stores and _CALLBACK.search(text):
            warnings.append(f"{name} calls back into Python and is not kept")
        elif self._stores:
            entry = _Entry(str(self._directory), f"{_file_name(name)}-{self._key(text, compiler_options)}")
            try:
                compiled = self._load(entry, lowered)
            except _Damaged as damaged:
                warnings.append(f"{name}: {damaged}; compiled again")
            else:
                if compiled is not None:
                    return self._program(name, compiled, started, "hit", warnings)
        with _jax_cache_hits() as hits:
            compiled = lowered.compile(dict(compiler_options) if compiler_options else None)
        if hits:
            # Must not be stored: XLA:CPU serialises a loaded executable without error, but incompletely; the
            # copy fails when it runs, "Function … not found" (jaxlib 0.10.2, seen).
            return self._program(name, compiled, started, "hit", warnings)
        unkept = [] if entry is None else _store(entry, name, compiled)
        warnings += unkept
        kept = (entry is not None and not unkept) if self._stores else self._directory is not None
        return self._program(name, compiled, started, "miss" if kept else "off", warnings)

    def _program(
        self,
        name: str,
        compiled: jax.stages.Compiled,
        started: float,
        cache: Literal["hit", "miss", "off"],
        warnings: list[str],
    ) -> CompiledProgram:
        return CompiledProgram(
            name=name,
            compiled=compiled,
            seconds=time.monotonic() - started,
            cache=cache,
            warnings=tuple(warnings),
        )

    def _load(self, entry: _Entry, lowered: jax.stages.Lowered) -> jax.stages.Compiled | None:
        payload = entry.read()
        if payload is None:
            return None
        try:
            return serialize_executable.deserialize_and_load(
                payload,
                # From the program, not from the entry: custom nodes (NNX, optax) need no pickling.
                lowered.in_tree,
                lowered.out_tree,
                execution_devices=tuple(self._mesh.devices.flat),
            )
        except (RuntimeError, ValueError, TypeError, KeyError, EOFError, pickle.UnpicklingError) as error:
            entry.discard()
            raise _Damaged(f"cached program cannot be loaded: {error}") from error

    def _key(self, text: str, compiler_options: Mapping[str, Any] | None) -> str:
        """Everything that decides what the compiler makes for this process."""
        device = self._mesh.devices.flat[0]
        parts = (
            text,
            jax.__version__,
            jaxlib.version.__version__,
            device.client.platform_version,
            *(os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")),
            repr(sorted((compiler_options or {}).items())),
            repr(dict(self._mesh.shape)),
            repr([(d.id, d.process_index, d.device_kind) for d in self._mesh.devices.flat]),
            repr((jax.process_index(), jax.process_count())),
            _processor(),
        )
        digest = hashlib.sha256()
        for part in parts:
            digest.update(f"{len(part)}:{part}".encode())
        return f"{digest.hexdigest()[:40]}.process{jax.process_index()}"


class _Damaged(Exception):
    """An entry that is there and cannot be used."""


class _Entry:
    """One file of the store: magic, sha256 of the rest, compressed executable."""

    def __init__(self, directory: str, file_name: str) -> None:
        self._storage, root = url_to_fs(directory)
        self._root = f"{root.rstrip('/')}/programs"
        self._path = f"{self._root}/{file_name}"

    def read(self) -> bytes | None:
        """The executable; ``None`` when there is no entry."""
        try:
            content = self._storage.cat_file(self._path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _Damaged(f"{self._path} cannot be read: {error}") from error
        head = len(_MAGIC)
        digest, body = content[head : head + 32], content[head + 32 :]
        if content[:head] != _MAGIC or hashlib.sha256(body).digest() != digest:
            self.discard()
            raise _Damaged(f"{self._path} is damaged")
        return zlib.decompress(body)

    def write(self, payload: bytes) -> None:
        body = zlib.compress(payload, 1)
        content = _MAGIC + hashlib.sha256(body).digest() + body
        if not isinstance(self._storage, LocalFileSystem):
            self._storage.pipe_file(self._path, content)  # object stores show an object whole or not at all
            return
        os.makedirs(self._root, exist_ok=True)
        unfinished = f"{self._path}.{uuid.uuid4().hex}.tmp"
        with fsspec.open(unfinished, "wb") as file:
            file.write(content)
        os.replace(unfinished, self._path)

    def discard(self) -> None:
        try:
            self._storage.rm_file(self._path)
        except OSError:
            return  # what cannot be read and not be removed stays a miss, with a warning each time


def _store(entry: _Entry, name: str, compiled: jax.stages.Compiled) -> list[str]:
    try:
        payload, _, _ = serialize_executable.serialize(compiled)
        entry.write(payload)
    except (OSError, RuntimeError, ValueError, TypeError, NotImplementedError, pickle.PicklingError) as error:
        return [f"{name} is not kept: {error}"]
    return []


@contextmanager
def _jax_cache_hits() -> Iterator[list[str]]:
    """Events of JAX's own cache serving a program to this thread."""
    hits: list[str] = []
    here = threading.get_ident()

    def listen(event: str, **_: Any) -> None:
        if event == _HIT and threading.get_ident() == here:
            hits.append(event)

    monitoring.register_event_listener(listen)
    try:
        yield hits
    finally:
        monitoring.unregister_event_listener(listen)


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:60]


def _processor() -> str:
    """Instruction sets of this machine: CPU executables hold machine code for exactly these."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = ""
    return f"{platform.machine()} {' '.join(sorted(flags.split()))}"
