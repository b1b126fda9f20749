"""Mistakes in a cluster that every layer accepts: they cost slices, hours or a night's sleep."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from raytpu.lint.findings import Catcher, Finding, Severity
from raytpu.lint.places import Place
from raytpu.lint.quantity import parse_quantity
from raytpu.lint.ray_documents import ACCELERATOR_LABEL, Group, RayCluster, image_release, release
from raytpu.topology import GENERATIONS

_SPOT = "cloud.google.com/gke-spot"
_SPOT_GRACE_S = 25
"""A spot node has about 30 s, of which the kubelet takes the last ones for its own pods."""


@dataclass(frozen=True, slots=True)
class _Host:
    cpus: int
    memory_gib: int
    source: str


# vCPUs and memory of hosts with 4 chips; no figure was at hand for the other machine types.
_HOSTS = {
    "v5p": _Host(208, 448, "https://docs.cloud.google.com/tpu/docs/v5p"),
    "v6e": _Host(180, 720, "https://docs.cloud.google.com/tpu/docs/v6e"),
    "v7x": _Host(224, 960, "https://docs.cloud.google.com/tpu/docs/tpu7x"),
}
# v6e: https://github.com/ray-project/ray/pull/47803, merged 2024-09; v7x:
# https://github.com/ray-project/ray/pull/60338, merged 2026-01. Each is the release that followed.
_FIRST_RELEASE = {"v6e": (2, 38, 0), "v7x": (2, 54, 0)}
# By feel: no Ray container starts in less; smaller amounts are units that were mistaken.
_MEMORY_FLOOR_BYTES = 2**25


def check_cluster(cluster: RayCluster) -> Iterator[Finding]:
    """Everything of a cluster that only a reader of the manifest could see."""
    yield from _head(cluster)
    yield from _names(cluster)
    for group in cluster.workers:
        yield from _replicas(group, cluster)
        yield from _scheduling(group)
        yield from _host_size(group)
        yield from _start_params(group)
    for group in (cluster.head, *cluster.workers):
        yield from _memory(group)
    yield from _versions(cluster)
    yield from _options(cluster)


def _nobody(place: Place, rule: str, severity: Severity, what: str, fix: str, when: str) -> Finding:
    return place.finding(rule, severity, what, fix=fix, caught_by=Catcher.NOBODY, when=when)


def _head(cluster: RayCluster) -> Iterator[Finding]:
    containers = cluster.head.pod.containers
    resources = containers[0].at("resources") if containers else None
    if resources is not None and not resources.at("limits").value and not resources.at("requests").value:
        what = "the head's container has no resources: it is the first to be evicted"
        fix = "resources: {limits: {cpu: 4, memory: 16Gi}, requests: {cpu: 4, memory: 16Gi}}"
        when = "the head is evicted, and the whole cluster with it"
        yield _nobody(resources, "head-resources", Severity.WARNING, what, fix, when)


def _names(cluster: RayCluster) -> Iterator[Finding]:
    seen: dict[str, int] = {}
    for group in cluster.workers:
        name = group.place.at("groupName")
        if name.text in seen:
            first = seen[name.text]
            what = f"two groups are called {name.text}, first on line {first}: pods are made for one only"
            when = "the cluster never becomes ready"
            yield _nobody(name, "group-twice", Severity.ERROR, what, f"groupName: {name.text}-2", when)
        elif name.text is not None:
            seen[name.text] = name.line


def _replicas(group: Group, cluster: RayCluster) -> Iterator[Finding]:
    replicas, low, high = (group.count(field) for field in ("replicas", "minReplicas", "maxReplicas"))
    place = group.place.at("replicas")
    if replicas is None or low is None or high is None:
        return
    if replicas < 0:
        what = f"replicas is {replicas}, which counts as no slice"
        yield _nobody(place, "replicas", Severity.ERROR, what, "replicas: 1", "the cluster has no workers")
    elif place.is_there and 0 <= low <= high and not low <= replicas <= high:
        field, bound = ("minReplicas", low) if replicas < low else ("maxReplicas", high)
        what = f"replicas is {replicas}, {field} {bound}: KubeRay makes {bound} without a word"
        fix = f"replicas: {bound}, or {field}: {replicas}"
        yield _nobody(
            place, "replicas", Severity.WARNING, what, fix, "there are other slices than the file says"
        )
    if high == 0:
        what = f"maxReplicas is 0: {group.name} never has a slice"
        where = group.place.at("maxReplicas")
        yield _nobody(
            where, "replicas", Severity.WARNING, what, "maxReplicas: 1 or more", "jobs wait for ever"
        )
    if group.place.at("suspend").value is True and not cluster.autoscales:
        what = f"{group.name} is suspended: no pod of it is made"
        where = group.place.at("suspend")
        yield _nobody(where, "suspend", Severity.WARNING, what, "no suspend", "jobs wait for ever")
    hosts = group.count("numOfHosts") or 1
    if hosts > 1 and replicas == hosts and group.is_for_tpus:
        what = f"{replicas} slices of {hosts} hosts: replicas counts slices, numOfHosts the hosts of one"
        fix = "replicas: 1 if one slice is meant; nothing otherwise"
        yield _nobody(place, "replicas-meaning", Severity.INFO, what, fix, "each of them is paid for")


def _scheduling(group: Group) -> Iterator[Finding]:
    spec, selector = group.pod.spec, group.pod.node_selector
    grace = spec.at("terminationGracePeriodSeconds")
    if str(selector.at(_SPOT).value).lower() == "true" and (grace.whole or 0) > _SPOT_GRACE_S:
        what = f"a grace period of {grace.whole} s on spot nodes, which are gone after about 30 s"
        fix = f"terminationGracePeriodSeconds: {_SPOT_GRACE_S}"
        when = "a preempted host is killed in the middle of what it does"
        yield _nobody(grace, "spot-grace", Severity.WARNING, what, fix, when)
    pool = selector.at("cloud.google.com/gke-nodepool")
    queued = "cloud.google.com/gke-queued"
    tolerated = {toleration.at("key").value for toleration in spec.at("tolerations").items()}
    tolerates = None in tolerated or queued in tolerated
    if re.search(r"(^|-)(dws|queued|flex)(-|$)", pool.text or "") and not tolerates:
        what = f"node pool {pool.text} is, by its name, one of DWS, whose nodes have the taint {queued}"
        fix = f"tolerations: [{{key: {queued}, operator: Exists, effect: NoSchedule}}]"
        yield _nobody(pool, "queued-toleration", Severity.WARNING, what, fix, "the pods stay Pending")
    if spec.at("affinity").value and (group.count("numOfHosts") or 1) > 1 and group.chips:
        what = "the TPU webhook replaces the whole affinity of a multi-host group; what stands here is lost"
        fix = "nodeSelector or tolerations in its place"
        yield _nobody(
            spec.at("affinity"), "affinity", Severity.WARNING, what, fix, "pods land on other nodes"
        )


def _host_size(group: Group) -> Iterator[Finding]:
    label = group.pod.node_selector.at(ACCELERATOR_LABEL).text
    generation = next((name for name, fact in GENERATIONS.items() if fact.gke_accelerator == label), "")
    host = _HOSTS.get(generation)
    if host is None or group.chips != 4:
        return
    for key, has, unit in (("cpu", host.cpus, ""), ("memory", host.memory_gib * 2**30, "Gi")):
        total, where = parse_quantity(0), group.pod.spec
        for container in group.pod.containers:
            for which in ("requests", "limits"):
                place = container.at("resources", which, key)
                amount = parse_quantity(place.value)
                if amount is not None and total is not None:
                    total, where = total + amount, place
                    break
        if total is not None and total > has:
            most = host.cpus if key == "cpu" else host.memory_gib
            what = f"{key} {where.value}: a {generation} host with 4 chips has {most}{unit} ({host.source})"
            fix = f"{key}: less than {most}{unit}, which the system needs a part of"
            yield _nobody(
                where, "host-size", Severity.ERROR, what, fix, "the pods stay Pending (FailedScheduling)"
            )


def _memory(group: Group) -> Iterator[Finding]:
    for container in group.pod.containers:
        for which in ("limits", "requests"):
            place = container.at("resources", which, "memory")
            amount = parse_quantity(place.value)
            if amount is None or not 0 < amount < _MEMORY_FLOOR_BYTES:
                continue
            digits = re.match(r"[0-9.]*", str(place.value))
            number = digits[0] if digits else ""
            unit = "thousandths of a byte" if str(place.value).endswith("m") else "too little for any program"
            what = f"memory {place.value} is {unit}"
            fix = f"memory: {number}Gi (or {number}Mi)"
            yield _nobody(
                place, "memory-unit", Severity.ERROR, what, fix, "the container is killed at its start"
            )


def _start_params(group: Group) -> Iterator[Finding]:
    place = group.start_params.at("resources")
    if place.text is None:
        return
    text = place.text.strip()
    if text.startswith("{"):
        what = "KubeRay puts the value on a shell's command line, where these quotes are lost"
        fix = "nothing: KubeRay adds the TPU resource itself"
        if '"TPU"' not in text or "," in text:
            escaped = text.replace('"', '\\"')
            fix = f"resources: '\"{escaped}\"'"
        when = "`ray start` fails in every pod"
        yield _nobody(place, "start-resources", Severity.ERROR, what, fix, when)


def _versions(cluster: RayCluster) -> Iterator[Finding]:
    declared, heads = cluster.spec.at("rayVersion"), cluster.head.pod.containers
    head = image_release(heads[0]) if heads else None
    for group in cluster.workers:
        for container in group.pod.containers[:1]:
            yield from _image(group, container, heads, declared)
    known = release(declared.text)
    if heads and head is not None and known is not None and known != head:
        what = f"rayVersion is {declared.text}, the head's image {heads[0].at('image').text}"
        fix = f"rayVersion: {_dots(head)}"
        when = "the operator sets the cluster up for another Ray than the one that runs"
        yield _nobody(declared, "ray-version", Severity.WARNING, what, fix, when)


def _image(group: Group, container: Place, heads: list[Place], declared: Place) -> Iterator[Finding]:
    image, found = container.at("image"), image_release(container)
    if found is None:
        return
    head = image_release(heads[0]) if heads else None
    head_image = heads[0].at("image").value if heads else None
    if head is not None and found != head:
        what = f"{group.name} runs Ray {_dots(found)}, the head {_dots(head)}; they cannot join"
        fix = f"image: {head_image}, as the head"
        yield _nobody(image, "ray-version", Severity.ERROR, what, fix, "the workers restart for ever")
    elif head is None and release(declared.text) not in (None, found):
        what = f"{group.name} runs Ray {_dots(found)}, rayVersion is {declared.text}"
        fix = "one version in both"
        yield _nobody(image, "ray-version", Severity.WARNING, what, fix, "the workers may restart for ever")
    label = group.pod.node_selector.at(ACCELERATOR_LABEL).text
    for generation, first in _FIRST_RELEASE.items():
        if GENERATIONS[generation].gke_accelerator == label and found < first:
            what = f"Ray {_dots(found)} does not know {generation}; {_dots(first)} is the first that does"
            fix = f"an image of Ray {_dots(first)} or newer, and rayVersion with it"
            yield _nobody(image, "ray-too-old", Severity.ERROR, what, fix, "Ray shows no TPU resources")


def _dots(version: tuple[int, int, int]) -> str:
    return ".".join(str(part) for part in version)


def _options(cluster: RayCluster) -> Iterator[Finding]:
    options, tolerance = cluster.spec.at("autoscalerOptions"), cluster.spec.at("gcsFaultToleranceOptions")
    if options.is_there and not cluster.autoscales:
        what = "autoscalerOptions are given, but the autoscaler is off"
        fix = "enableInTreeAutoscaling: true, or no autoscalerOptions"
        yield _nobody(options, "autoscaler", Severity.WARNING, what, fix, "the cluster never grows")
    several = any((group.count("numOfHosts") or 1) > 1 for group in cluster.workers)
    version = options.at("version")
    if cluster.autoscales and several and version.text != "v2":
        severity = Severity.WARNING if version.text == "v1" else Severity.INFO
        what = "multi-host slices are scaled as a whole by autoscaler v2 only"
        fix = "autoscalerOptions: {version: v2}"
        yield _nobody(version, "autoscaler", severity, what, fix, "scaling down takes single hosts of slices")
    if (
        tolerance.is_there
        and tolerance.at("backend").text != "rocksdb"
        and not tolerance.at("redisAddress").value
    ):
        what = "gcsFaultToleranceOptions without redisAddress: the head gets an empty address"
        fix = "redisAddress: redis:6379"
        where = tolerance.at("redisAddress")
        when = "the head's state is lost with it, or the head does not start"
        yield _nobody(where, "gcs-fault-tolerance", Severity.ERROR, what, fix, when)
