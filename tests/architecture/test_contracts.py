"""The lists in pyproject.toml that hold the architecture name everything they are about."""

from __future__ import annotations

import tomllib

import pytest

from tests.architecture.project_files import ROOT, packages

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]

LOWER_HALF = {
    "raytpu.errors",
    "raytpu.topology",
    "raytpu.spec",
    "raytpu.plan",
    "raytpu.manifest",
    "raytpu.lint",
}

EXISTING = {name for name in packages() if name.count(".") == 1} | {"raytpu.errors"}


def contract(start: str) -> dict:
    """The import contract whose name begins with ``start``."""
    return next(each for each in SETTINGS["importlinter"]["contracts"] if each["name"].startswith(start))


def test_the_contract_on_deciding_covers_every_package_that_decides() -> None:
    """A package that may be left out of the list can read the clock, and plans stop being repeatable."""
    assert set(contract("The lower half")["source_modules"]) == LOWER_HALF & EXISTING


def test_types_are_checked_strictly_in_every_package_that_decides() -> None:
    """mypy's leniency is for code that calls JAX; below it there is nothing to be lenient about."""
    strict = next(
        each["module"] for each in SETTINGS["mypy"]["overrides"] if each.get("disallow_any_generics")
    )

    assert {name.removesuffix(".*") for name in strict} == LOWER_HALF & EXISTING


def test_a_recipe_may_import_nothing_but_the_public_api_and_the_models() -> None:
    """A recipe on private parts is a promise that a user's own loop cannot keep."""
    closed = set(contract("Recipes")["forbidden_modules"])
    open_to_recipes = {"raytpu.cli", "raytpu.errors", "raytpu.models", "raytpu.recipes"}

    assert closed == EXISTING - open_to_recipes


@pytest.mark.parametrize("package", sorted(EXISTING))
def test_a_layer_that_exists_is_not_optional(package: str) -> None:
    """Parentheses around a layer that exists let it vanish, or be renamed, unseen."""
    optional = f"({package.removeprefix('raytpu.')})"

    assert all(optional not in layer for layer in contract("Arrows")["layers"])
