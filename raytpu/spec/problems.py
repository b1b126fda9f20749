"""Pydantic's findings in raytpu's words: what was given, what was expected, what to do.

The only module that knows pydantic's error types. One that is not in its table keeps pydantic's own text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from raytpu.errors import Problem
from raytpu.spec.config_keys import WELL_KNOWN

Path = tuple[str | int, ...]

BROKEN_RULE = "broken_rule"
"""Type of the errors that raytpu's own rules raise; their text is already final."""

_MISSING, _UNKNOWN = "missing", "extra_forbidden"

# https://docs.pydantic.dev/latest/errors/validation_errors/
_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping (key: value)",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "model_type": "a mapping (key: value)",
    "string_type": "text",
    "tuple_type": "a list",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


def problems_of(error: ValidationError, model: type[BaseModel], given: Any) -> tuple[Problem, ...]:
    """Every problem of ``given``, one for each path that pydantic found wrong.

    The alternatives of a union, which pydantic reports one by one, are joined: ``expected text or a list``.
    """
    details = error.errors(include_url=False)
    meant = {detail["loc"]: _meant(model, detail["loc"]) for detail in details if detail["type"] == _UNKNOWN}
    misspelt = {(*loc[:-1], name) for loc, names in meant.items() for name in names}
    by_path: dict[Path, list[ErrorDetails]] = {}
    problems = list(broken_rules_in(error))
    for detail in details:
        loc: Path = detail["loc"]
        if detail["type"] == BROKEN_RULE:
            continue
        if detail["type"] == _UNKNOWN:
            problems.append(Problem(dotted(loc), _unknown_key(model, loc, meant[loc])))
        elif detail["type"] == "value_error":  # a rule of the user's own model; its text is final too
            problems.append(Problem(dotted(loc), str(detail["ctx"]["error"])))
        elif detail["type"] == _MISSING:
            if loc not in misspelt:  # one slip of the pen is one problem
                problems.append(Problem(dotted(loc), _missing_key(model, loc)))
        else:
            by_path.setdefault(_path_in(given, loc), []).append(detail)
    return (*problems, *(Problem(dotted(path), _mistyped(found)) for path, found in by_path.items()))


def broken_rules_in(error: ValidationError) -> Iterator[Problem]:
    """The problems that raytpu's own rules found."""
    for detail in error.errors(include_url=False):
        if detail["type"] == BROKEN_RULE:
            yield Problem(dotted(detail["loc"]), detail["msg"])


def unknown_keys_in(error: ValidationError) -> list[Path]:
    """The paths of the keys that no section has."""
    return [detail["loc"] for detail in error.errors(include_url=False) if detail["type"] == _UNKNOWN]


def dotted(path: Path) -> str:
    """``("train", "mesh", "ici")`` as ``train.mesh.ici``."""
    return ".".join(str(part) for part in path)


def in_words(value: object) -> str:
    """A value as an error message shows it."""
    match value:
        case None:
            return "nothing (null)"
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value) if len(value) <= 60 else f"{value[:57]!r}…"
        case int() | float():
            return f"the number {value}"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
    return f"a {type(value).__name__}"


def _mistyped(details: list[ErrorDetails]) -> str:
    value = details[0]["input"]
    expected = list(dict.fromkeys(_expectation(detail) for detail in details))
    quote = "; put it in quotes" if "text" in expected and isinstance(value, int | float) else ""
    unquote = ""
    if isinstance(value, str) and value.strip() and {"a number", "a whole number"} & set(expected):
        unquote = "; leave out the quotes" if value.strip("-").replace(".", "", 1).isdigit() else ""
    return f"expected {' or '.join(expected)}, got {in_words(value)}{quote}{unquote}"


def _expectation(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _EXPECTED:
        return _EXPECTED[kind]
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"{words} {context[key]:g}"
    if kind == "literal_error":
        return str(context["expected"])
    if kind == "invalid-json-value":
        return "text, a number, true, false, null, a list or a mapping"
    return f"what pydantic calls: {detail['msg']}"


def _path_in(given: Any, loc: Path) -> Path:
    """The part of ``loc`` that is in the document; pydantic adds the names of a union's alternatives."""
    path: list[str | int] = []
    value = given
    for part in loc:
        if (isinstance(value, Mapping) and part in value) or (
            isinstance(value, Sequence) and not isinstance(value, str) and isinstance(part, int)
        ):
            value = value[part]  # type: ignore[index]
            path.append(part)
        else:
            break
    return tuple(path)


def _missing_key(model: type[BaseModel], loc: Path) -> str:
    owner = _model_at(model, loc[:-1])
    description = owner.model_fields[str(loc[-1])].description if owner is not None else None
    meaning = f": {' '.join(description.split()).split('. ')[0].rstrip('.')}" if description else ""
    return f"required key is missing{meaning}"


def _unknown_key(model: type[BaseModel], loc: Path, meant: list[str]) -> str:
    if meant:
        return f"unknown key; did you mean {' or '.join(meant)}?"
    return f"unknown key; expected one of {', '.join(_known(model, loc))}"


def _meant(model: type[BaseModel], loc: Path) -> list[str]:
    """Where a key of that name belongs, else the key beside it that is spelt nearly so."""
    key = str(loc[-1])
    elsewhere = [path for path in _all_paths(model) if path.rpartition(".")[2] == key]
    return elsewhere or get_close_matches(key, _known(model, loc), n=1, cutoff=0.6)


def _known(model: type[BaseModel], loc: Path) -> list[str]:
    owner = _model_at(model, loc[:-1])
    return list(owner.model_fields) if owner is not None else []


def _all_paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted paths of all fields below a model; the free keys of a mapping are written ``<name>``."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        inner = _container(field.annotation)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _all_paths(inner, f"{prefix}{name}.")
        elif inner is not None and (value := _container(get_args(inner)[1])) is not None:
            yield from _all_paths(value, f"{prefix}{name}.<name>.")
        elif name == "config":
            yield from (f"{prefix}config.{key}" for key in WELL_KNOWN)


def _model_at(model: type[BaseModel], loc: Path) -> type[BaseModel] | None:
    """The model that the fields at ``loc`` belong to; ``None`` inside a free mapping."""
    current: Any = model
    for part in loc:
        if isinstance(current, type) and issubclass(current, BaseModel):
            current = _container(current.model_fields[str(part)].annotation)
        elif current is not None:
            current = _container(get_args(current)[1])
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _container(annotation: Any) -> Any:
    """The model or the ``dict[...]`` in an annotation such as ``Mesh | None``; ``None`` without one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is dict:
        return annotation
    return next((found for arg in get_args(annotation) if (found := _container(arg)) is not None), None)
