"""Text to packed rows of tokens: Ray Data tokenises pieces of the source, offsets join them into one stream.

A stream is the tokens of its documents in source order, each document followed by the tokenizer's
separator; documents without tokens leave nothing. Each task writes the tokens of its piece as one row of a
table per stream ("train", and "eval" for documents that are held back). The driver learns only counts and
digests; the tokens stay in the object store, where ``TokenRows`` reads them in place. So the stream is a
function of the source alone: no block border, task order or number of tasks can change it.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from raytpu.data.content import Content
from raytpu.data.documents import Part, documents_in, pieces_of
from raytpu.data.sources import source_error, source_files
from raytpu.data.token_rows import TokenBlock, TokenRows
from raytpu.errors import DataError
from raytpu.models.tokenizers import BytesTokenizer

if TYPE_CHECKING:
    import pyarrow as pa

    from raytpu.spec import TextData

# 16 MiB of text: the standard library is one task, since each further worker process costs 1.5 s of CPU for
# importing ray.data, while a MB of text costs about 0.02 s.
PIECE_BYTES = 16 << 20

_STREAMS = ("train", "eval")

# Ray Data's context and loggers belong to the process: two threads that set and reset them would leave one's
# settings behind.
_ray_data_settings = threading.Lock()


def prepare_text(
    data: TextData, *, sequence_length: int, global_batch: int = 1, piece_bytes: int = PIECE_BYTES
) -> dict[str, TokenRows]:
    """Read, tokenise and pack a source on the connected Ray cluster.

    Returns ``{"train": …}``, and ``"eval"`` when ``holdout`` is above 0. The rows live as long as this
    process. May run in threads, where Ray Data works for one at a time.

    Args:
        data: what to read.
        sequence_length: tokens that a row feeds to the model; a row has one more.
        global_batch: rows of one batch; every stream must have that many.
        piece_bytes: text per task; changes the speed only.

    Raises:
        DataError: what cannot be read, with all problems found, or too little text for one batch.
    """
    import ray

    if not ray.is_initialized():
        raise DataError(
            "preparing data needs a Ray cluster; connect with ray.init() or raytpu.simulate() first"
        )
    pieces = pieces_of(data, source_files(data), piece_bytes)
    refs = _tokenise_on_ray(data, pieces)
    # Runs where the block lies, so that the tokens do not travel to the driver. With a CPU each, so that
    # Ray starts no more workers than it has CPUs.
    facts_of = ray.remote(num_cpus=1)(block_facts)
    per_block = ray.get([facts_of.remote(ref) for ref in refs])
    facts = [fact | {"ref": ref} for ref, rows in zip(refs, per_block, strict=True) for fact in rows]
    facts.sort(key=lambda fact: fact["piece"])
    if problems := [fact["problem"] for fact in facts if fact["problem"]]:
        raise source_error(data, problems)
    streams = {
        stream: _join([fact for fact in facts if fact["stream"] == stream], sequence_length)
        for stream in (_STREAMS if data.holdout else _STREAMS[:1])
    }
    _require_a_batch(data, streams, global_batch)
    return streams


def tokenise(data: TextData, piece: int, parts: Sequence[Part]) -> pa.Table:
    """The tokens of one piece: a row for each stream, and a row for each part that cannot be read."""
    import pyarrow as pa

    tokenizer = _tokenizer(data)
    documents: dict[str, list[np.ndarray]] = {stream: [] for stream in _STREAMS}
    problems = []
    for part in parts:
        try:
            for name, text in documents_in(data, part):
                tokens = tokenizer.encode(text)
                if tokens.size:
                    documents[stream_of(name, data.holdout)].append(tokens)
        except DataError as error:
            problems.append(str(error))
    kind = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32
    rows = [(stream, "", found) for stream, found in documents.items() if found]
    rows += [("", problem, []) for problem in problems]
    packed = [_pack(found, tokenizer.separator, kind) for _, _, found in rows]
    ends = np.cumsum([0, *(tokens.size for tokens in packed)], dtype=np.int64)
    values = np.concatenate([np.empty(0, kind), *packed])
    return pa.table(
        {
            "piece": pa.array([piece] * len(rows), pa.int64()),
            "stream": pa.array([stream for stream, _, _ in rows], pa.string()),
            "problem": pa.array([problem for _, problem, _ in rows], pa.string()),
            "content": pa.array([str(Content.of(found)) for _, _, found in rows], pa.string()),
            "tokens": pa.LargeListArray.from_arrays(pa.array(ends), pa.array(values)),
        }
    )


def stream_of(document: str, holdout: float) -> str:
    """``eval`` for the fraction ``holdout`` of document names, by a hash that never changes."""
    digest = hashlib.blake2b(document.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return "eval" if int.from_bytes(digest, "little") < holdout * 2.0**64 else "train"


def block_facts(table: pa.Table) -> list[dict[str, Any]]:
    """What the driver needs to know of a block: one dict for each row, without the tokens."""
    import pyarrow.compute as pc

    facts = table.select(["piece", "stream", "problem", "content"]).to_pylist()
    counts = pc.list_value_length(table["tokens"]).to_pylist()
    return [
        fact | {"token_count": count, "table_row": row}
        for row, (fact, count) in enumerate(zip(facts, counts, strict=True))
    ]


def _pack(documents: Sequence[np.ndarray], separator: int, kind: type[np.generic]) -> np.ndarray:
    """The documents end to end, each followed by the separator."""
    packed = np.full(sum(tokens.size + 1 for tokens in documents), separator, dtype=kind)
    at = 0
    for tokens in documents:
        packed[at : at + tokens.size] = tokens
        at += tokens.size + 1
    return packed


def _tokenizer(data: TextData) -> BytesTokenizer:
    match data.tokenizer:
        case "bytes":
            return BytesTokenizer()


def _tokenise_on_ray(data: TextData, pieces: Sequence[Sequence[Part]]) -> list[Any]:
    """References to the blocks that ``tokenise`` makes of all pieces."""
    import ray
    from ray.data import DataContext

    context = DataContext.get_current().copy()
    context.enable_progress_bars = False
    items = [{"piece": number, "parts": pickle.dumps(parts)} for number, parts in enumerate(pieces)]
    with _ray_data_settings, _quiet_ray_data(), DataContext.current(context):
        blocks = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
            _tokenise_items,
            batch_size=None,
            batch_format="pyarrow",
            fn_kwargs={"data": data},
            label_selector=_close_to_driver(len(items)),
        )
        return list(blocks.to_arrow_refs())


def _close_to_driver(tasks: int) -> dict[str, str] | None:
    """Labels that keep the tasks on the driver's node, if it has a CPU for each; else any node may run them.

    Ray Data spreads even one task over all nodes, where it starts a new worker that imports ray.data; here
    Ray has started workers already, and the blocks do not die with a host of a slice.
    """
    import ray

    node_id = ray.get_runtime_context().get_node_id()
    cpus = next(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["NodeID"] == node_id)
    return {"ray.io/node-id": node_id} if tasks <= cpus else None


def _tokenise_items(items: pa.Table, data: TextData) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables(
        tokenise(data, item["piece"], pickle.loads(item["parts"])) for item in items.to_pylist()
    )


@contextmanager
def _quiet_ray_data() -> Iterator[None]:
    """Keep Ray Data's plan and the notice about its missing progress bar off the console; warnings stay."""
    levels = {"ray.data": logging.WARNING, "ray.data._internal.progress": logging.ERROR}
    loggers = {logging.getLogger(name): level for name, level in levels.items()}
    before = {logger: logger.level for logger in loggers}
    for logger, level in loggers.items():
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)


def _join(facts: Sequence[dict[str, Any]], sequence_length: int) -> TokenRows:
    content = Content()
    for fact in facts:
        content = content.then(Content.parse(fact["content"]))
    blocks = [
        TokenBlock(token_count=fact["token_count"], source=fact["ref"], table_row=fact["table_row"])
        for fact in facts
    ]
    return TokenRows(blocks, sequence_length=sequence_length, content=str(content))


def _require_a_batch(data: TextData, streams: dict[str, TokenRows], global_batch: int) -> None:
    short = [
        f"stream {name} has {rows.token_count} tokens in {rows.row_count} rows of {rows.sequence_length}; "
        f"one batch needs {global_batch} rows: {hint}"
        for name, rows in streams.items()
        if rows.row_count < max(1, global_batch)
        for hint in [
            "raise holdout, or give more text"
            if name == "eval"
            else "give more text, or lower sequence_length or global_batch"
        ]
    ]
    if short:
        raise source_error(data, short)
