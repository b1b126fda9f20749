"""A stranger can say what a file is for from its name, its size and its first line."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.project_files import parsed, python_files, shown

OURS = python_files("raytpu", "tests", ".ci")

LINE_LIMIT = 400
FUNCTION_LINE_LIMIT = 50

NOT_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "core", "manager"}
"""They say that a file holds something, not what."""

PRIVATE_RAY = {
    "raytpu/gang/ray_internals.py",
    "raytpu/cluster/ray_node.py",
    "raytpu/train/ray_train_seam.py",
    "raytpu/checkpoint/agreement.py",
}
"""Modules that may use what Ray keeps private; each has a test that tells when Ray changes it."""


def test_no_module_is_longer_than_four_hundred_lines() -> None:
    """What does not fit one head is not reviewed."""
    long = {shown(path): count for path in OURS if (count := len(path.read_text().splitlines())) > LINE_LIMIT}

    assert long == {}


def test_no_file_is_named_for_nothing() -> None:
    """Such files grow without limit, because everything belongs there."""
    unnamed = [
        shown(path)
        for path in OURS
        if NOT_NAMES & {re.sub(r"^(test_|_)+", "", part) for part in path.with_suffix("").parts[-2:]}
    ]

    assert unnamed == []


@pytest.mark.parametrize("path", python_files("raytpu"), ids=shown)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    """The first line of a module is all that most readers read of it."""
    if path.read_text().strip():
        assert ast.get_docstring(parsed(path)), f"{shown(path)} has no docstring"


def imported_names(tree: ast.Module) -> list[tuple[int, str]]:
    """Line and dotted name of everything a module imports, wherever in it."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def is_private(name: str) -> bool:
    """Whether a dotted name of Ray or JAX has a part that its owner marks as private."""
    root, *rest = name.split(".")
    return root in ("ray", "jax", "jaxlib") and any(part.startswith("_") for part in rest)


def test_what_ray_and_jax_keep_private_is_used_in_the_named_modules_only() -> None:
    """A private name may go in any release; spread over the tree, nobody knows what an upgrade breaks."""
    users = {
        shown(path)
        for path in python_files("raytpu")
        if any(is_private(name) for _, name in imported_names(parsed(path)))
    }

    assert users - PRIVATE_RAY == set()


def test_modules_outside_the_tree_of_packages_are_few() -> None:
    """A module beside the packages has no layer, so no contract holds for it."""
    beside = {
        shown(path) for path in python_files("raytpu") if len(path.parts) - len(path.parents[0].parts) == 1
    }
    top = {name for name in beside if name.count("/") == 1}

    assert top == {"raytpu/__init__.py", "raytpu/__main__.py", "raytpu/errors.py"}


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    first = function.body[0]
    docstring = (first.end_lineno or 0) - first.lineno + 1 if ast.get_docstring(function) else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def test_no_function_is_longer_than_fifty_lines() -> None:
    """A function that does not fit a screen does more than its name says."""
    long = {
        f"{shown(path)}:{node.lineno} {node.name}": body_lines(node)
        for path in OURS
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body_lines(node) > FUNCTION_LINE_LIMIT
    }

    assert long == {}


def catches_everything(handler: ast.ExceptHandler) -> bool:
    """``except:``, ``except Exception`` or ``except BaseException``, also within a tuple."""
    if handler.type is None:
        return True
    return any(
        isinstance(node, ast.Name) and node.id in ("Exception", "BaseException")
        for node in ast.walk(handler.type)
    )


def test_who_catches_everything_raises_it_again_or_says_why_not() -> None:
    """A swallowed error comes back as a hang or as wrong numbers.

    The comment on the line names the boundary at which the error becomes data.
    """
    silent = []
    for path in python_files("raytpu"):
        lines = path.read_text().splitlines()
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.ExceptHandler) or not catches_everything(node):
                continue
            raises = isinstance(node.body[-1], ast.Raise)
            if not raises and "#" not in lines[node.lineno - 1]:
                silent.append(f"{shown(path)}:{node.lineno}")

    assert silent == []
