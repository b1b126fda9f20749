"""YAML as kubectl reads it, with the line of every value.

kubectl turns YAML into JSON with Go's yaml.v2, which speaks YAML 1.1: ``no``, ``on`` and even ``N`` are
booleans (seen: an environment variable named ``N`` became ``false``), and of a key that is given twice the
last one wins. Values are built from parser events, without recursion in the parser, so that neither deep
nesting nor an anchor that multiplies itself can take a linter down.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]

# A manifest is some 15 levels deep. Rules descend by recursion, and Python stops at 1000 calls.
DEPTH_LIMIT = 100
# By feel: the largest manifests have a few thousand values; kubectl refuses "excessive aliasing" likewise.
VALUES_LIMIT = 100_000

_Parser: Any = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # libyaml is ten times faster, where it is built in

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE"})
_FALSE = frozenset({"n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE"})
# 18 digits: what certainly fits 64 bits; a longer one is a float to Go as well, or text.
_INT = re.compile(r"[-+]?[0-9][0-9_]{0,17}")
_PREFIXED_INT = re.compile(r"[-+]?0[xX][0-9a-fA-F]{1,15}|[-+]?0[bB][01]{1,60}|[-+]?0[oO][0-7]{1,20}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_STR_TAG = "tag:yaml.org,2002:str"


@dataclass(frozen=True, slots=True)
class TwiceGiven:
    """A key that a mapping has twice; the value of the later one is kept, as kubectl does."""

    path: Path
    line: int
    first_line: int


@dataclass(slots=True)
class YamlDocument:
    """One document of a file."""

    value: Any
    lines: dict[Path, int]
    """Line of each key and item, counted from 1; the empty path is the document's first."""
    twice: list[TwiceGiven] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class NotYaml:
    """Why a file, from a line on, cannot be read."""

    what: str
    line: int


def read_documents(text: str) -> Iterator[YamlDocument | NotYaml]:
    """Every document of a file in order; a ``NotYaml`` is the last when the rest cannot be read."""
    try:
        events = yaml.parse(text, Loader=_Parser)
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                yield _Builder(events).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        about = " ".join(part for part in (error.context, error.problem) if part)
        yield NotYaml(about, mark.line + 1 if mark is not None else 1)
    except yaml.reader.ReaderError as error:
        # libyaml counts bytes and raises this for broken UTF-8 too; `text` is whole, so the position is near.
        line = text.count("\n", 0, max(0, error.position)) + 1
        yield NotYaml(f"the character U+{_code_point(error.character):04X} is not allowed", line)
    except _Unreadable as error:
        yield NotYaml(str(error), error.line)


def scalar(text: str) -> Any:
    """The value of a plain (unquoted) scalar."""
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if _INT.fullmatch(text):
        digits = text.replace("_", "")
        octal = digits.lstrip("-+").startswith("0") and len(digits.lstrip("-+")) > 1
        if not octal:
            return int(digits)
        return int(digits, 8) if set(digits.lstrip("-+")) <= set("01234567") else float(digits)
    if _PREFIXED_INT.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _code_point(character: Any) -> int:
    return ord(character) if isinstance(character, str) else int(character)


class _Unreadable(Exception):
    def __init__(self, what: str, line: int) -> None:
        super().__init__(what)
        self.line = line


@dataclass(slots=True)
class _Node:
    """A value with the lines below it, so that an alias can be put where it is used."""

    value: Any
    line: int
    children: dict[str | int, _Node] = field(default_factory=dict)
    twice: list[tuple[str, int, int]] = field(default_factory=list)


class _Builder:
    """Builds one document from the events that follow its start."""

    def __init__(self, events: Iterator[Any]) -> None:  # the events of both parsers; untyped in libyaml's
        self._events = events
        self._anchors: dict[str, _Node] = {}
        self._count = 0

    def document(self) -> YamlDocument:
        root = self._node(next(self._events), 0)
        document = YamlDocument(root.value, {})
        self._count = 0
        self._collect(root, (), document)
        return document

    def _node(self, event: Any, depth: int) -> _Node:
        line = event.start_mark.line + 1
        self._count += 1
        if depth > DEPTH_LIMIT:
            raise _Unreadable(f"nested more than {DEPTH_LIMIT} levels deep", line)
        if self._count > VALUES_LIMIT:
            raise _Unreadable(f"more than {VALUES_LIMIT} values in one document", line)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise _Unreadable(f"there is no anchor {event.anchor}", line)
            known = self._anchors[event.anchor]
            return _Node(known.value, line, known.children, known.twice)
        if isinstance(event, yaml.ScalarEvent):
            node = _Node(_scalar_of(event), line)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(line, depth)
        else:
            node = self._mapping(line, depth)
        if event.anchor is not None:  # registered once complete: an anchor cannot contain itself
            self._anchors[event.anchor] = node
        return node

    def _sequence(self, line: int, depth: int) -> _Node:
        node = _Node([], line)
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            item = self._node(event, depth + 1)
            node.children[len(node.value)] = item
            node.value.append(item.value)
        return node

    def _mapping(self, line: int, depth: int) -> _Node:
        node = _Node({}, line)
        merged: list[_Node] = []
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key, at = self._key(event), event.start_mark.line + 1
            value = self._node(next(self._events), depth + 1)
            if key == "<<" and event.implicit[0]:
                merged += [value] if isinstance(value.value, dict) else list(value.children.values())
                continue
            if key in node.value:
                node.twice.append((key, at, node.children[key].line))
            node.children[key] = _Node(value.value, at, value.children, value.twice)
            node.value[key] = value.value
        for source in merged:
            for name, child in source.children.items():
                if isinstance(source.value, dict) and name not in node.value:
                    node.children[name], node.value[name] = child, child.value
        return node

    def _key(self, event: Any) -> str:
        """Keys are text in JSON: a number or a boolean becomes its JSON spelling."""
        if not isinstance(event, yaml.ScalarEvent):
            what = "a key that is a mapping, a list or an alias ({{…}} of a template?)"
            raise _Unreadable(what, event.start_mark.line + 1)
        value = _scalar_of(event)
        if isinstance(value, bool):
            return "true" if value else "false"
        return "null" if value is None else str(value)

    def _collect(self, node: _Node, path: Path, document: YamlDocument) -> None:
        """Lines by path. Aliases are followed, so the count is held here too."""
        self._count += 1
        if self._count > VALUES_LIMIT or len(path) > DEPTH_LIMIT:
            raise _Unreadable("anchors that multiply into too many values", node.line)
        document.lines[path] = node.line
        document.twice += [TwiceGiven((*path, key), line, first) for key, line, first in node.twice]
        for key, child in node.children.items():
            self._collect(child, (*path, key), document)


def _scalar_of(event: yaml.ScalarEvent) -> Any:
    plain, quoted = event.implicit
    return event.value if (quoted and not plain) or event.tag == _STR_TAG else scalar(event.value)
