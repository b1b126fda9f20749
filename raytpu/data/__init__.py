"""Batches with a position: text from storage to sharded arrays on the user's mesh.

``sources`` and ``documents`` find and read text, ``token_packing`` turns it into rows on Ray Data,
``token_rows`` gives random access to them, ``order`` says which row comes when, ``device_batches`` puts
global batches onto a mesh, ``stream_state`` is the position that a checkpoint keeps. Importing this loads
neither Ray nor JAX.
"""

from __future__ import annotations

from raytpu.data.batch_assembly import PartedBatch as PartedBatch
from raytpu.data.device_batches import BatchStream as BatchStream
from raytpu.data.documents import check_source as check_source
from raytpu.data.order import rows_at as rows_at
from raytpu.data.order import rows_for_step as rows_for_step
from raytpu.data.stream_state import RowsFingerprint as RowsFingerprint
from raytpu.data.stream_state import StreamPosition as StreamPosition
from raytpu.data.token_packing import prepare_text as prepare_text
from raytpu.data.token_rows import TokenRows as TokenRows

__all__ = [
    "BatchStream",
    "PartedBatch",
    "RowsFingerprint",
    "StreamPosition",
    "TokenRows",
    "check_source",
    "prepare_text",
    "rows_at",
    "rows_for_step",
]
