"""The part of CEL that CRDs use means what CEL says."""

from __future__ import annotations

import pytest

from raytpu.lint.cel import CelError, UnsupportedCel, evaluate

VALUE = {"a": 1, "text": "tpu-v6e", "list": [1, 2, 2], "rows": [{"k": "x"}, {"k": "y", "v": 1}], "empty": {}}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("self.a == 1 && self.text != 'x'", True),
        ("has(self.b) ? self.b : self.a + 1 == 2", True),
        ("!has(self.a) || self.a in [1, 2]", True),
        ("self.list.all(x, x > 0) && self.list.exists(x, x == 2)", True),
        ("self.list.exists_one(x, x == 2)", False),
        ("size(self.list.filter(i, size(self.list.filter(j, j == i)) > 1)) == 0", False),
        ("self.list[size(self.list) - 1] == 2", True),
        ("self.rows.all(r, !has(r.v)) || self.rows.map(r, r.k) == ['x', 'y']", True),
        ("self.text.startsWith(\"tpu\") && self.text.matches('v[0-9]e$') && self.text.size() == 7", True),
        ("self.missing == 1 || true", True),
        ("false && self.missing == 1", False),
        ("self.empty.size() >= 1", False),
        ("-self.a < 0 && (2 + 3) * 2 == 10 && 7 / 2 == 3", True),
        ("true == 1", False),
    ],
)
def test_a_rule_has_the_value_that_cel_gives_it(rule: str, expected: bool) -> None:
    """A rule that is read differently passes what the server refuses."""
    assert evaluate(rule, VALUE) is expected


@pytest.mark.parametrize(
    "rule", ["self.missing == 1", "self.a < 'x'", "self.list[9] == 1", "size(self.a) == 1", "!self.a"]
)
def test_what_the_server_cannot_evaluate_is_an_error(rule: str) -> None:
    """The server refuses the object then."""
    with pytest.raises(CelError):
        evaluate(rule, VALUE)


@pytest.mark.parametrize(
    "rule", ["quantity(self.a) > 1", "self.a ==", "self.text.lowerAscii() == 'x'", "other.a", "a # b"]
)
def test_what_is_beyond_is_said_and_not_guessed(rule: str) -> None:
    """A wrong answer is worse than none."""
    with pytest.raises(UnsupportedCel):
        evaluate(rule, VALUE)
