"""Lints the text of a file: reads its documents, asks every rule, and puts the findings in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from raytpu.lint.cluster_rules import check_cluster
from raytpu.lint.custom_resources import CustomResources
from raytpu.lint.findings import Catcher, Finding, Severity
from raytpu.lint.job_rules import check_job, check_queue
from raytpu.lint.metadata_rules import check_kind, check_metadata
from raytpu.lint.multislice_rules import check_multislice
from raytpu.lint.operator_rules import check_operator
from raytpu.lint.places import Place
from raytpu.lint.ray_documents import GROUP, RAY_KINDS, ray_cluster, ray_job
from raytpu.lint.schema import check_schema
from raytpu.lint.service_rules import check_service
from raytpu.lint.tpu_rules import check_slices
from raytpu.lint.webhook_rules import check_webhook
from raytpu.lint.yaml_text import NotYaml, read_documents

_GROUPS = (GROUP, "kueue.x-k8s.io")
_SEVERITIES = list(Severity)
_IGNORE = re.compile(r"#\s*raytpu:\s*ignore=([a-z0-9,\s-]+)")


def lint_text(text: str, *, file: str = "-", crds: CustomResources | None = None) -> tuple[Finding, ...]:
    """Every finding about the KubeRay and Kueue documents in a file, by line; other kinds are left alone.

    A line with the comment ``# raytpu: ignore=RULE`` keeps the findings of those rules to itself.

    Args:
        file: its name, for the findings.
        crds: schemas of the kinds. A kind without one gets an info that its schema was not checked.
    """
    found = list(_found(text, file, crds or CustomResources()))
    lines = text.splitlines()
    kept = [each for each in _said_once(found) if each.rule not in _ignored(lines, each.line)]
    return tuple(sorted(kept, key=lambda each: (each.line, _SEVERITIES.index(each.severity), each.path)))


def _said_once(found: list[Finding]) -> Iterator[Finding]:
    """Without repetitions; an info about something outside of the file is one, wherever it is named."""
    infos = set()
    for finding in dict.fromkeys(found):
        if finding.severity is Severity.INFO:
            if (finding.rule, finding.what) in infos:
                continue
            infos.add((finding.rule, finding.what))
        yield finding


def _ignored(lines: list[str], line: int) -> set[str]:
    match = _IGNORE.search(lines[line - 1]) if 0 < line <= len(lines) else None
    return {rule.strip() for rule in match[1].split(",")} if match else set()


def _found(text: str, file: str, crds: CustomResources) -> Iterator[Finding]:
    unchecked: dict[str, Place] = {}
    for document in read_documents(text):
        if isinstance(document, NotYaml):
            yield _not_yaml(document, file)
            continue
        root = Place(file, document, (), document.value)
        twice = [_twice(root, each.path, each.line, each.first_line) for each in document.twice]
        listed = root.at("kind").text == "List" and root.at("apiVersion").text == "v1"
        ours = [each for each in (root.at("items").items() if listed else [root]) if _is_ours(each)]
        yield from twice if ours else ()
        for place in ours:
            yield from _document(place, crds, unchecked)
    if unchecked:
        first = next(iter(unchecked.values()))
        yield replace(
            first.finding(
                "schema-unknown",
                Severity.INFO,
                f"the schema of {', '.join(unchecked)} was not checked: no CRD was given",
                fix="raytpu lint --crds DIR (or RAYTPU_CRDS), with what `kubectl get crd -o yaml` prints",
                caught_by=Catcher.SERVER,
                when="it refuses `kubectl apply` for unknown fields and wrong types",
            ),
            path="",
        )


def _is_ours(document: Place) -> bool:
    group = (document.at("apiVersion").text or "").partition("/")[0]
    return group in _GROUPS or (
        document.at("kind").text in RAY_KINDS and not document.at("apiVersion").is_there
    )


def _document(document: Place, crds: CustomResources, unchecked: dict[str, Place]) -> Iterator[Finding]:
    yield from check_kind(document)
    yield from check_metadata(document)
    refused = list(_schema(document, crds, unchecked))
    meant = _misspelt(refused)
    yield from (each for each in refused if each.rule != "schema-required" or each.path not in meant)
    cluster, job = ray_cluster(document), ray_job(document)
    found: list[Finding] = []
    if cluster is not None:
        slices = list(check_slices(cluster))
        found += [*slices, *check_webhook(cluster, slices), *check_multislice(cluster)]
        found += [*check_operator(cluster), *check_cluster(cluster)]
    if job is not None:
        found += [*check_job(job, document.at("kind").text or ""), *check_queue(document)]
    if document.at("kind").text == "RayService":
        found += check_service(document, cluster)
    yield from (each for each in found if not each.path.startswith(meant))


def _misspelt(refused: list[Finding]) -> tuple[str, ...]:
    """Paths of fields that are only missing because they are misspelt or misplaced: one slip, one finding."""
    meant = []
    for finding in refused:
        if finding.rule != "schema-unknown-field":
            continue
        if match := re.fullmatch(r"(\S+): instead of (\S+):", finding.fix):
            meant.append(f"{finding.path.removesuffix(match[2])}{match[1]}")
        elif match := re.fullmatch(r"\S+ at (\S+), not here .*", finding.fix):
            meant.append(match[1])
    return tuple(meant)


def _schema(document: Place, crds: CustomResources, unchecked: dict[str, Place]) -> Iterator[Finding]:
    group, _, version = (document.at("apiVersion").text or "").partition("/")
    kind = document.at("kind").text or ""
    resource = crds.find(group, kind)
    if resource is None:
        if group == GROUP and kind in RAY_KINDS:
            unchecked.setdefault(kind, document)
        return
    if version in resource.versions:
        yield from check_schema(document, resource.versions[version])
    elif group != GROUP or version == "v1":  # what KubeRay never had is told by check_kind
        yield document.at("apiVersion").finding(
            "api-version",
            Severity.ERROR,
            f"the CRD of {kind} has no version {version}",
            fix=f"apiVersion: {group}/{' or '.join(resource.versions)}",
            caught_by=Catcher.SERVER,
            when="it refuses `kubectl apply`",
        )


def _not_yaml(problem: NotYaml, file: str) -> Finding:
    return Finding(
        file=file,
        line=problem.line,
        path="",
        rule="yaml",
        severity=Severity.ERROR,
        what=f"not YAML: {problem.what}",
        fix="YAML; of a template, what it renders to: `envsubst < FILE | raytpu lint -`",
        caught_by=Catcher.SERVER,
        when="kubectl itself cannot read the file",
    )


def _twice(root: Place, path: tuple[str | int, ...], line: int, first: int) -> Finding:
    place = Place(root.file, root.document, path, None)
    return replace(
        place.finding(
            "yaml-key-twice",
            Severity.ERROR,
            f"{path[-1]} is given twice, first on line {first}; the last one counts",
            fix="one of the two",
            caught_by=Catcher.NOBODY,
            when="the first value has no effect",
        ),
        line=line,
    )
