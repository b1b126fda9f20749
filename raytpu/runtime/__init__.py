"""JAX on one host: start the process the plan assigns, check who it is, lay out the mesh, keep programs.

What compiles is loaded on first use: ``start_process`` has to set the environment before JAX is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raytpu.runtime.device_mesh import device_mesh as device_mesh
from raytpu.runtime.device_mesh import slice_of_process as slice_of_process
from raytpu.runtime.identity import JaxFacts as JaxFacts
from raytpu.runtime.process import ProcessReport as ProcessReport
from raytpu.runtime.process import start_process as start_process
from raytpu.runtime.process import stop_process as stop_process

if TYPE_CHECKING:
    from raytpu.runtime.compile_cache import CompileCounter as CompileCounter
    from raytpu.runtime.compile_cache import CompiledProgram as CompiledProgram
    from raytpu.runtime.compile_cache import ProgramCache as ProgramCache
    from raytpu.runtime.compile_cache import enable_compile_cache as enable_compile_cache

__all__ = [
    "CompileCounter",
    "CompiledProgram",
    "JaxFacts",
    "ProcessReport",
    "ProgramCache",
    "device_mesh",
    "enable_compile_cache",
    "slice_of_process",
    "start_process",
    "stop_process",
]

_COMPILING = {"CompileCounter", "CompiledProgram", "ProgramCache", "enable_compile_cache"}


def __getattr__(name: str) -> Any:
    if name in _COMPILING:
        from raytpu.runtime import compile_cache

        return getattr(compile_cache, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
