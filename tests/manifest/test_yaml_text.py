"""YAML that every reader reads alike, with comments where they belong."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from raytpu.manifest import Noted, plain, yaml_text

AMBIGUOUS = [
    "true",
    "No",
    "on",
    "y",
    "null",
    "~",
    "",
    " ",
    "4",
    "1e3",
    "0x10",
    "012",
    "1_000",
    "12:30",
    "2026-11-30",
    "4.5",
    ".5",
    "-",
    "- a",
    "a: b",
    "a #b",
    "#a",
    "{}",
    "[a",
    "a:",
    "'a'",
    '"a"',
    "*a",
    "&a",
    "!a",
    "%a",
    "@a",
    "`a`",
    "a\tb",
    "a, b",
    "=",
    "<<",
    "über 4x4",
]
CHARACTERS = "".join(map(chr, range(32, 127))) + "\n\r\t\0\x85\xa0éß\u2028\ufeff日\U0001f600"
"""What YAML treats each in its own way. Hypothesis takes seconds to make its table of all characters."""
SHAPES = ["a\nb", "a\nb\n", "\na\n", " a\nb", "a\n\n", "a \nb", "a\n\nb\n", "tab\there\nb", "# no comment\nb"]


@pytest.mark.parametrize("text", [*AMBIGUOUS, *SHAPES])
def test_text_stays_text(text: str) -> None:
    """A node label `true` without quotes is refused by the API server as a boolean."""
    document = {"key": text, "list": [text, {text or "empty": text}]}

    assert yaml.safe_load(yaml_text([document], "")) == document


@given(st.text(CHARACTERS, max_size=20))
@settings(max_examples=50)
def test_any_text_comes_back(text: str) -> None:
    """A workload file may hold any letter, and becomes the text of a ConfigMap."""
    document = {"key": text, "list": [text]}

    assert yaml.load(yaml_text([document], ""), yaml.CSafeLoader) == document


@pytest.mark.parametrize(
    "text", ["a", "4x4", "2x2x4", "16Gi", "google.com/tpu", "host:5000/a/b:0.1.0", "/gcs"]
)
def test_usual_values_stand_without_quotes(text: str) -> None:
    """Quotes everywhere hide those that matter."""
    assert yaml_text([{"key": text}], "").endswith(f"key: {text}\n")


def test_a_document_reads_as_a_person_would_write_it() -> None:
    """It is read and changed by people, and compared by git."""
    document = {
        "kind": "Thing",
        "empty": {},
        "none": [],
        "spec": Noted(
            {
                "replicas": Noted(2, "Slices, not hosts."),
                "ports": [
                    Noted({"name": "gcs", "port": 6379}, "Of the head."),
                    {"name": Noted("b", "First.")},
                ],
                "words": ["a", Noted("b", "Second.")],
                "ready": True,
            },
            "What is wanted.",
        ),
    }

    assert (
        yaml_text([document, {"kind": "Other"}], "Two\nlines")
        == """\
# Two
# lines
kind: Thing
empty: {}
none: []
# What is wanted.
spec:
  # Slices, not hosts.
  replicas: 2
  ports:
    # Of the head.
    - name: gcs
      port: 6379
    # First.
    - name: b
  words:
    - a
    # Second.
    - b
  ready: true
---
kind: Other
"""
    )


def test_comments_are_no_part_of_a_document() -> None:
    """What is validated must be what is applied."""
    document = {"a": Noted([Noted({"b": Noted(1, "x")}, "y")], "z")}

    assert plain(document) == {"a": [{"b": 1}]}
    assert yaml.safe_load(yaml_text([document], "c")) == plain(document)
