"""JAX on one host: start the process the plan assigns, check who it is, lay out the mesh, keep programs."""

from __future__ import annotations

from raytpu.runtime.device_mesh import device_mesh as device_mesh
from raytpu.runtime.device_mesh import slice_of_process as slice_of_process
from raytpu.runtime.process import ProcessReport as ProcessReport
from raytpu.runtime.process import start_process as start_process
from raytpu.runtime.process import stop_process as stop_process

from raytpu.runtime.compile_cache import ProgramCache as ProgramCache

__all__ = ["ProcessReport", "device_mesh", "slice_of_process", "start_process", "stop_process"]
