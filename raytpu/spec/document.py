"""YAML to specs and back: the only place where YAML is parsed.

YAML 1.1 as PyYAML reads it, with two changes: ``1e-3`` is a number (PyYAML wants ``1.0e-3`` and would hand a
learning rate over as text), and dates stay text. Refused, because they would be guesses: a key given twice,
merge keys (``<<``), tags, several documents in one file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from raytpu.errors import Problem, SpecError, WorkloadInvalid
from raytpu.spec.cluster import Cluster
from raytpu.spec.data import TextData
from raytpu.spec.mesh import Mesh
from raytpu.spec.problems import Path, broken_rules_in, dotted, in_words, problems_of, unknown_keys_in
from raytpu.spec.recovery import Recovery
from raytpu.spec.slices import Slices
from raytpu.spec.spec import Spec
from raytpu.spec.workload import Workload, sections_together

_Model = TypeVar("_Model", bound=BaseModel)

_FLOAT = "tag:yaml.org,2002:float"
_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_NOT_RESOLVED = ("tag:yaml.org,2002:timestamp",)
_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")


class _Loader(yaml.SafeLoader):
    """Safe YAML with the changes that the module names."""


class _Dumper(yaml.SafeDumper):
    """Quotes what ``_Loader`` would otherwise not read as text."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)  # lists are indented below their key, as people write them


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NOT_RESOLVED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+0123456789"))
_Dumper.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+0123456789"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One ``--set`` of the command line."""

    path: tuple[str, ...]
    value: Any
    text: str
    """As it was written."""


def parse_override(text: str) -> Override:
    """``train.config.steps=20``: a dotted path and a value in YAML.

    Raises:
        SpecError: no path, no ``=``, or a value that is not YAML.
    """
    path, equals, value = text.partition("=")
    parts = tuple(part.strip() for part in path.split("."))
    if not equals or not all(parts):
        raise SpecError(f"--set {text!r}: expected PATH=VALUE, such as train.config.steps=20")
    tree = _read(value)
    if tree.problems:
        raise SpecError(f"--set {text!r}: {'; '.join(problem.message for problem in tree.problems)}")
    return Override(path=parts, value=tree.value, text=text)


def parse_workload(text: str, source: str = "workload", overrides: Sequence[str] = ()) -> Workload:
    """The workload that a YAML text describes, after ``overrides`` such as ``train.config.steps=20``.

    Args:
        text: the document.
        source: name of the file, for messages.

    Raises:
        WorkloadInvalid: with every problem of the document and the overrides, each with its path and line.
    """
    tree = _read(text)
    problems = list(tree.problems)
    if not problems and not isinstance(tree.value, dict):
        what = "nothing" if tree.value is None else in_words(tree.value)
        problems.append(
            Problem("", f"expected a mapping with name, slices, train and checkpoint, got {what}", 1)
        )
    if not isinstance(tree.value, dict):
        raise WorkloadInvalid(source, problems)
    applied = []
    for written in overrides:
        try:
            override = parse_override(written)
            _apply(override, tree.value)
            applied.append(override)
        except SpecError as error:
            problems.append(Problem("", str(error)))
    workload, found = _validate(tree.value)
    readable = (problem for problem in found if problem.path not in tree.unreadable)
    problems += [_located(problem, tree.lines, applied) for problem in readable]
    if workload is None or problems:
        last = len(text)  # no document has more lines than characters: problems without a line come last
        unique = dict.fromkeys(problems)
        raise WorkloadInvalid(source, sorted(unique, key=lambda p: p.line if p.line is not None else last))
    return workload


def workload_yaml(workload: Workload) -> str:
    """The workload as YAML, with every default written out, so that it means the same to a later raytpu.

    ``parse_workload`` of it gives an equal workload.
    """
    return yaml.dump(
        _plain(workload),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=100,
    )


def _plain(value: Any) -> Any:
    """Mappings and lists; fields that are None are left out (in ``config``, None is a value and stays)."""
    if isinstance(value, Spec):
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        return {name: _plain(inner) for name, inner in fields.items() if inner is not None}
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


@dataclass(slots=True)
class _Tree:
    """What a YAML text holds, where, and what is wrong with it as YAML."""

    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)
    """Paths that have no value because of one of the problems: what the specs say of them is noise."""


def _read(text: str) -> _Tree:
    tree = _Tree()
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None:
            tree.value = _value(node, (), loader, tree, ())
    except RecursionError:  # PyYAML descends by recursion; no workload is a hundred levels deep
        tree.value = None
        tree.problems.append(Problem("", "not readable: nested too deeply"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        about = " ".join(part for part in (error.context, error.problem) if part)
        tree.problems.append(Problem("", f"not YAML: {about}", mark.line + 1 if mark is not None else None))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        tree.problems.append(
            Problem("", f"not YAML: character U+{ord(text[error.position]):04X} is not allowed", line)
        )
    return tree


def _value(node: yaml.Node, path: Path, loader: _Loader, tree: _Tree, inside: tuple[yaml.Node, ...]) -> Any:
    """The value of a node; its problems and the lines of everything below it go to ``tree``."""
    line = node.start_mark.line + 1
    tree.lines.setdefault(path, line)
    if any(node is outer for outer in inside):
        tree.problems.append(Problem(dotted(path), "an anchor that contains itself", line))
        return None
    if isinstance(node, yaml.ScalarNode):
        try:
            return loader.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            about = error.problem if isinstance(error, yaml.MarkedYAMLError) else str(error)
            tree.problems.append(Problem(dotted(path), f"not readable: {about}", line))
            tree.unreadable.add(dotted(path))
            return None
    if node.tag not in _PLAIN_TAGS:
        tree.problems.append(
            Problem(dotted(path), f"the tag {node.tag} is not supported; leave it out", line)
        )
    inside = (*inside, node)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, i), loader, tree, inside) for i, item in enumerate(node.value)]
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = _key(key_node, path, loader, tree)
        if key is None:
            continue
        here, line = (*path, key), key_node.start_mark.line + 1
        if key in result:
            first = tree.lines[here]
            tree.problems.append(Problem(dotted(here), f"given twice, first on line {first}; keep one", line))
            continue
        tree.lines[here] = line
        result[key] = _value(value_node, here, loader, tree, inside)
    return result


def _key(node: yaml.Node, path: Path, loader: _Loader, tree: _Tree) -> str | None:
    line = node.start_mark.line + 1
    if node.tag == "tag:yaml.org,2002:merge":
        tree.problems.append(
            Problem(dotted(path), "merge keys (<<) are not supported; write the keys out", line)
        )
        return None
    key = loader.construct_object(node) if isinstance(node, yaml.ScalarNode) else None
    if not isinstance(key, str):
        what = node.value if isinstance(node, yaml.ScalarNode) else "a mapping or a list"
        tree.problems.append(Problem(dotted(path), f"keys are text, got {what}; put it in quotes", line))
        return None
    return key


def _apply(override: Override, document: dict[str, Any]) -> None:
    """Set the value in the document; mappings on the way are made when they are not there."""
    place = document
    for depth, key in enumerate(override.path[:-1], start=1):
        if key not in place or place[key] is None:
            place[key] = {}
        place = place[key]
        if not isinstance(place, dict):
            raise SpecError(
                f"--set {override.text!r}: {dotted(override.path[:depth])} is {in_words(place)}, "
                "which has no keys to set"
            )
    place[override.path[-1]] = override.value


def _located(problem: Problem, lines: Mapping[Path, int], overrides: Sequence[Override]) -> Problem:
    """The problem with its line: of its path, or of the nearest part that is in the document."""
    parts: Path = tuple(problem.path.split(".")) if problem.path else ()
    for override in reversed(overrides):
        if parts[: len(override.path)] == override.path:
            return Problem(problem.path, f"{problem.message} (from --set {override.text})")
    by_name: dict[Path, int] = {tuple(str(part) for part in path): line for path, line in lines.items()}
    for length in range(len(parts), -1, -1):
        if parts[:length] in by_name:
            return Problem(problem.path, problem.message, by_name[parts[:length]])
    return problem


def _validate(document: dict[str, Any]) -> tuple[Workload | None, list[Problem]]:
    """The workload, or every problem, also those of rules between sections of which others are wrong."""
    try:
        return Workload.model_validate(document), []
    except ValidationError as error:
        problems = list(problems_of(error, Workload, document))
        unknown = unknown_keys_in(error)
    kept = _without(document, unknown)
    try:
        Workload.model_validate(kept)  # an unknown key keeps the rules of its section from being checked
    except ValidationError as error:
        problems += broken_rules_in(error)
    train = kept["train"] if "train" in kept and isinstance(kept["train"], dict) else None
    mesh = train["mesh"] if train is not None and "mesh" in train else None
    config = train["config"] if train is not None and "config" in train else {}
    data = kept["data"] if "data" in kept and isinstance(kept["data"], dict) else {}
    broken = sections_together(
        slices=_valid(Slices, kept.get("slices")),
        mesh=_valid(Mesh, mesh),
        mesh_is_default=mesh is None,
        config=config if train is not None and isinstance(config, dict) else None,
        data={name: _valid(TextData, value) for name, value in data.items()},
        recovery=_valid(Recovery, kept.get("recovery", {})),
        cluster=_valid(Cluster, kept.get("cluster")),
    )
    return None, [*problems, *(Problem(dotted(rule.at), rule.message) for rule in broken)]


def _without(value: Any, unknown: Sequence[Path], path: Path = ()) -> Any:
    """A copy of the document without the keys that no section has."""
    if isinstance(value, dict):
        kept = {key: (*path, key) for key in value if (*path, key) not in unknown}
        return {key: _without(value[key], unknown, here) for key, here in kept.items()}
    return value


def _valid(model: type[_Model], value: Any) -> _Model | None:
    if value is None:
        return None
    try:
        return model.model_validate(value)
    except ValidationError:  # already reported, as a part of the whole document
        return None
