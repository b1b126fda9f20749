"""A CRD's schema is applied as the API server applies it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from raytpu.errors import SpecError
from raytpu.lint import (
    Catcher,
    CustomResources,
    Finding,
    Severity,
    lint_text,
    may_define,
    parse_custom_resources,
)
from tests.lint.manifests import READS_CRDS, V6E, crds_or_skip

pytestmark = READS_CRDS

SPEC: dict[str, Any] = {
    "type": "object",
    "required": ["hosts"],
    "properties": {
        "hosts": {"type": "integer", "format": "int32", "minimum": 1},
        "mode": {"type": "string", "enum": ["Fast", "Slow"]},
        "wide": {"type": "boolean"},
        "memory": {"x-kubernetes-int-or-string": True, "pattern": "^[0-9]+(Gi|m)?$"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "ports": {
            "type": "array",
            "maxItems": 3,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["port", "protocol"],
            "items": {
                "type": "object",
                "properties": {"port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}},
            },
        },
        "pair": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string", "default": "x"}},
            "x-kubernetes-validations": [{"rule": "!has(self.a) || self.a != self.b", "message": "a is b"}],
        },
        "size": {"type": "string", "pattern": "^(?i)(small|large)$"},
        "posix": {"type": "string", "pattern": "^[a-z]\\z(?i)$"},
        "odd": {"type": "string", "x-kubernetes-validations": [{"rule": "url(self).getHost() == 'x'"}]},
    },
}


def crd(spec: dict[str, Any]) -> CustomResources:
    definition = {
        "kind": "CustomResourceDefinition",
        "spec": {
            "group": "kueue.x-k8s.io",
            "names": {"kind": "Thing"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}},
                }
            ],
        },
    }
    return parse_custom_resources([("thing.json", json.dumps(definition))])


def found_in(spec: str) -> list[Finding]:
    text = f"apiVersion: kueue.x-k8s.io/v1\nkind: Thing\nmetadata: {{name: a}}\nspec: {spec}\n"
    return list(lint_text(text, crds=crd(SPEC)))


@pytest.mark.parametrize(
    "spec",
    [
        "{hosts: 4}",
        "{hosts: 4.0, wide: off, mode: Fast, memory: 16Gi}",
        "{hosts: 1, memory: 16, labels: {a: b}, any: {x: [1]}}",
        "{hosts: 1, mode: null, ports: [{port: 1}, {port: 1, protocol: UDP}]}",
        "{hosts: 1, pair: {a: z}}",
        "{hosts: 1, size: Large}",
    ],
)
def test_what_the_schema_allows_passes(spec: str) -> None:
    """Nulls count as missing and defaults as given, or right manifests would fail."""
    assert found_in(spec) == []


@pytest.mark.parametrize(
    ("spec", "rule", "path", "fix"),
    [
        ("{host: 1}", "schema-unknown-field", "spec.host", "hosts: instead of host:"),
        ("{}", "schema-required", "spec.hosts", "hosts: a whole number"),
        ("{hosts: '4'}", "schema-type", "spec.hosts", "hosts: 4, without quotes"),
        ("{hosts: 4.5}", "schema-type", "spec.hosts", "hosts: a whole number"),
        ("{hosts: 0}", "schema-range", "spec.hosts", "at least 1"),
        ("{hosts: 3000000000}", "schema-range", "spec.hosts", "a smaller number"),
        ("{hosts: 1, mode: fast}", "schema-enum", "spec.mode", "mode: Fast"),
        ("{hosts: 1, labels: {a: yes}}", "schema-type", "spec.labels.a", 'a: "true", in quotes'),
        ("{hosts: 1, memory: 16GB}", "schema-pattern", "spec.memory", "text as ^"),
        ("{hosts: 1, size: Larger}", "schema-pattern", "spec.size", "text as ^"),
        ("{hosts: 1, memory: 0.5}", "schema-type", "spec.memory", 'memory: "0.5", in quotes'),
        (
            "{hosts: 1, ports: [{port: 1}, {port: 1, protocol: TCP}]}",
            "schema-duplicate",
            "spec.ports[1]",
            "one",
        ),
        ("{hosts: 1, ports: [{}, {port: 1}, {port: 2}, {port: 3}]}", "schema-size", "spec.ports", "fewer"),
        (
            "{hosts: 1, ports: [{port: 1, mode: Fast}]}",
            "schema-unknown-field",
            "spec.ports[0].mode",
            "at spec.mode",
        ),
        ("{hosts: 1, pair: {a: x}}", "schema-rule", "spec.pair", "self.a != self.b"),
        ("[1]", "schema-type", "spec", "a mapping"),
    ],
)
def test_what_the_schema_refuses_is_told_with_what_to_write(
    spec: str, rule: str, path: str, fix: str
) -> None:
    """The server says what is wrong; a linter says what to write."""
    errors = [each for each in found_in(spec) if each.rule == rule and each.path == path]

    assert len(errors) == 1, found_in(spec)
    assert fix in errors[0].fix
    assert (errors[0].severity, errors[0].caught_by) == (Severity.ERROR, Catcher.SERVER)


@pytest.mark.parametrize("value", ["${HOSTS}", "$HOSTS", "{{ hosts }}"])
def test_a_value_that_is_still_a_template_is_a_warning(value: str) -> None:
    """Repositories keep manifests for envsubst; a hook must not fail on each of them."""
    found = found_in(f"{{hosts: '{value}'}}")

    assert [(each.rule, each.severity) for each in found] == [("schema-type", Severity.WARNING)]
    assert "envsubst" in found[0].fix


@pytest.mark.parametrize("field", ["odd", "posix"])
def test_a_rule_that_cannot_be_evaluated_is_told_and_not_guessed(field: str) -> None:
    """Silence would read as a pass."""
    assert [(each.rule, each.severity) for each in found_in(f"{{hosts: 1, {field}: x}}")] == [
        ("schema-rule-unknown", Severity.INFO)
    ]


def test_a_misspelt_field_is_one_finding() -> None:
    """numOfHost for numOfHosts would also be a wrong number of hosts, which confuses more than it helps."""
    found = lint_text(V6E.replace("numOfHosts", "numOfHost"), crds=crds_or_skip())

    assert [each.rule for each in found] == ["schema-unknown-field"]


def test_a_misspelt_required_field_is_one_finding() -> None:
    """That it is missing follows."""
    assert [each.fix for each in found_in("{host: 1}")] == ["hosts: instead of host:"]


def test_a_version_that_the_crd_does_not_have_is_an_error() -> None:
    """kubectl says: no matches for kind."""
    text = "apiVersion: kueue.x-k8s.io/v2\nkind: Thing\nmetadata: {name: a}\n"

    assert [each.fix for each in lint_text(text, crds=crd(SPEC))] == ["apiVersion: kueue.x-k8s.io/v1"]


@pytest.mark.parametrize("text", ["{", "a: 'b", '{"kind": "CustomResourceDefinition"}'])
def test_a_broken_crd_is_refused_with_its_name(text: str) -> None:
    """Linting on without the schema would pass what the server refuses."""
    with pytest.raises(SpecError, match="broken"):
        parse_custom_resources([("broken", text)])


def test_a_file_that_cannot_define_a_kind_need_not_be_parsed() -> None:
    """Each large CRD takes a third of a second to read."""
    assert may_define("  names:\n    kind: RayJob\n", {"RayJob"})
    assert may_define('{"names":{"kind":"RayJob","plural":"rayjobs"}}', {"RayJob"})
    assert not may_define("  names:\n    kind: RayJobs\n", {"RayJob"})


def test_the_rules_of_kueue_are_evaluated() -> None:
    """A new release may bring rules that need more of CEL; this tells."""
    crds = crds_or_skip(("ClusterQueue", "ResourceFlavor", "Topology"))
    flavor = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: ResourceFlavor\nmetadata: {name: a}\nspec: "
    toleration = "{key: a, operator: Exists, value: b}"

    assert lint_text(flavor + "{tolerations: [{key: a, operator: Exists}]}", crds=crds) == ()
    found = lint_text(
        flavor + f"{{topologyName: t, nodeLabels: {{}}, tolerations: [{toleration}]}}", crds=crds
    )
    assert sorted(each.path for each in found) == ["spec", "spec.tolerations"]
    assert {each.rule for each in found} == {"schema-rule"}
