"""What the API server says of a document: the structural schema of a CRD.

As kube-apiserver 1.36 does for server-side apply and strict validation: an unknown field is refused, nulls
count as missing, entries of a map-like list are unique by their keys, defaults come before CEL. Not done:
``format`` other than the sizes of integers, and rules that compare with an older object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

from raytpu.lint.cel import CelError, UnsupportedCel, evaluate
from raytpu.lint.findings import Catcher, Finding, Severity
from raytpu.lint.places import Place, dotted
from raytpu.lint.yaml_text import Path

Schema = Mapping[str, Any]
Around = tuple[tuple[Path, Schema], ...]
"""The mappings that a place lies in, outermost first."""

_REFUSES = "it refuses `kubectl apply`"
_NOT_ASKED = "raytpu cannot evaluate the rule; ask the server: `kubectl apply --dry-run=server`"
_INT_BITS = {"int32": 32, "int64": 64}
# By feel: nothing that has a pattern is longer, and Python's matcher may take quadratic time.
_PATTERN_LIMIT = 2000
_WORDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "a mapping (key: value)",
    "array": "a list",
}


def check_schema(place: Place, schema: Schema) -> Iterator[Finding]:
    """Everything in a whole document (or a List's item) that its schema does not allow."""
    found = list(_object(place, schema, (), is_root=True))
    yield from found
    if not found:  # the server, too, evaluates its rules only on what has the right form
        yield from _rules(place, schema)


def _refused(place: Place, rule: str, what: str, fix: str) -> Finding:
    return place.finding(rule, Severity.ERROR, what, fix=fix, caught_by=Catcher.SERVER, when=_REFUSES)


def _value(place: Place, schema: Schema, around: Around) -> Iterator[Finding]:
    value = place.value
    if value is None:
        return
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str):
            yield _mistyped(place, "text or a whole number")
        elif isinstance(value, str):
            yield from _string(place, schema)
        return
    kind: str | None = schema.get("type")
    if kind is not None and not _is_a(value, kind):
        yield _mistyped(place, _WORDS.get(kind, kind))
        return
    if kind == "object":
        yield from _object(place, schema, around)
    elif kind == "array":
        yield from _array(place, schema, around)
    elif kind == "string":
        yield from _string(place, schema)
    elif kind in ("integer", "number"):
        yield from _number(place, schema)
    if "enum" in schema and value not in schema["enum"]:
        yield _not_listed(place, schema["enum"])


def _is_a(value: object, kind: str) -> bool:
    match kind:
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            whole = isinstance(value, float) and value.is_integer()
            return whole or (isinstance(value, int) and not isinstance(value, bool))
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
    return True


def _mistyped(place: Place, expected: str) -> Finding:
    value, key = place.value, place.path[-1] if place.path else ""
    name = f"{key}:" if isinstance(key, str) else "-"
    fix = f"{name} {expected}"
    if "text" in expected and isinstance(value, bool | int | float):
        written = str(value).lower() if isinstance(value, bool) else str(value)
        fix = f'{name} "{written}", in quotes'
        if isinstance(value, bool):
            fix += " (YAML reads y, n, yes, no, on and off as booleans: quote the word as you mean it)"
    elif "number" in expected and isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]{1,18}", value.strip()):
        fix = f"{name} {value.strip()}, without quotes"
    return _refused(place, "schema-type", f"expected {expected}, got {in_words(value)}", fix)


def in_words(value: object) -> str:
    """A value as a message shows it."""
    match value:
        case bool():
            return f"the boolean {str(value).lower()}"
        case str():
            return f'the text "{value}"' if len(value) <= 60 else f'the text "{value[:57]}…"'
        case int() | float():
            return f"the number {value}"
        case dict():
            return "a mapping"
        case list():
            return "a list"
    return "nothing"


def _not_listed(place: Place, allowed: Sequence[Any]) -> Finding:
    names = [str(each) for each in allowed if each != ""]
    close = get_close_matches(str(place.value), names, n=1, cutoff=0.5)
    fix = f"{place.path[-1]}: {close[0]}" if close else f"one of {', '.join(names)}"
    what = f"{in_words(place.value)} is not one of {', '.join(names)}"
    return _refused(place, "schema-enum", what, fix)


def _object(place: Place, schema: Schema, around: Around, *, is_root: bool = False) -> Iterator[Finding]:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    more = schema.get("additionalProperties")
    inside = (*around, (place.path, schema))
    for key, inner in place.entries():
        if is_root and key in ("apiVersion", "kind", "metadata", "status"):
            continue  # ObjectMeta has rules of its own; whoever applies a status is not heard
        if key in properties:
            yield from _value(inner, properties[key], inside)
        elif isinstance(more, Mapping):
            yield from _value(inner, more, inside)
        elif not (more or schema.get("x-kubernetes-preserve-unknown-fields")):
            yield _unknown(inner, key, properties, around)
    for key in schema.get("required", ()):
        if not place.at(key).is_there and "default" not in properties.get(key, {}):
            missing = place.at(key)
            expected = _WORDS.get(properties.get(key, {}).get("type", ""), "a value")
            yield _refused(
                missing, "schema-required", f"the required field {key} is missing", f"{key}: {expected}"
            )
    count = len(place.value) if isinstance(place.value, dict) else 0
    yield from _count(place, count, schema, "minProperties", "maxProperties", "keys")


def _unknown(place: Place, key: str, known: Mapping[str, Schema], around: Around) -> Finding:
    close = get_close_matches(key, known, n=1, cutoff=0.6)
    fix = f"{close[0]}: instead of {key}:" if close else f"one of {', '.join(sorted(known)) or 'no fields'}"
    for path, outer in reversed(around):
        if key in outer.get("properties", {}):
            fix = f"{key} at {dotted((*path, key))}, not here (check the indent)"
            break
    return _refused(place, "schema-unknown-field", f"there is no field {key} here", fix)


def _array(place: Place, schema: Schema, around: Around) -> Iterator[Finding]:
    items: Schema = schema.get("items", {})
    for item in place.items():
        yield from _value(item, items, around)
    yield from _count(place, len(place.value), schema, "minItems", "maxItems", "items")
    kind = schema.get("x-kubernetes-list-type")
    if kind not in ("map", "set"):
        return
    keys = schema.get("x-kubernetes-list-map-keys", ()) if kind == "map" else ()
    defaults = {
        key: inner["default"] for key, inner in items.get("properties", {}).items() if "default" in inner
    }
    seen: dict[str, int] = {}
    for item in place.items():
        if kind == "map" and not isinstance(item.value, dict):
            continue
        given = {key: item.value.get(key, defaults.get(key)) for key in keys} if keys else item.value
        named = repr(given)
        if named in seen:
            said = ", ".join(f"{key} {value}" for key, value in given.items()) if keys else in_words(given)
            yield _refused(
                item,
                "schema-duplicate",
                f"{said} is given twice, first as item {seen[named]}",
                "one of the two",
            )
        seen.setdefault(named, int(item.path[-1]))


def _count(place: Place, count: int, schema: Schema, low: str, high: str, noun: str) -> Iterator[Finding]:
    if low in schema and count < schema[low]:
        yield _refused(place, "schema-size", f"there are {count} {noun}", f"at least {schema[low]} of them")
    if high in schema and count > schema[high]:
        yield _refused(
            place, "schema-size", f"{count} {noun}, at most {schema[high]} are allowed", "fewer of them"
        )


def _string(place: Place, schema: Schema) -> Iterator[Finding]:
    value: str = place.value
    if len(value) < schema.get("minLength", 0) or len(value) > schema.get("maxLength", len(value)):
        low, high = schema.get("minLength", 0), schema.get("maxLength", "any number of")
        yield _refused(
            place, "schema-length", f"{len(value)} characters", f"text of {low} to {high} characters"
        )
    pattern = schema.get("pattern")
    if pattern is None:
        return
    compiled = _compiled(pattern)
    if compiled is None:
        yield place.finding(
            "schema-rule-unknown",
            Severity.INFO,
            f"the form of the text was not checked: Python cannot read the pattern {pattern}",
            fix="nothing",
            caught_by=Catcher.SERVER,
            when=_NOT_ASKED,
        )
    elif len(value) > _PATTERN_LIMIT or not compiled.search(value):
        quantity = "numkMGTPE" in pattern
        what = f"{in_words(value)} is not a quantity" if quantity else f"{in_words(value)} has the wrong form"
        yield _refused(
            place, "schema-pattern", what, _quantity_fix(value) if quantity else f"text as {pattern}"
        )


def _quantity_fix(value: str) -> str:
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([kKmMgGtT])i?[bB]?", value.strip())
    if match:
        return f"{match[1]}{match[2].upper()}i, as Kubernetes writes units"
    return "a number with an optional unit, such as 4, 500m, 16Gi or 40G"


@cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """Go's pattern for Python; ``None`` where the two languages differ."""
    # Go's `$` is the end of the text; Python's also comes before a last newline.
    exact = pattern[:-1] + r"\Z" if pattern.endswith("$") and not pattern.endswith(r"\$") else pattern
    flags = re.match(r"(\^?)(\(\?[ims]+\))", exact)  # Go takes flags anywhere, Python at the start
    if flags is not None:
        exact = f"{flags[2]}{flags[1]}{exact[flags.end() :]}"
    try:
        return re.compile(exact)
    except re.error:
        return None


def _number(place: Place, schema: Schema) -> Iterator[Finding]:
    value = place.value
    bits = _INT_BITS.get(schema.get("format", ""))
    if bits and not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        yield _refused(place, "schema-range", f"{value} does not fit {bits} bits", "a smaller number")
    if value < schema.get("minimum", value):
        yield _refused(place, "schema-range", f"{value} is too small", f"at least {schema['minimum']}")
    if value > schema.get("maximum", value):
        yield _refused(place, "schema-range", f"{value} is too large", f"at most {schema['maximum']}")


def _rules(place: Place, schema: Schema) -> Iterator[Finding]:
    """The CEL rules of a schema and of everything below it, with defaults filled in."""
    if not place.is_there:
        return
    for rule in schema.get("x-kubernetes-validations", ()):
        yield from _rule(place, schema, rule)
    for key, inner in place.entries():
        below = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
        if isinstance(below, Mapping) and _has_rules(id(below), below):
            yield from _rules(inner, below)
    items = schema.get("items")
    if isinstance(items, Mapping) and isinstance(place.value, list) and _has_rules(id(items), items):
        for item in place.items():
            yield from _rules(item, items)


def _rule(place: Place, schema: Schema, rule: Mapping[str, Any]) -> Iterator[Finding]:
    text = str(rule["rule"])
    if "oldSelf" in text:
        return  # compares with the object that is already there
    said = str(rule.get("message") or f"failed rule: {text}")
    try:
        holds = evaluate(text, _defaulted(place.value, schema))
    except UnsupportedCel as error:
        yield place.finding(
            "schema-rule-unknown",
            Severity.INFO,
            f"the server's rule `{text}` was not checked: {error}",
            fix="nothing",
            caught_by=Catcher.SERVER,
            when=_NOT_ASKED,
        )
        return
    except CelError as error:
        holds, said = False, f"{said} ({error})"
    if holds is not True:
        yield _refused(place, "schema-rule", said, f"what satisfies `{text}`")


def _defaulted(value: Any, schema: Schema) -> Any:
    """The value as the server sees it: without nulls, with defaults."""
    if isinstance(value, dict):
        properties: Mapping[str, Schema] = schema.get("properties", {})
        full = {key: inner["default"] for key, inner in properties.items() if "default" in inner}
        full |= {key: inner for key, inner in value.items() if inner is not None}
        more = schema.get("additionalProperties")
        below = more if isinstance(more, Mapping) else {}
        return {key: _defaulted(inner, properties.get(key, below)) for key, inner in full.items()}
    if isinstance(value, list):
        return [_defaulted(item, schema.get("items", {})) for item in value]
    return value


_RULED: dict[int, tuple[Schema, bool]] = {}


def _has_rules(identity: int, schema: Schema) -> bool:
    """Whether a schema holds a CEL rule anywhere; most do not, and need no second visit."""
    if identity in _RULED and _RULED[identity][0] is schema:
        return _RULED[identity][1]
    below = [
        *schema.get("properties", {}).values(),
        schema.get("items"),
        schema.get("additionalProperties"),
    ]
    found = "x-kubernetes-validations" in schema or any(
        _has_rules(id(each), each) for each in below if isinstance(each, Mapping)
    )
    _RULED[identity] = (schema, found)  # the schema is kept, so that its identity stays its own
    return found
