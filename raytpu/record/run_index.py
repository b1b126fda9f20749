"""Finding a run by its name: one small file per name, on this machine, that says where the run lies."""

from __future__ import annotations

import difflib
import json
import os

from raytpu.errors import StorageError, UnknownRun
from raytpu.record.run_directory import RunDirectory, lineages
from raytpu.record.storage import absolute_url, file_sizes, is_local, join_url, read_bytes, write_bytes

_WORKLOAD_SUFFIXES = (".yaml", ".yml")


def remember_run(directory: RunDirectory, index_folder: str) -> None:
    """Note where the run of this name lies; the latest note for a name counts.

    Raises:
        StorageError: the index cannot be written.
    """
    document = {"run": directory.run, "root": directory.root, "lineage": directory.lineage}
    write_bytes(_entry(index_folder, directory.run), json.dumps(document, indent=2).encode())


def known_runs(index_folder: str) -> list[str]:
    """Names in the index, sorted."""
    return [name.removesuffix(".json") for name in file_sizes(absolute_url(index_folder), ".json")]


def find_run(reference: str, index_folder: str) -> RunDirectory:
    """The run that a person means: a name, a run directory (path or URL), or a workload file.

    A name that is in the index wins over a file or folder of the same name; write ``./name`` for those.

    Args:
        reference: what was given on the command line.
        index_folder: where ``remember_run`` keeps its notes.

    Raises:
        UnknownRun: nothing fits; says what was searched and what is near.
        WorkloadInvalid: the workload file has problems.
        StorageError: the storage does not answer.
    """
    searched: list[str] = []
    for search in (_by_name, _by_workload_file, _by_directory):
        found = search(reference, index_folder, searched)
        if found is not None:
            return found
    known = known_runs(index_folder)
    lines = [f"no run {reference!r}; searched:", *(f"  {place}" for place in searched)]
    near = difflib.get_close_matches(reference, known, n=1)
    if near:
        lines.append(f"did you mean {near[0]}?")
    elif known:
        lines.append(f"known runs: {', '.join(known)}")
    lines.append("give the name of a run, its directory, or its workload file")
    raise UnknownRun("\n".join(lines))


def _by_name(reference: str, index_folder: str, searched: list[str]) -> RunDirectory | None:
    if "/" in reference:
        return None
    entry = _entry(index_folder, reference)
    data = read_bytes(entry)
    if data is None:
        searched.append(f"name {reference}: not in the index {absolute_url(index_folder)}")
        return None
    try:
        document = json.loads(data)
        root, run, lineage = str(document["root"]), str(document["run"]), int(document["lineage"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"cannot read {entry}: it is no index entry ({error!r}); delete it") from error
    present = lineages(root, run)
    if not present:
        searched.append(f"name {reference}: lay in {join_url(root, run)}, which is gone")
        return None
    # The newest lineage, even if another machine made it: the note may be older than the run.
    return RunDirectory.at(join_url(root, run, f"{max(lineage, *present):03d}"))


def _by_workload_file(reference: str, _index_folder: str, searched: list[str]) -> RunDirectory | None:
    path = absolute_url(reference)
    if not is_local(path) or not (reference.endswith(_WORKLOAD_SUFFIXES) or os.path.isfile(path)):
        return None
    text = read_bytes(path)
    if text is None:
        searched.append(f"workload file {path}: not there")
        return None
    # Only this way of naming a run needs the parser, and pydantic with it.
    from raytpu.spec import parse_workload

    workload = parse_workload(text.decode(errors="replace"), source=reference)
    directory = RunDirectory.newest(workload.checkpoint.path, workload.name)
    if directory.exists():
        return directory
    searched.append(f"workload file {path}: its run would lie in {directory.run_url}, where nothing is")
    return None


def _by_directory(reference: str, _index_folder: str, searched: list[str]) -> RunDirectory | None:
    url = absolute_url(reference)
    if is_local(url) and not os.path.isdir(url):
        searched.append(f"directory {url}: not there")
        return None
    try:
        directory = RunDirectory.at(url)
    except UnknownRun as error:
        searched.append(f"directory {error}")
        return None
    if directory.exists():
        return directory
    searched.append(f"directory {url}: empty")
    return None


def _entry(index_folder: str, run: str) -> str:
    return join_url(absolute_url(index_folder), f"{run}.json")
