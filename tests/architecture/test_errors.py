"""The exception tree: drawn once, picklable, each error with an exit code and a message."""

from __future__ import annotations

import ast
import pickle
import re

import pytest

from raytpu import errors
from raytpu.errors import (
    DeadlineExceeded,
    LeaseEnded,
    Problem,
    ProgramFailed,
    RaytpuError,
    SliceLost,
    SliceVerdict,
    TopologyError,
    Unplaceable,
    WorkloadInvalid,
)
from tests.architecture.project_files import parsed, python_files, shown

EXIT_CODES = {errors.RaytpuError: 1, errors.WrongRequest: 2, errors.Refused: 3, errors.RunFailed: 4}

EXAMPLES: dict[type[RaytpuError], RaytpuError] = {
    TopologyError: TopologyError("4x5", "v6e", "the largest is 16x16", "did you mean 4x4?"),
    WorkloadInvalid: WorkloadInvalid(
        "llm.yaml", [Problem("train.step", "unknown key", 7), Problem("name", "is missing")]
    ),
    Unplaceable: Unplaceable(
        "need 2 whole slices", [SliceVerdict("slice-0", "busy", "held by other")], "see `raytpu sim status`"
    ),
    SliceLost: SliceLost({"slice-0": "slice-0/1 does not answer"}),
    LeaseEnded: LeaseEnded("run llm", "preempted by run urgent"),
    ProgramFailed: ProgramFailed("slice-0/0: ValueError: no", 7, "ValueError at loop.py:12"),
    DeadlineExceeded: DeadlineExceeded(
        "host processes", 120.0, ["slice-0/2", "slice-1/0"], "raise host_start_s"
    ),
}


def all_errors(base: type[RaytpuError] = RaytpuError) -> list[type[RaytpuError]]:
    """``base`` and every error below it that ``raytpu.errors`` defines, each once."""
    below = [error for child in base.__subclasses__() for error in all_errors(child)]
    return list(dict.fromkeys([base, *below]))


@pytest.mark.parametrize("error_type", all_errors(), ids=lambda error_type: error_type.__name__)
def test_an_error_comes_back_whole_from_another_process(error_type: type[RaytpuError]) -> None:
    """Ray pickles what a worker raises; an error that does not unpickle hides the true cause of a failure."""
    error = (
        EXAMPLES[error_type] if error_type in EXAMPLES else error_type("what was given, what was expected")
    )

    back = pickle.loads(pickle.dumps(error))

    assert type(back) is error_type
    assert str(back) == str(error)
    assert vars(back) == vars(error)
    assert str(error)


def test_every_error_with_arguments_of_its_own_has_an_example_here() -> None:
    """Such an error is the one whose unpickling fails; a plain message would not show it."""
    with_arguments = {error for error in all_errors() if "__init__" in vars(error)}

    assert with_arguments == set(EXAMPLES)


@pytest.mark.parametrize("error_type", all_errors(), ids=lambda error_type: error_type.__name__)
def test_the_exit_code_tells_what_kind_of_failure_it_was(error_type: type[RaytpuError]) -> None:
    """Scripts act on exit codes: 2 repair the request, 3 try later, 4 look at the run."""
    kinds = [kind for kind in EXIT_CODES if issubclass(error_type, kind) and kind is not RaytpuError]

    assert error_type.exit_code == EXIT_CODES[kinds[0] if kinds else RaytpuError]


def test_the_drawing_shows_every_error_in_its_place() -> None:
    """A tree that has drifted from the code sends a reader to an error that is never raised."""
    drawn = re.findall(r"^ {4}([ │├└─]*)(\w+)", errors.__doc__ or "", flags=re.MULTILINE)
    path: list[str] = []
    parents = {}
    for indent, name in drawn:
        del path[len(indent) // 4 :]
        parents[name] = path[-1] if path else "Exception"
        path.append(name)

    assert parents == {error.__name__: error.__mro__[1].__name__ for error in all_errors()}


def test_there_is_one_tree_of_errors() -> None:
    """An error defined elsewhere misses the drawing, the exit codes and the check that it pickles."""
    names = {error.__name__ for error in all_errors()}
    elsewhere = [
        f"{shown(path)}:{node.lineno} {node.name}"
        for path in python_files("raytpu")
        if shown(path) != "raytpu/errors.py"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).rpartition(".")[2] in names for base in node.bases)
    ]

    assert elsewhere == []
