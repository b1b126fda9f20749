"""Names, labels and versions of a document: what the API server checks beside the schema, and lengths."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from raytpu.lint.findings import Catcher, Finding, Severity
from raytpu.lint.places import Place
from raytpu.lint.ray_documents import GROUP, RAY_KINDS
from raytpu.lint.schema import in_words

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")

# KubeRay 1.7.0, ray-operator/controllers/ray/utils/constant.go: names grow by suffixes up to 63 characters.
_NAME_LIMITS = {"RayCluster": 53, "RayJob": 47, "RayService": 47, "RayCronJob": 36}
_REFUSES = "it refuses `kubectl apply`"


def check_metadata(document: Place) -> Iterator[Finding]:
    """Name, labels and annotations of a document."""
    metadata = document.at("metadata")
    name, kind = metadata.at("name"), document.at("kind").text or ""
    if not isinstance(metadata.value, dict) or not (name.is_there or metadata.at("generateName").is_there):
        yield _refused(name, "name", "the document has no name", "metadata: {name: my-cluster}")
    elif name.is_there:
        yield from _name(name, kind)
    for field in ("labels", "annotations"):
        yield from _texts(metadata.at(field))
    for key, value in metadata.at("labels").entries():
        what = wrong_label(key, value.value)
        if what and value.text is not None:
            yield _refused(value, "label", what, label_fix(key, value.value))


def _name(name: Place, kind: str) -> Iterator[Finding]:
    text = name.text
    if text is None:
        yield _refused(name, "name", f"expected text, got {in_words(name.value)}", "a name in quotes")
        return
    if len(text) > 253 or not _SUBDOMAIN.fullmatch(text):
        what = f"{in_words(text)} is not a name: lower-case letters, digits and hyphens"
        yield _refused(name, "name", what, f"name: {dns_name(text)}")
        return
    limit = _NAME_LIMITS.get(kind)
    if limit is None:
        return
    event = "InvalidRayClusterMetadata" if kind == "RayCluster" else "ValidationFailed"
    if len(text) > limit:
        yield name.finding(
            "name-length",
            Severity.ERROR,
            f"the name has {len(text)} characters; of a {kind} it may have {limit}, because names of "
            "services and pods grow from it",
            fix=f"name: at most {limit} characters, such as {text[:limit].rstrip('-')}",
            caught_by=Catcher.OPERATOR,
            when=f"`kubectl apply` succeeds; a {event} event follows and nothing is made",
        )
    if not _DNS_1035.fullmatch(text):
        yield name.finding(
            "name",
            Severity.ERROR,
            f"{in_words(text)} cannot name a Service: no dots, and a letter first",
            fix=f"name: {dns_name(text)}",
            caught_by=Catcher.OPERATOR,
            when=f"`kubectl apply` succeeds; a {event} event follows and nothing is made",
        )


def dns_name(text: str) -> str:
    """The nearest valid name: lower case, hyphens, a letter first."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return name if re.match(r"[a-z]", name) else f"ray-{name}".rstrip("-")


def wrong_label(key: str, value: object) -> str:
    """What is wrong with a label; empty when it is right."""
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > 253 or not _SUBDOMAIN.fullmatch(prefix)):
        return f"the label key {in_words(key)} has a prefix that is no domain"
    if len(name) > 63 or not _LABEL_NAME.fullmatch(name):
        return f"{in_words(key)} is not a label key: letters, digits, - _ . and at most 63 characters"
    if isinstance(value, str) and (len(value) > 63 or not _LABEL_VALUE.fullmatch(value)):
        return f"{in_words(value)} is not a label value: letters, digits, - _ . and at most 63 characters"
    return ""


def label_fix(key: str, value: object) -> str:
    """A label that is right, as near as possible."""
    plain = re.sub(r"[^A-Za-z0-9_.]+", "-", str(value))[:63].strip("-_.")
    return f"{key}: {plain}"


def _texts(place: Place) -> Iterator[Finding]:
    for key, value in place.entries():
        if value.is_there and value.text is None:
            what = f"expected text, got {in_words(value.value)}"
            written = str(value.value).lower() if isinstance(value.value, bool) else value.value
            yield _refused(value, "label", what, f'{key}: "{written}", in quotes')


def _refused(place: Place, rule: str, what: str, fix: str) -> Finding:
    return place.finding(rule, Severity.ERROR, what, fix=fix, caught_by=Catcher.SERVER, when=_REFUSES)


def check_kind(document: Place) -> Iterator[Finding]:
    """A kind or version that KubeRay does not have, or will not have for long."""
    version, kind = document.at("apiVersion"), document.at("kind")
    if (version.text or "").startswith(f"{GROUP}/"):
        if kind.text not in RAY_KINDS:
            close = get_close_matches(kind.text or "", RAY_KINDS, n=1, cutoff=0.5)
            fix = f"kind: {close[0] if close else ', '.join(RAY_KINDS)}"
            what = f"there is no kind {kind.value} in {version.text}"
            yield _refused(kind, "kind", what, fix)
        elif version.text == f"{GROUP}/v1alpha1":
            yield version.finding(
                "api-version",
                Severity.WARNING,
                "ray.io/v1alpha1 has no numOfHosts, which multi-host slices need, and KubeRay 1.9 drops it",
                fix="apiVersion: ray.io/v1",
                caught_by=Catcher.NOBODY,
                when="the next KubeRay but one refuses it",
            )
        elif version.text != f"{GROUP}/v1":
            yield _refused(version, "api-version", f"there is no {version.text}", "apiVersion: ray.io/v1")
    elif kind.text in RAY_KINDS and not version.is_there:
        yield _refused(version, "api-version", "apiVersion is missing", "apiVersion: ray.io/v1")
    elif version.text == "kueue.x-k8s.io/v1beta1":
        yield version.finding(
            "api-version",
            Severity.WARNING,
            "kueue.x-k8s.io/v1beta1 is deprecated",
            fix="apiVersion: kueue.x-k8s.io/v1beta2",
            caught_by=Catcher.NOBODY,
            when="a later Kueue refuses it",
        )
