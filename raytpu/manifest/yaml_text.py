"""Kubernetes documents as YAML for people: one order, one style, and the reason beside what needs one.

Not PyYAML's printer, which knows no comments and leaves unquoted what another parser reads as a number or a
truth value. ``kubectl`` reads YAML 1.1 and 1.2 alike in what is written here.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

_WIDTH = 108

Plain: TypeAlias = "str | int | bool | list[Plain] | dict[str, Plain]"
"""What a document is once its comments are gone."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A value with a comment, which is printed above its key or its item."""

    value: Value
    note: str


Value: TypeAlias = "str | int | bool | Sequence[Value] | Mapping[str, Value] | Noted"
Document: TypeAlias = Mapping[str, Value]

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}

# What YAML 1.1 or 1.2 reads as something else than text when it stands without quotes.
_RESERVED = {"true", "false", "yes", "no", "on", "off", "y", "n", "null"}
_PLAIN = re.compile(
    r"[A-Za-z_/]([-\w./@+]|:(?=[-\w./@+]))*"  # a word, a label, an image
    r"|[1-9]\d*(x[1-9]\d*)+|[1-9]\d*[KMGT]i",  # a topology, an amount of memory
    re.ASCII,
)


def yaml_text(documents: Sequence[Document], heading: str) -> str:
    """All documents as one YAML text, below ``heading`` as a comment."""
    blocks = ("\n".join(_entries(document, 0)) for document in documents)
    return "\n".join([*_comment(heading, ""), "\n---\n".join(blocks)]) + "\n"


def plain(value: Value) -> Plain:
    """The value without its comments."""
    match value:
        case Noted():
            return plain(value.value)
        case Mapping():
            return {key: plain(inner) for key, inner in value.items()}
        case str() | bool() | int():
            return value
    return [plain(inner) for inner in value]


def _comment(text: str, indent: str) -> Iterator[str]:
    for paragraph in text.splitlines():
        lines = textwrap.wrap(paragraph, _WIDTH - len(indent) - 2, break_long_words=False) or [""]
        yield from (f"{indent}# {line}".rstrip() for line in lines)


def _entries(mapping: Mapping[str, Value], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for key, value in mapping.items():
        if isinstance(value, Noted):
            yield from _comment(value.note, indent)
            value = value.value
        head, *rest = _written(value, depth)
        yield f"{indent}{_scalar(key)}:{head}"
        yield from rest


def _items(values: Sequence[Value], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for value in values:
        if isinstance(value, Noted):
            yield from _comment(value.note, indent)
            value = value.value
        if isinstance(value, Mapping) and value:
            entries = list(_entries(value, depth + 1))
            # A comment of the first key stands above the dash.
            while entries[0].lstrip().startswith("#"):
                yield f"{indent}{entries.pop(0).lstrip()}"
            yield f"{indent}- {entries[0].lstrip()}"
            yield from entries[1:]
        else:
            head, *rest = _written(value, depth)
            yield f"{indent}-{head}"
            yield from rest


def _written(value: Value, depth: int) -> Iterator[str]:
    """What follows ``key:`` or ``-``: the rest of its line, then the lines below."""
    match value:
        case Noted():
            raise AssertionError("a comment on a comment")
        case Mapping() if value:
            yield ""
            yield from _entries(value, depth + 1)
        case Mapping():
            yield " {}"
        case bool():
            yield f" {str(value).lower()}"
        case int():
            yield f" {value}"
        case str() if _fits_a_block(value):
            yield " |" if value.endswith("\n") else " |-"
            yield from (f"{'  ' * (depth + 1)}{line}".rstrip() for line in value.splitlines())
        case str():
            yield f" {_scalar(value)}"
        case _ if value:
            yield ""
            yield from _items(value, depth + 1)
        case _:
            yield " []"


def _fits_a_block(text: str) -> bool:
    """Whether a literal block (``|``) holds it as it is."""
    lines = text.split("\n")
    return (
        len(lines) > 1
        and not text.startswith((" ", "\n"))
        and not text.endswith("\n\n")
        and all(line.isprintable() and line == line.rstrip() for line in lines)
    )


def _scalar(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _RESERVED:
        return text
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(letter: str) -> str:
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    if letter.isprintable():
        return letter
    code = ord(letter)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
