"""Ready-made workloads on raytpu's public API: each module's ``train`` is an entrypoint."""

from __future__ import annotations
