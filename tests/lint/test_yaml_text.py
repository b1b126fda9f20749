"""YAML is read as kubectl reads it, and nothing that is written can take the reader down."""

from __future__ import annotations

import pytest

from raytpu.lint import lint_text
from raytpu.lint.yaml_text import NotYaml, YamlDocument, read_documents
from tests.lint.manifests import V6E


def values(text: str) -> list[object]:
    read = list(read_documents(text))
    assert all(isinstance(each, YamlDocument) for each in read), read
    return [each.value for each in read if isinstance(each, YamlDocument)]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("N", False),
        ("on", True),
        ("'on'", "on"),
        ("!!str 4", "4"),
        ("0777", 511),
        ("0x1F", 31),
        ("1e3", 1000.0),
        ("1_000", 1000),
        ("12:30", "12:30"),
        ("2026-11-30", "2026-11-30"),
        ("~", None),
        ("1.2.3", "1.2.3"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_a_plain_value_is_what_kubectl_sends(written: str, read: object) -> None:
    """A variable called N became false on a real cluster; another reading here would not see it."""
    value = values(f"a: {written}")[0]["a"]  # type: ignore[index]

    assert value == read or value == float(written)
    assert isinstance(value, float) or type(value) is type(read)


def test_every_key_and_item_knows_its_line() -> None:
    """A finding without a line is a search through four hundred of them."""
    document = next(iter(read_documents("a:\n  b:\n  - 1\n  - c: 2\n---\nd: 3\n")))

    assert isinstance(document, YamlDocument)
    assert document.lines == {
        (): 1,
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "b", 0): 3,
        ("a", "b", 1): 4,
        ("a", "b", 1, "c"): 4,
    }


def test_of_a_key_given_twice_the_last_counts_and_both_lines_are_told() -> None:
    """The API server never sees the first one."""
    found = lint_text(V6E.replace("    numOfHosts: 4\n", "    numOfHosts: 4\n    numOfHosts: 4\n"))

    assert [(each.rule, each.line) for each in found if each.rule == "yaml-key-twice"] == [
        ("yaml-key-twice", 19)
    ]


def test_anchors_and_merges_are_followed() -> None:
    """Manifests share pod templates that way."""
    assert values("a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}\n") == [
        {"a": {"b": 1, "c": 2}, "d": {"c": 3, "b": 1}}
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[" * 100_000, 1),
        ("a: " + "{b: " * 200 + "1" + "}" * 200, 1),
        (
            "a: &a [x,x,x,x]\n"
            + "".join(
                f"{c}: &{c} [{','.join([f'*{p}'] * 9)}]\n"
                for p, c in zip("abcdefgh", "bcdefghi", strict=True)
            ),
            1,
        ),
        ("a: &a [*a]", 1),
        ("a: \x00", 1),
        ("a: 1\nb: {{ .Values.hosts }}", 2),
        ("a:\n  b: 1\n c: 2", 3),
        ("a: 'b", 1),
    ],
    ids=["deep", "nested", "multiplying", "itself", "zero", "template", "indent", "quote"],
)
def test_what_cannot_be_read_is_one_finding_with_its_line(text: str, line: int) -> None:
    """A linter that hangs or dies on a broken file blocks everybody's commit."""
    found = lint_text(text, file="broken.yaml")

    assert [(each.rule, each.file) for each in found] == [("yaml", "broken.yaml")]
    assert abs(found[0].line - line) <= 1
    assert isinstance(list(read_documents(text))[-1], NotYaml)


def test_documents_before_a_broken_one_are_linted() -> None:
    """One broken document must not hide a wrong slice in another."""
    found = lint_text(f"{V6E.replace('numOfHosts: 4', 'numOfHosts: 2')}---\na: 'b\n")

    assert {each.rule for each in found} >= {"tpu-hosts", "yaml"}


def test_other_kinds_are_left_alone_and_lists_are_opened() -> None:
    """People keep Services and ConfigMaps in the same file, and `kubectl get -o yaml` prints a List."""
    other = "apiVersion: v1\nkind: Service\nmetadata: {name: UPPER}\n---\njust text\n---\n"
    listed = (
        "apiVersion: v1\nkind: List\nitems:\n"
        "- apiVersion: ray.io/v1\n  kind: RayJob\n  metadata: {name: a}\n  spec: {}\n"
    )

    assert lint_text(other) == ()
    assert [each.path for each in lint_text(listed) if each.rule == "job-cluster"] == [
        "items[0].spec.rayClusterSpec"
    ]
