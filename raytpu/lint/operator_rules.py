"""What the KubeRay operator refuses of a RayCluster, alone or inside a RayJob or RayService.

`kubectl apply` says OK, and an Event or a status says no. From KubeRay 1.7.0,
https://github.com/ray-project/kuberay/blob/v1.7.0/ray-operator/controllers/ray/utils/validation.go
(ValidateRayClusterSpec), with the feature gates that are on by default.
"""

from __future__ import annotations

from collections.abc import Iterator

from raytpu.lint.findings import Catcher, Finding, Severity
from raytpu.lint.metadata_rules import DNS_LABEL, dns_name, label_fix, wrong_label
from raytpu.lint.places import Place, is_template
from raytpu.lint.pod_rules import check_pod
from raytpu.lint.ray_documents import Group, RayCluster, environment, release
from raytpu.lint.schema import in_words

_START_RESOURCES = ("num-cpus", "num-gpus", "memory", "resources")
# A label of KubeRay adds "-" and 5 random characters to the group's name and may have 63.
_GROUP_NAME_LIMIT = 57


def check_operator(cluster: RayCluster) -> Iterator[Finding]:
    """Everything the operator, or the API server when the operator makes pods, refuses of a cluster."""
    refuses = Refuses(cluster.kind)
    yield from _group(cluster.head, cluster, refuses)
    yield from check_pod(cluster.head.pod, "FailedToCreateHeadPod")
    for group in cluster.workers:
        yield from _group_name(group)
        yield from _replicas(group, cluster, refuses)
        yield from _group(group, cluster, refuses)
        yield from check_pod(group.pod, "FailedToCreateWorkerPod")
    yield from _autoscaler(cluster, refuses)
    yield from _fault_tolerance(cluster, refuses)
    yield from _authentication(cluster, refuses)


class Refuses:
    """Makes the findings of what the operator refuses of a document of some kind."""

    def __init__(self, kind: str) -> None:
        self.when = (
            "`kubectl apply` succeeds; an InvalidRayClusterSpec event follows and nothing is made"
            if kind == "RayCluster"
            else f"`kubectl apply` succeeds; the {kind}'s status becomes ValidationFailed"
        )

    def __call__(self, place: Place, rule: str, what: str, fix: str) -> Finding:
        return place.finding(rule, Severity.ERROR, what, fix=fix, caught_by=Catcher.OPERATOR, when=self.when)


def _group(group: Group, cluster: RayCluster, refuses: Refuses) -> Iterator[Finding]:
    template = group.place.at("template", "spec")
    if group.place.is_there and not group.pod.containers:
        containers = template.at("containers")
        yield refuses(containers, "containers", f"{group.name} has no container", "containers: [{…}]")
    labels = group.start_params.at("labels")
    if labels.is_there:
        what = f"rayStartParams of {group.name} sets labels, which KubeRay sets itself"
        yield refuses(labels, "start-labels", what, "labels: beside rayStartParams, as a mapping")
    for key, value in group.place.at("labels").entries():
        what = wrong_label(key, value.value)
        if what:
            yield refuses(value, "group-label", what, label_fix(key, value.value))
    twice = next(
        (group.start_params.at(key) for key in _START_RESOURCES if group.start_params.at(key).value), None
    )
    if twice is not None and group.place.at("resources").value:
        what = f"{group.name} says its resources in rayStartParams and in resources"
        yield refuses(twice, "group-resources", what, "only resources:")
    policy = template.at("restartPolicy")
    version = cluster.spec.at("autoscalerOptions", "version").text
    if cluster.autoscales and version == "v2" and policy.text in ("Always", "OnFailure"):
        what = f"restartPolicy {policy.text} does not go with autoscaler v2"
        yield refuses(policy, "autoscaler", what, "restartPolicy: Never, or leave it out")


def _group_name(group: Group) -> Iterator[Finding]:
    name = group.place.at("groupName")
    text = name.text
    if text is None or is_template(text):
        return
    when = "`kubectl apply` succeeds; no pod is made (FailedToCreateWorkerPod, or condition ReplicaFailure)"
    if not DNS_LABEL.fullmatch(text):
        what = f"{in_words(text)} becomes part of pods' names and hostnames: lower case, digits and hyphens"
        fix = f"groupName: {dns_name(text)}"
    else:
        most, hosts = group.count("replicas") or 1, group.count("numOfHosts") or 1
        hostname = len(f"{text}-{max(most - 1, 0)}-{max(hosts - 1, 0)}")
        if len(text) <= _GROUP_NAME_LIMIT and hostname <= 63:
            return
        limit = min(_GROUP_NAME_LIMIT, 63 - (hostname - len(text)))
        what = f"groupName has {len(text)} characters; with its suffixes, labels and hostnames exceed 63"
        fix = f"groupName: at most {limit} characters, such as {text[:20].rstrip('-')}"
    yield name.finding("group-name", Severity.ERROR, what, fix=fix, caught_by=Catcher.OPERATOR, when=when)


def _replicas(group: Group, cluster: RayCluster, refuses: Refuses) -> Iterator[Finding]:
    low, high = group.count("minReplicas"), group.count("maxReplicas")
    for field, count in (("minReplicas", low), ("maxReplicas", high)):
        if count is not None and count < 0:
            yield refuses(group.place.at(field), "replicas", f"{field} is {count}", f"{field}: 0 or more")
    if low is not None and high is not None and 0 <= high < low:
        what = f"minReplicas {low} is more than maxReplicas {high}"
        yield refuses(
            group.place.at("minReplicas"), "replicas", what, f"maxReplicas: {low}, or minReplicas: {high}"
        )
    idle = group.place.at("idleTimeoutSeconds")
    if idle.whole is not None and not (cluster.autoscales and _is_v2(cluster)):
        what = "idleTimeoutSeconds of a group needs autoscaler v2"
        yield refuses(idle, "autoscaler", what, "autoscalerOptions: {version: v2}")
    suspend = group.place.at("suspend")
    if suspend.value is True and cluster.autoscales:
        what = f"{group.name} is suspended, which does not go with the autoscaler"
        yield refuses(suspend, "suspend", what, "replicas: 0 and minReplicas: 0, or no suspend")


def _is_v2(cluster: RayCluster) -> bool:
    if cluster.spec.at("autoscalerOptions", "version").text == "v2":
        return True
    containers = cluster.head.pod.containers
    variables = dict(environment(containers[0])) if containers else {}
    switch = variables.get("RAY_enable_autoscaler_v2")
    return switch is not None and switch.at("value").value in ("1", "true")


def _autoscaler(cluster: RayCluster, refuses: Refuses) -> Iterator[Finding]:
    idle = cluster.spec.at("autoscalerOptions", "idleTimeoutSeconds")
    if idle.whole is not None and idle.whole < 0:
        yield refuses(idle, "autoscaler", f"idleTimeoutSeconds is {idle.whole}", "idleTimeoutSeconds: 60")
    containers = cluster.head.pod.containers
    switch = dict(environment(containers[0])).get("RAY_enable_autoscaler_v2") if containers else None
    if switch is None:
        return
    if not cluster.autoscales and switch.at("value").value in ("1", "true"):
        what = "RAY_enable_autoscaler_v2 is set, but the autoscaler is off"
        yield refuses(switch, "autoscaler", what, "enableInTreeAutoscaling: true, or not the variable")
    elif cluster.autoscales and cluster.spec.at("autoscalerOptions", "version").is_there:
        what = "both autoscalerOptions.version and RAY_enable_autoscaler_v2 are set"
        yield refuses(switch, "autoscaler", what, "only autoscalerOptions: {version: v2}")


def _fault_tolerance(cluster: RayCluster, refuses: Refuses) -> Iterator[Finding]:
    options = cluster.spec.at("gcsFaultToleranceOptions")
    containers = cluster.head.pod.containers
    variables = dict(environment(containers[0])) if containers else {}
    annotation = cluster.document.at("metadata", "annotations", "ray.io/ft-enabled")
    if annotation.value and options.is_there:
        what = "both the annotation ray.io/ft-enabled and gcsFaultToleranceOptions are set"
        yield refuses(annotation, "gcs-fault-tolerance", what, "only gcsFaultToleranceOptions")
    enabled = options.is_there or str(annotation.value).lower() == "true"
    address = variables.get("RAY_REDIS_ADDRESS")
    if address is not None and (options.is_there or not enabled):
        fix = "gcsFaultToleranceOptions: {redisAddress: …}, and not the variable"
        yield refuses(address, "gcs-fault-tolerance", "RAY_REDIS_ADDRESS is set by hand", fix)
    password = variables.get("REDIS_PASSWORD")
    if password is not None and options.is_there:
        fix = "gcsFaultToleranceOptions: {redisPassword: …}, and not the variable"
        yield refuses(password, "gcs-fault-tolerance", "REDIS_PASSWORD is set by hand", fix)
    if options.at("backend").text == "rocksdb":
        what = (
            "backend rocksdb needs the feature gate GCSFaultToleranceEmbeddedStorage, which is off by default"
        )
        yield options.at("backend").finding(
            "gcs-fault-tolerance",
            Severity.INFO,
            what,
            fix="nothing, if the gate is on; else redisAddress",
            caught_by=Catcher.OPERATOR,
            when=refuses.when,
        )


def _authentication(cluster: RayCluster, refuses: Refuses) -> Iterator[Finding]:
    mode, version = cluster.spec.at("authOptions", "mode"), cluster.spec.at("rayVersion")
    if mode.text != "token":
        return
    known = release(version.text)
    if known is None or known < (2, 52, 0):
        given = version.value or "not given"
        what = f"authOptions.mode token needs rayVersion 2.52.0 or newer, and it is {given}"
        yield refuses(version, "authentication", what, "rayVersion: 2.52.0 or newer")
