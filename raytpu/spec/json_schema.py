"""The JSON Schema of the workload document, for editors."""

from __future__ import annotations

from typing import Any

from raytpu.spec.config_keys import MOST, WELL_KNOWN
from raytpu.spec.workload import Workload
from raytpu.topology import GENERATIONS, slice_shapes


def workload_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the document, with a description of every field.

    It also knows the topologies of each generation, so that an editor can offer them. The rules that tie
    sections together, such as the product of the mesh axes, are beyond a schema: ``raytpu plan`` checks them.
    """
    schema = Workload.model_json_schema()
    parts = schema["$defs"]
    _add_topologies(parts["Slices"])
    _add_well_known(parts["Train"])
    name = schema["properties"]["name"]
    name |= {"pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 40}
    parts["Train"]["properties"]["entrypoint"]["pattern"] = r"^[\w.]+:\w+$"
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_for_readers(schema),
        "title": "raytpu workload",
    }


def _for_readers(value: Any) -> Any:
    """Descriptions as editors show them: on one line, and Markdown's backquotes for reST's double ones."""
    if isinstance(value, list):
        return [_for_readers(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: " ".join(inner.split()).replace("``", "`")
        if key == "description" and isinstance(inner, str)
        else _for_readers(inner)
        for key, inner in value.items()
    }


def _add_topologies(slices: dict[str, Any]) -> None:
    slices["properties"]["generation"]["enum"] = list(GENERATIONS)
    slices["allOf"] = [
        {
            "if": {"properties": {"generation": {"const": name}}, "required": ["generation"]},
            "then": {
                "properties": {
                    "topology": {"enum": _topologies(name)},
                    "alternatives": {"items": {"enum": _topologies(name)}},
                }
            },
        }
        for name in GENERATIONS
    ]


def _topologies(generation: str) -> list[str]:
    return list(dict.fromkeys(shape.topology for shape in slice_shapes(generation)))


def _add_well_known(train: dict[str, Any]) -> None:
    described = {
        "steps": "Optimiser steps of the run.",
        "global_batch": "Rows of one step, over all devices of all slices.",
        "sequence_length": "Tokens of one row.",
        "seed": "Seed of the order of the data, and of what the entrypoint draws.",
    }
    train["properties"]["config"]["properties"] = {
        key: {"type": "integer", "minimum": least, "maximum": MOST, "description": described[key]}
        for key, least in WELL_KNOWN.items()
    }
