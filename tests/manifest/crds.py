"""The CRDs of KubeRay and Kueue as JSON Schemas, where a checkout has them beside it."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema
import yaml

from tests.lint.manifests import CRDS, skip_without_crds


@cache
def _validators() -> dict[tuple[str, str], jsonschema.Draft7Validator]:
    found = {}
    for path in sorted(CRDS.glob("*.yaml")):
        if path.name.startswith(
            ("ray.io_raycron", "ray.io_rayservices")
        ):  # megabytes that nothing here needs
            continue
        with path.open(encoding="utf-8") as file:
            definition = yaml.load(file, yaml.CSafeLoader)  # 0.3 s a file; PyYAML's own loader takes 3
        spec = definition["spec"]
        for version in spec["versions"]:
            if not version["served"] or version["name"] == "v1alpha1":
                continue
            schema = _strict(version["schema"]["openAPIV3Schema"])
            key = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
            found[key] = jsonschema.Draft7Validator(schema)
    return found


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    """Fields that the CRD does not have are refused, as the API server does in strict validation."""
    strict = dict(schema)
    if "properties" in schema:
        strict["properties"] = {name: _strict(inner) for name, inner in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            strict["additionalProperties"] = False
    if "(?i)" in schema.get("pattern", ""):  # Go takes the flag anywhere, Python at the start alone
        strict["pattern"] = "(?i)" + schema["pattern"].replace("(?i)", "")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            strict[key] = _strict(schema[key])
    return strict


KUBERNETES_OWN = {"v1", "policy/v1", "resource.k8s.io/v1"}
"""Versions that no CRD defines."""


def custom_resource_problems(document: dict[str, Any]) -> list[str]:
    """What the CRD refuses in a document; empty for kinds that are Kubernetes' own.

    Skips the test where no CRDs are at hand.
    """
    skip_without_crds()
    if document["apiVersion"] in KUBERNETES_OWN:
        return []
    validator = _validators()[document["apiVersion"], document["kind"]]
    return [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(document)]
