"""Schemas of custom resources, out of the text of their definitions (CRDs)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from raytpu.errors import SpecError
from raytpu.lint.yaml_text import NotYaml, YamlDocument, read_documents


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomResource:
    """What one CRD says of one kind."""

    group: str
    kind: str
    versions: Mapping[str, Mapping[str, Any]]
    """The structural schema (``openAPIV3Schema``) of each served version."""
    deprecated: frozenset[str] = frozenset()
    """Versions that the CRD marks as deprecated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomResources:
    """The kinds whose schema is known."""

    resources: tuple[CustomResource, ...] = ()

    def find(self, group: str, kind: str) -> CustomResource | None:
        """The resource of that name, if its CRD was given."""
        return next((each for each in self.resources if (each.group, each.kind) == (group, kind)), None)

    def kinds(self, group: str) -> tuple[str, ...]:
        """Every known kind of an API group."""
        return tuple(each.kind for each in self.resources if each.group == group)


def may_define(text: str, kinds: Iterable[str]) -> bool:
    """Whether the text of a file may hold the CRD of one of ``kinds``: reading a large one takes 0.3 s."""
    names = "|".join(re.escape(kind) for kind in kinds)
    return re.search(rf"[\"']?kind[\"']?\s*:\s*[\"']?({names})[\"']?\s*(?:[,}}\n]|$)", text) is not None


def parse_custom_resources(sources: Iterable[tuple[str, str]]) -> CustomResources:
    """The custom resources that files define; other documents in them are passed over.

    Args:
        sources: name and text of each file, YAML or JSON (as ``kubectl get crd -o json`` prints).

    Raises:
        SpecError: a file cannot be read, or is a CRD without a schema.
    """
    found = []
    for name, text in sources:
        for document in _documents(name, text):
            items = document.get("items") if document.get("kind") == "List" else [document]
            for item in items if isinstance(items, list) else []:
                if isinstance(item, dict) and item.get("kind") == "CustomResourceDefinition":
                    found.append(_resource(name, item))
    return CustomResources(resources=tuple(found))


def _documents(name: str, text: str) -> Iterable[dict[str, Any]]:
    if text.lstrip().startswith("{"):
        try:
            read: list[Any] = [json.loads(text)]
        except ValueError as error:
            raise SpecError(f"{name}: not JSON: {error}") from error
    else:
        read = []
        for document in read_documents(text):
            if isinstance(document, NotYaml):
                raise SpecError(f"{name}, line {document.line}: not YAML: {document.what}")
            assert isinstance(document, YamlDocument)
            read.append(document.value)
    return [document for document in read if isinstance(document, dict)]


def _resource(name: str, definition: dict[str, Any]) -> CustomResource:
    try:
        spec = definition["spec"]
        versions = {
            version["name"]: version["schema"]["openAPIV3Schema"]
            for version in spec["versions"]
            if version.get("served", True)
        }
        deprecated = frozenset(each["name"] for each in spec["versions"] if each.get("deprecated", False))
        return CustomResource(
            group=spec["group"], kind=spec["names"]["kind"], versions=versions, deprecated=deprecated
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise SpecError(
            f"{name}: a CustomResourceDefinition without {error}; expected apiextensions.k8s.io/v1, as "
            "`kubectl get crd -o yaml` prints"
        ) from error
