"""Turns a durable checkpoint into a good one: all processes read it back, process 0 writes the manifest.

Reading is shared out evenly by bytes, whoever wrote a file: one process that reads everything back would need
longer than the time between two saves as soon as there are many hosts (840 GB at 1 GiB/s: a quarter of an
hour; over 64 hosts: 13 s). What it proves is that the files can be read as they were listed after the commit,
not that they are on the platter: a local page cache may answer.
"""

from __future__ import annotations

from typing import Any

import jax

from raytpu.checkpoint.agreement import Agreement
from raytpu.checkpoint.manifest import FileFacts, read_facts, share_out, stored_sizes, write_manifest
from raytpu.errors import StorageError


def vouch_for(where: str, step: int, agreement: Agreement) -> int:
    """Read the checkpoint in ``where`` back and write its manifest; its bytes.

    Collective. Uses no devices, so it may run beside the train step.

    Raises:
        StorageError: a file cannot be read back, or is not as long as it was listed; on every process.
        DeadlineExceeded: a process did not do its part.
    """
    sizes: dict[str, int] = agreement.of_first(f"the files of step {step}", lambda: stored_sizes(where))
    share = share_out(sizes, jax.process_count())[jax.process_index()]
    try:
        facts = read_facts(where, share)
        mine: dict[str, Any] = {
            name: each if isinstance(each, str) else [each.size, each.crc32] for name, each in facts.items()
        }
    except StorageError as error:
        mine = dict.fromkeys(share, str(error))
    read: dict[str, Any] = {}
    for part in agreement.all_of(f"checksums of step {step}", mine):
        read |= part
    wrong = [
        f"{name} {each}" if isinstance(each, str) else f"{name} has {each[0]} bytes, not {sizes[name]}"
        for name, each in sorted(read.items())
        if isinstance(each, str) or each[0] != sizes[name]
    ]
    if wrong:
        raise StorageError(f"{where} cannot be read back: {'; '.join(wrong)}")

    def write() -> None:
        write_manifest(
            where, step, {name: FileFacts(size=size, crc32=crc32) for name, (size, crc32) in read.items()}
        )

    agreement.of_first(f"the manifest of step {step} to be written", write)
    return sum(sizes.values())
