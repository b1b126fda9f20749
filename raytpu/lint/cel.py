"""The part of CEL (Common Expression Language) that the rules of CRDs are written in.

Literals, fields, indices, ``! - * / + == != < <= > >= in && || ?:``, ``has()``, ``size()``, ``all``,
``exists``, ``exists_one``, ``filter``, ``map``, ``contains``, ``startsWith``, ``endsWith``, ``matches``. What
is beyond raises ``UnsupportedCel`` instead of guessing. Covers every rule of KubeRay 1.7 and Kueue 0.19 that
does not compare with an older object. https://github.com/google/cel-spec/blob/master/doc/langdef.md
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

Scope = Mapping[str, Any]
Expression = Callable[[Scope], Any]


class CelError(Exception):
    """Evaluating failed: a field that is not there, or types that do not go together."""


class UnsupportedCel(Exception):
    """An expression beyond the part that is implemented."""


def evaluate(rule: str, value: Any) -> Any:
    """The result of a rule with ``self`` as the value.

    Raises:
        CelError: as the server would refuse the object.
        UnsupportedCel: the rule is beyond this module.
    """
    return _parsed(rule)({"self": value})


@cache
def _parsed(rule: str) -> Expression:
    parser = _Parser(rule)
    parsed = parser.ternary()
    if parser.peek():
        raise UnsupportedCel(f"cannot read it from {parser.peek()!r} on")
    return parsed


_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]+)?)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<sign>&&|\|\||[=!<>]=|[-+*/<>!?:.,()\[\]]))"
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_CONSTANTS = {"true": True, "false": False, "null": None}
_LEVELS = (("==", "!=", "<", "<=", ">", ">=", "in"), ("+", "-"), ("*", "/"))


class _Parser:
    """Recursive descent; each method reads one level of precedence and returns how to evaluate it."""

    def __init__(self, rule: str) -> None:
        self._tokens: list[str] = []
        at, text = 0, rule.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise UnsupportedCel(f"cannot read it from {text[at : at + 20]!r} on")
            self._tokens.append(match[0].strip())
            at = match.end()
        self._at = 0

    def peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, expected: str = "") -> str:
        token = self.peek()
        if not token or (expected and token != expected):
            raise UnsupportedCel(f"expected {expected or 'more'}, found {token or 'the end'}")
        self._at += 1
        return token

    def _accept(self, token: str) -> bool:
        if self.peek() != token:
            return False
        self._at += 1
        return True

    def ternary(self) -> Expression:
        condition = self._or()
        if not self._accept("?"):
            return condition
        yes = self.ternary()
        self._take(":")
        no = self.ternary()
        return lambda scope: yes(scope) if _truth(condition(scope)) else no(scope)

    def _or(self) -> Expression:
        parts = [self._and()]
        while self._accept("||"):
            parts.append(self._and())
        return (
            parts[0]
            if len(parts) == 1
            else lambda scope: _joined([(part, scope) for part in parts], decides=True)
        )

    def _and(self) -> Expression:
        parts = [self._binary(0)]
        while self._accept("&&"):
            parts.append(self._binary(0))
        return (
            parts[0]
            if len(parts) == 1
            else lambda scope: _joined([(part, scope) for part in parts], decides=False)
        )

    def _binary(self, level: int) -> Expression:
        if level == len(_LEVELS):
            return self._unary()
        left = self._binary(level + 1)
        while self.peek() in _LEVELS[level]:
            left = _operation(self._take(), left, self._binary(level + 1))
        return left

    def _unary(self) -> Expression:
        if self._accept("!"):
            inner = self._unary()
            return lambda scope: not _truth(inner(scope))
        if self._accept("-"):
            inner = self._unary()
            return lambda scope: _operate("-", 0, inner(scope))
        return self._member()

    def _member(self) -> Expression:
        value = self._primary()
        while self.peek() in (".", "["):
            if self._accept("["):
                value = _indexed(value, self.ternary())
                self._take("]")
                continue
            self._take(".")
            name = self._take()
            value = self._call(value, name) if self._accept("(") else _field(value, name)
        return value

    def _call(self, target: Expression, name: str) -> Expression:
        if name in ("all", "exists", "exists_one", "filter", "map"):
            variable = self._take()
            self._take(",")
            body = self.ternary()
            self._take(")")
            return lambda scope: _macro(name, target(scope), variable, body, scope)
        arguments = self._list(")")
        if name == "size" and not arguments:
            return lambda scope: _size(target(scope))
        if name in ("contains", "startsWith", "endsWith", "matches") and len(arguments) == 1:
            return lambda scope: _text_test(name, target(scope), arguments[0](scope))
        raise UnsupportedCel(f"the function {name} is not known")

    def _primary(self) -> Expression:
        token = self._take()
        if token == "(":
            inner = self.ternary()
            self._take(")")
            return inner
        if token == "[":
            items = self._list("]")
            return lambda scope: [item(scope) for item in items]
        if token[0] in "'\"":
            text = re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), token[1:-1])
            return lambda scope: text  # noqa: ARG005
        if token[0].isdigit():
            number = float(token) if "." in token else int(token)
            return lambda scope: number  # noqa: ARG005
        if token in _CONSTANTS:
            constant = _CONSTANTS[token]
            return lambda scope: constant  # noqa: ARG005
        if self._accept("("):
            return self._function(token)
        if not re.fullmatch(r"[A-Za-z_]\w*", token):
            raise UnsupportedCel(f"unexpected {token}")
        return lambda scope: _variable(scope, token)

    def _function(self, name: str) -> Expression:
        if name == "has":
            path = self._member_path()
            return lambda scope: _has(path[0](scope), path[1])
        arguments = self._list(")")
        if name == "size" and len(arguments) == 1:
            return lambda scope: _size(arguments[0](scope))
        raise UnsupportedCel(f"the function {name} is not known")

    def _member_path(self) -> tuple[Expression, str]:
        """``has(a.b.c)``: what holds the last field, and its name."""
        name = self._take()
        holder: Expression = lambda scope: _variable(scope, name)  # noqa: E731
        self._take(".")
        last = self._take()
        while self._accept("."):
            holder, last = _field(holder, last), self._take()
        self._take(")")
        return holder, last

    def _list(self, end: str) -> list[Expression]:
        items: list[Expression] = []
        while not self._accept(end):
            if items:
                self._take(",")
            items.append(self.ternary())
        return items


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise CelError("a condition that is neither true nor false")
    return value


def _joined(parts: Iterable[tuple[Expression, Scope]], *, decides: bool) -> bool:
    """``&&``, ``||``, ``all`` and ``exists``: an error counts only if no other part decides, in any order."""
    failed: CelError | None = None
    for part, scope in parts:
        try:
            if _truth(part(scope)) is decides:
                return decides
        except CelError as error:
            failed = error
    if failed is not None:
        raise failed
    return not decides


def _variable(scope: Scope, name: str) -> Any:
    if name not in scope:
        raise UnsupportedCel(f"the name {name} is not known")
    return scope[name]


def _field(holder: Expression, name: str) -> Expression:
    def read(scope: Scope) -> Any:
        value = holder(scope)
        if not isinstance(value, dict) or name not in value:
            raise CelError(f"no such key: {name}")
        return value[name]

    return read


def _has(value: Any, name: str) -> bool:
    if not isinstance(value, dict):
        raise CelError(f"no fields to look for {name} in")
    return name in value


def _indexed(holder: Expression, index: Expression) -> Expression:
    def read(scope: Scope) -> Any:
        value, at = holder(scope), index(scope)
        if isinstance(value, dict) and at in value:
            return value[at]
        if isinstance(value, list) and isinstance(at, int) and 0 <= at < len(value):
            return value[at]
        raise CelError(f"no item {at}")

    return read


def _operation(sign: str, left: Expression, right: Expression) -> Expression:
    return lambda scope: _operate(sign, left(scope), right(scope))


def _operate(sign: str, left: Any, right: Any) -> Any:
    if sign in ("==", "!="):
        same = left == right and isinstance(left, bool) == isinstance(right, bool)
        return same if sign == "==" else not same
    try:
        match sign:
            case "in":
                return left in right
            case "<":
                return left < right
            case "<=":
                return left <= right
            case ">":
                return left > right
            case ">=":
                return left >= right
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case "/":
                return left / right if isinstance(left, float) else _divided(left, right)
    except (TypeError, ArithmeticError) as error:
        raise CelError(f"{sign} does not apply: {error}") from error
    raise UnsupportedCel(f"the operator {sign} is not known")


def _divided(left: int, right: int) -> int:
    """Towards zero, as CEL does."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _size(value: Any) -> int:
    if not isinstance(value, list | dict | str):
        raise CelError("no size")
    return len(value)


def _text_test(name: str, text: Any, argument: Any) -> bool:
    if not isinstance(text, str) or not isinstance(argument, str):
        raise CelError(f"{name} of what is no text")
    match name:
        case "contains":
            return argument in text
        case "startsWith":
            return text.startswith(argument)
        case "endsWith":
            return text.endswith(argument)
    return re.search(argument, text) is not None


def _macro(name: str, values: Any, variable: str, body: Expression, scope: Scope) -> Any:
    if not isinstance(values, list | dict):
        raise CelError(f"{name} of what is neither a list nor a mapping")
    each = [(value, {**scope, variable: value}) for value in values]
    match name:
        case "map":
            return [body(inner) for _, inner in each]
        case "filter":
            return [value for value, inner in each if _truth(body(inner))]
        case "exists_one":
            return sum(_truth(body(inner)) for _, inner in each) == 1
    decides = name == "exists"
    return _joined([(body, inner) for _, inner in each], decides=decides)
