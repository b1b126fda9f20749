"""The schema that editors use agrees with the parser."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml

from raytpu.spec import workload_schema
from raytpu.topology import slice_shapes
from tests.spec.documents import VALID, changed


def validator() -> jsonschema.Draft202012Validator:
    schema = workload_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_a_valid_document_is_valid_to_an_editor() -> None:
    """Red lines under a right file teach people to ignore the schema."""
    validator().validate(yaml.safe_load(VALID))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("every_steps", "every_step"),
        ("topology: 2x4", "topology: 2x2x2"),
        ("count: 2", "count: 2, alternatives: [2x2x2]"),
        ("count: 2", "count: 2, min_count: 0"),
        ("generation: v6e", "generation: v6"),
        ("name: stdlib-gpt", "name: Stdlib"),
        ("steps: 200", "steps: many"),
        ("pretrain:train", "pretrain.train"),
        ("keep: 3", "keep: 0"),
        ("source: python-stdlib", "source: html"),
        ("fsdp: 8", "fsdp: 0"),
    ],
)
def test_what_one_section_alone_shows_to_be_wrong_is_wrong_to_an_editor(old: str, new: str) -> None:
    """The earlier a mistake is seen, the less it costs."""
    assert not validator().is_valid(yaml.safe_load(changed(old, new)))


def test_every_field_has_a_description() -> None:
    """It is what an editor shows when a person hovers over a key."""

    def undescribed(node: Any, path: str) -> list[str]:
        if not isinstance(node, dict):
            return []
        found = [
            f"{path}.{name}"
            for name, field in node.get("properties", {}).items()
            if "description" not in field
        ]
        return found + [
            hit for key, inner in node.get("$defs", {}).items() for hit in undescribed(inner, key)
        ]

    schema = workload_schema()
    assert undescribed(schema, "workload") == []
    assert "\n" not in schema["$defs"]["Slices"]["properties"]["chips_per_host"]["description"]


def test_an_editor_can_offer_the_topologies_of_each_generation() -> None:
    """v5p has 95; nobody knows them by heart."""
    offered = {
        rule["if"]["properties"]["generation"]["const"]: rule["then"]["properties"]["topology"]["enum"]
        for rule in workload_schema()["$defs"]["Slices"]["allOf"]
    }

    for name, topologies in offered.items():
        assert set(topologies) == {shape.topology for shape in slice_shapes(name)}
