"""Where everything of a run lies: ``<root>/<run>/<lineage>/`` on any storage.

    <root>/<run>/driver.json              who drives the run now        (run_lease)
    <root>/<run>/stop.json                a wish that it ends           (run_lease)
    <root>/<run>/001/workload.yaml        the resolved document
    <root>/<run>/001/record/*.jsonl       events                        (event_log)
    <root>/<run>/001/logs/001/*.log       lines of every host, per attempt (host_log)
    <root>/<run>/001/checkpoints/

A *lineage* is one training history, from its first step on. A run goes on in its newest lineage; a fresh
start makes the next one and leaves the old ones as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from raytpu.errors import StorageError, UnknownRun
from raytpu.record.storage import (
    absolute_url,
    check_writable,
    file_sizes,
    folder_names,
    join_url,
    make_folder,
    parent_url,
    read_bytes,
    write_bytes,
)

WORKLOAD_FILE = "workload.yaml"
_LINEAGE = re.compile(r"^\d{3,}$")


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """One lineage of a run. A value: it holds no open file, pickles, and need not exist yet."""

    url: str
    """Local path or URL of the lineage, as ``storage.absolute_url`` spells it."""

    @classmethod
    def newest(cls, root: str, run: str) -> RunDirectory:
        """The newest lineage of ``run`` under ``root``; the first one, not made yet, when there is none."""
        return cls._of(root, run, max(lineages(root, run), default=1))

    @classmethod
    def fresh(cls, root: str, run: str) -> RunDirectory:
        """The lineage after the newest, not made yet."""
        return cls._of(root, run, max(lineages(root, run), default=0) + 1)

    @classmethod
    def at(cls, url: str) -> RunDirectory:
        """The lineage at ``url``, which is its own folder or that of its run (then: the newest).

        Raises:
            UnknownRun: ``url`` is neither.
        """
        absolute = absolute_url(url)
        if _LINEAGE.match(absolute.rpartition("/")[2]):
            return cls(absolute)
        numbers = _lineages_in(absolute)
        if not numbers:
            raise UnknownRun(
                f"{absolute} is no run directory: expected a folder of lineages (001, 002, …) or one of them"
            )
        return cls(join_url(absolute, f"{max(numbers):03d}"))

    @classmethod
    def _of(cls, root: str, run: str, lineage: int) -> RunDirectory:
        return cls(join_url(absolute_url(root), run, f"{lineage:03d}"))

    def __str__(self) -> str:
        return self.url

    @property
    def lineage(self) -> int:
        return int(self.url.rpartition("/")[2])

    @property
    def run(self) -> str:
        return self.run_url.rpartition("/")[2]

    @property
    def run_url(self) -> str:
        """The folder of all lineages of the run; driver and stop marker lie here."""
        return parent_url(self.url)

    @property
    def root(self) -> str:
        return parent_url(self.run_url)

    @property
    def record(self) -> str:
        return join_url(self.url, "record")

    @property
    def checkpoints(self) -> str:
        return join_url(self.url, "checkpoints")

    def logs(self, attempt: int) -> str:
        return join_url(self.url, "logs", f"{attempt:03d}")

    def attempts_with_logs(self) -> list[int]:
        """Numbers of the attempts that have logs, ascending."""
        return sorted(int(name) for name in folder_names(join_url(self.url, "logs")) if name.isdigit())

    def exists(self) -> bool:
        """Whether anything was ever written into it."""
        return bool(file_sizes(self.url) or folder_names(self.url))

    def create(self) -> None:
        """Make the folder. Making it twice is not an error.

        Raises:
            StorageError: it cannot be made.
        """
        make_folder(self.url)

    def check_writable(self) -> None:
        """Write and delete a probe file; nothing is left, not even an empty folder.

        Raises:
            StorageError: naming the path, the reason and the next step.
        """
        try:
            check_writable(self.url)
        except StorageError as error:
            raise StorageError(f"{error}\n  set checkpoint.path to a folder that can be written") from error

    def write_workload(self, text: str) -> None:
        """Keep the resolved workload document, replacing an earlier one."""
        write_bytes(join_url(self.url, WORKLOAD_FILE), text.encode())

    def read_workload(self) -> str | None:
        """The resolved workload document, or ``None`` when none was written."""
        data = read_bytes(join_url(self.url, WORKLOAD_FILE))
        return None if data is None else data.decode()


def lineages(root: str, run: str) -> list[int]:
    """Numbers of the lineages that ``run`` has under ``root``, ascending."""
    return _lineages_in(join_url(absolute_url(root), run))


def _lineages_in(run_url: str) -> list[int]:
    return sorted(int(name) for name in folder_names(run_url) if _LINEAGE.match(name))
