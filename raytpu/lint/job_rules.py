"""RayJob and RayCronJob: what the operator refuses of them, and what it silently ignores.

From KubeRay 1.7.0, validation.go (ValidateRayJobSpec), and from what was seen on a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from raytpu.lint.findings import Catcher, Finding, Severity
from raytpu.lint.operator_rules import Refuses
from raytpu.lint.places import Place
from raytpu.lint.pod_rules import check_pod
from raytpu.lint.ray_documents import Pod
from raytpu.lint.yaml_text import NotYaml, read_documents

_MODES = ("K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode")


def check_queue(document: Place) -> Iterator[Finding]:
    """What Kueue's webhook refuses of a RayJob in a queue.

    https://github.com/kubernetes-sigs/kueue/blob/v0.19.2/pkg/controller/jobs/rayjob/rayjob_webhook.go
    """
    queue = document.at("metadata", "labels", "kueue.x-k8s.io/queue-name")
    shuts_down = document.at("spec", "shutdownAfterJobFinishes")
    selects = document.at("spec", "clusterSelector").value
    if document.at("kind").text == "RayJob" and queue.value and not selects and shuts_down.value is not True:
        yield shuts_down.finding(
            "job-queue",
            Severity.ERROR,
            "a RayJob in a Kueue queue must give its cluster back when it is done",
            fix="shutdownAfterJobFinishes: true",
            caught_by=Catcher.SERVER,
            when="Kueue's webhook refuses `kubectl apply`",
        )


def check_job(job: Place, kind: str) -> Iterator[Finding]:
    """Everything wrong with a RayJobSpec, except in its cluster."""
    if not isinstance(job.value, dict):
        return
    refuses = Refuses(kind)
    yield from _cluster_of(job, refuses)
    yield from _numbers(job, refuses)
    yield from _ending(job, refuses)
    yield from _mode(job, refuses)
    yield from _runtime_env(job, refuses)
    template = job.at("submitterPodTemplate", "spec")
    if template.is_there and job.at("submissionMode").text in (None, "K8sJobMode"):
        yield from check_pod(
            Pod(template, "the submitter"), "FailedToCreateRayJobSubmitter", ("OnFailure", "Never")
        )


def _cluster_of(job: Place, refuses: Refuses) -> Iterator[Finding]:
    selector, spec = job.at("clusterSelector"), job.at("rayClusterSpec")
    if not selector.value:
        if not spec.is_there:
            what = "neither rayClusterSpec nor clusterSelector is given"
            yield refuses(spec, "job-cluster", what, "rayClusterSpec: the cluster to make for the job")
        return
    name = selector.at("ray.io/cluster")
    if not name.value:
        what = "clusterSelector names no cluster"
        yield refuses(selector, "job-cluster", what, "clusterSelector: {ray.io/cluster: NAME}")
    else:
        yield name.finding(
            "live",
            Severity.INFO,
            f"whether RayCluster {name.value} exists only the cluster knows",
            fix=f"nothing, if `kubectl get raycluster {name.value}` shows it",
            caught_by=Catcher.OPERATOR,
            when="a RayClusterNotFound event",
        )
    if spec.is_there:
        yield spec.finding(
            "job-cluster",
            Severity.ERROR,
            "clusterSelector and rayClusterSpec are both given; the spec is ignored, no cluster is made",
            fix="one of the two",
            caught_by=Catcher.NOBODY,
            when="the job runs on the selected cluster",
        )
    if (job.at("backoffLimit").whole or 0) > 0:
        what = "backoffLimit does not go with clusterSelector"
        yield refuses(job.at("backoffLimit"), "job-mode", what, "no backoffLimit")
    if job.at("submissionMode").text == "SidecarMode":
        what = "SidecarMode does not go with clusterSelector"
        yield refuses(job.at("submissionMode"), "job-mode", what, "submissionMode: K8sJobMode")


def _numbers(job: Place, refuses: Refuses) -> Iterator[Finding]:
    for field, least in (
        ("activeDeadlineSeconds", 1),
        ("preRunningDeadlineSeconds", 1),
        ("backoffLimit", 0),
        ("ttlSecondsAfterFinished", 0),
    ):
        place = job.at(field)
        if place.whole is not None and place.whole < least:
            fix = f"{field}: {least} or more, or leave it out"
            yield refuses(place, "job-numbers", f"{field} is {place.whole}", fix)


def _ending(job: Place, refuses: Refuses) -> Iterator[Finding]:
    """What happens to the cluster when the job is done."""
    shuts_down = job.at("shutdownAfterJobFinishes").value is True
    ttl, suspend = job.at("ttlSecondsAfterFinished"), job.at("suspend")
    if (ttl.whole or 0) > 0 and not shuts_down:
        what = "ttlSecondsAfterFinished without shutdownAfterJobFinishes"
        yield refuses(ttl, "job-ending", what, "shutdownAfterJobFinishes: true")
    if suspend.value is True and not shuts_down:
        what = "suspend needs shutdownAfterJobFinishes, because a suspended job gives its cluster back"
        yield refuses(suspend, "job-ending", what, "shutdownAfterJobFinishes: true")
    if suspend.value is True and job.at("clusterSelector").value:
        what = "suspend does not go with clusterSelector"
        yield refuses(suspend, "job-ending", what, "rayClusterSpec in place of clusterSelector")
    rules = job.at("deletionStrategy", "deletionRules")
    if rules.value and shuts_down:
        what = "deletionRules and shutdownAfterJobFinishes exclude each other"
        yield refuses(rules, "job-ending", what, "one of the two")
    for rule in rules.items():
        ttl = rule.at("condition", "ttlSeconds")
        if ttl.whole is not None and ttl.whole < 0:
            yield refuses(ttl, "job-ending", f"ttlSeconds is {ttl.whole}", "ttlSeconds: 0 or more")


def _mode(job: Place, refuses: Refuses) -> Iterator[Finding]:
    mode, submitter = job.at("submissionMode"), job.at("submitterPodTemplate")
    backoff = job.at("backoffLimit")
    if mode.text is not None and mode.text not in _MODES:
        by_case = {each.lower(): each for each in _MODES}
        close = get_close_matches(mode.text.lower(), by_case, n=1, cutoff=0.5)
        yield mode.finding(
            "job-mode",
            Severity.ERROR,
            f"there is no submissionMode {mode.text}",
            fix=f"submissionMode: {by_case[close[0]] if close else ' or '.join(_MODES)}",
            caught_by=Catcher.NOBODY,
            when="the cluster runs, the job is Running for ever, and nothing submits it",
        )
    if mode.text == "InteractiveMode" and (backoff.whole or 0) > 0:
        what = "backoffLimit does not go with InteractiveMode"
        yield refuses(backoff, "job-mode", what, "no backoffLimit")
    if mode.text == "SidecarMode":
        for field in ("submitterPodTemplate", "submitterConfig"):
            if job.at(field).is_there:
                what = f"{field} does not go with SidecarMode"
                yield refuses(job.at(field), "job-mode", what, f"no {field}, or submissionMode: K8sJobMode")
        policy = job.at("rayClusterSpec", "headGroupSpec", "template", "spec", "restartPolicy")
        if policy.text not in (None, "", "Never"):
            what = f"restartPolicy {policy.text} of the head does not go with SidecarMode"
            yield refuses(policy, "job-mode", what, "restartPolicy: Never, or leave it out")
    if mode.text in ("HTTPMode", "InteractiveMode") and submitter.is_there:
        yield submitter.finding(
            "job-mode",
            Severity.WARNING,
            f"submitterPodTemplate is ignored: {mode.text} starts no submitter",
            fix="no submitterPodTemplate, or submissionMode: K8sJobMode",
            caught_by=Catcher.NOBODY,
            when="the job runs without it",
        )


def _runtime_env(job: Place, refuses: Refuses) -> Iterator[Finding]:
    place = job.at("runtimeEnvYAML")
    if not place.text:
        return
    for document in read_documents(place.text):
        if isinstance(document, NotYaml):
            what = f"runtimeEnvYAML is not YAML: {document.what} (its line {document.line})"
            yield refuses(place, "job-runtime-env", what, "a mapping, such as {pip: [einops]}")
        elif document.value is not None and not isinstance(document.value, dict):
            what = "runtimeEnvYAML is no mapping"
            yield refuses(place, "job-runtime-env", what, "a mapping, such as {pip: [einops]}")
        return
