"""The files of the project, as a clone has them."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

NOT_OURS = {".git", ".venv", "build", "dist", "__pycache__", ".hypothesis", ".ipynb_checkpoints"}


@cache
def project_files() -> tuple[Path, ...]:
    """Every file of the project, sorted; no caches, build output or virtual environment."""
    found = []
    pending = [ROOT]
    while pending:
        for path in pending.pop().iterdir():
            if path.name in NOT_OURS or path.name.endswith((".egg-info", "_cache")):
                continue
            if path.is_dir() and not path.is_symlink():
                pending.append(path)
            elif path.is_file():
                found.append(path)
    return tuple(sorted(found))


def python_files(*folders: str) -> tuple[Path, ...]:
    """The Python files below ``folders``, which are relative to the root."""
    roots = [ROOT / folder for folder in folders]
    return tuple(
        path
        for path in project_files()
        if path.suffix == ".py" and any(path.is_relative_to(root) for root in roots)
    )


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def shown(path: Path) -> str:
    """The path as a reader of the project writes it."""
    return path.relative_to(ROOT).as_posix()


def packages() -> tuple[str, ...]:
    """``raytpu`` and its packages by dotted name."""
    inits = [path for path in python_files("raytpu") if path.name == "__init__.py"]
    return tuple(sorted(".".join(path.relative_to(ROOT).parent.parts) for path in inits))


def output_of(code: str) -> str:
    """What ``code`` prints in a fresh interpreter; fails with its traceback when it raises."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
