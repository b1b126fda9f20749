"""A value of a manifest together with where it is; reading it never fails, whatever somebody wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from raytpu.lint.findings import Catcher, Finding, Severity
from raytpu.lint.yaml_text import Path, YamlDocument


@dataclass(frozen=True, slots=True)
class Place:
    """One value, possibly missing (``None``, as a null counts), and the way to it."""

    file: str
    document: YamlDocument
    path: Path
    value: Any

    def at(self, *keys: str | int) -> Place:
        """The place below; its value is ``None`` where there is nothing of that name."""
        value = self.value
        for key in keys:
            if isinstance(key, str):
                value = value.get(key) if isinstance(value, dict) else None
            else:
                value = value[key] if isinstance(value, list) and key < len(value) else None
        return Place(self.file, self.document, (*self.path, *keys), value)

    @property
    def is_there(self) -> bool:
        return self.value is not None

    @property
    def text(self) -> str | None:
        return self.value if isinstance(self.value, str) else None

    @property
    def whole(self) -> int | None:
        """A whole number; booleans are none."""
        return self.value if isinstance(self.value, int) and not isinstance(self.value, bool) else None

    def items(self) -> list[Place]:
        """The items of a list; none of anything else."""
        return [self.at(i) for i in range(len(self.value))] if isinstance(self.value, list) else []

    def entries(self) -> Iterator[tuple[str, Place]]:
        """The keys of a mapping and what they hold; none of anything else."""
        for key in self.value if isinstance(self.value, dict) else ():
            yield key, self.at(key)

    @property
    def line(self) -> int:
        """Its own line, or that of the nearest thing around it that is in the file."""
        lines = self.document.lines
        for length in range(len(self.path), -1, -1):
            if self.path[:length] in lines:
                return lines[self.path[:length]]
        return 1

    def finding(
        self, rule: str, severity: Severity, what: str, *, fix: str, caught_by: Catcher, when: str
    ) -> Finding:
        """A finding about this place; of what is refused, only a warning while the value is a template."""
        if caught_by is Catcher.SERVER and is_template(self.value):
            severity, fix = (
                Severity.WARNING,
                "substitute the template first: `envsubst < FILE | raytpu lint -`",
            )
        return Finding(
            file=self.file,
            line=self.line,
            path=dotted(self.path),
            rule=rule,
            severity=severity,
            what=what,
            fix=fix,
            caught_by=caught_by,
            when=when,
        )


_TEMPLATE = re.compile(r"\$\{|\$[A-Z_]|\{\{")
_PLAIN_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")


def dotted(path: Path) -> str:
    """``spec.containers[0].resources.limits["google.com/tpu"]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text


def is_template(value: object) -> bool:
    """Whether a value still waits for envsubst or another template engine."""
    return isinstance(value, str) and _TEMPLATE.search(value) is not None
