"""Public means listed and tested."""

from __future__ import annotations

import ast
import json
import re

import pytest

from tests.architecture.project_files import ROOT, output_of, packages, parsed

PUBLISHING = [name for name in packages() if not name.endswith(".cli")]


def init_of(package: str) -> ast.Module:
    return parsed(ROOT.joinpath(*package.split("."), "__init__.py"))


def listed_names(package: str) -> list[str] | None:
    """The literal ``__all__`` of a package; ``None`` when it has none."""
    for node in init_of(package).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign)
            return ast.literal_eval(node.value)
    return None


def by_kind_then_name(name: str) -> tuple[object, ...]:
    """The order of ruff's RUF022: constants, classes, the rest; numbers inside names by value."""
    kind = 0 if name.isupper() else 1 if name[:1].isupper() else 2
    parts = [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]
    return (kind, parts)


@pytest.mark.parametrize("package", PUBLISHING)
def test_what_a_package_re_exports_is_listed_once_and_in_order(package: str) -> None:
    """A name that is importable by accident becomes an interface that nobody meant to keep."""
    listed = listed_names(package)
    re_exported = {
        alias.asname
        for node in ast.walk(init_of(package))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }

    assert listed is not None or not re_exported, "re-exports names, but has no __all__"
    assert listed is None or sorted(set(listed), key=by_kind_then_name) == listed
    assert re_exported <= set(listed or ())


@pytest.mark.timeout(120)
def test_every_listed_name_can_be_imported() -> None:
    """A name in the documentation that raises on import is the first thing a newcomer meets.

    In one process of its own, because the upper packages load ray and jax.
    """
    wanted = {package: listed_names(package) for package in PUBLISHING if listed_names(package)}
    code = f"""
import importlib, json
wanted = json.loads({json.dumps(json.dumps(wanted))})
missing = [
    f"{{package}}.{{name}}"
    for package, names in wanted.items()
    for name in names
    if not hasattr(importlib.import_module(package), name)
]
print(json.dumps(missing))
"""

    assert json.loads(output_of(code).splitlines()[-1]) == []


def test_the_public_api_of_raytpu_is_listed() -> None:
    """``import raytpu`` is where everything starts; without ``__all__`` nobody can tell what it offers."""
    assert listed_names("raytpu")
