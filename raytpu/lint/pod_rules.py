"""What the API server says of a pod, which is heard only when the operator makes one.

A custom resource is not checked as a pod: `kubectl apply` succeeds, and a Failed… event follows. Of
https://github.com/kubernetes/kubernetes/blob/v1.36.0/pkg/apis/core/validation/validation.go the rules that
manifests were seen to break.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from raytpu.lint.findings import Catcher, Finding, Severity
from raytpu.lint.metadata_rules import DNS_LABEL, dns_name, label_fix, wrong_label
from raytpu.lint.places import Place, is_template
from raytpu.lint.quantity import parse_quantity
from raytpu.lint.ray_documents import TPU, Pod
from raytpu.lint.schema import in_words

_FIELDS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([a-z0-9]|-(?!-))*[a-z0-9]|[a-z]")
_INJECTED_VOLUMES = ("shared-mem", "ray-logs")
"""KubeRay adds these to its pods itself."""


def check_pod(
    pod: Pod, event: str, restarts: Sequence[str] = ("Always", "OnFailure", "Never")
) -> Iterator[Finding]:
    """Everything the API server would refuse of a pod.

    Args:
        event: that tells of the refusal, such as ``FailedToCreateWorkerPod``.
        restarts: values that ``restartPolicy`` may have.
    """
    refuses = _Refuses(event)
    spec = pod.spec
    yield from refuses.unless_listed(spec.at("restartPolicy"), restarts)
    yield from refuses.unless_listed(
        spec.at("dnsPolicy"), ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
    )
    for key, value in pod.node_selector.entries():
        what = wrong_label(key, value.value)
        if what and not is_template(value.value):
            yield refuses(value, "pod-label", what, label_fix(key, value.value))
    for toleration in spec.at("tolerations").items():
        yield from _toleration(toleration, refuses)
    grace = spec.at("terminationGracePeriodSeconds")
    if grace.whole is not None and grace.whole < 0:
        yield refuses(grace, "pod-field", f"{grace.whole} seconds", f"{grace.path[-1]}: 25")
    names: dict[str, int] = {}
    volumes = {volume.at("name").text for volume in spec.at("volumes").items()} | set(_INJECTED_VOLUMES)
    for container in [*pod.containers, *pod.init_containers]:
        yield from _container(container, refuses, names)
        yield from _mounts(container, volumes, refuses)
    yield from _elsewhere(pod)


class _Refuses:
    """Makes the findings of one pod."""

    def __init__(self, event: str) -> None:
        self._event = event

    def __call__(self, place: Place, rule: str, what: str, fix: str) -> Finding:
        return place.finding(
            rule,
            Severity.ERROR,
            what,
            fix=fix,
            caught_by=Catcher.OPERATOR,
            when=f"`kubectl apply` succeeds; {self._event} events follow, and no pod is made",
        )

    def unless_listed(self, place: Place, allowed: Sequence[str]) -> Iterator[Finding]:
        value = place.text
        if value is None or value in allowed or is_template(value):
            return
        by_case = {each.lower(): each for each in allowed}
        close = get_close_matches(value.lower(), by_case, n=1, cutoff=0.6)
        fix = f"{place.path[-1]}: {by_case[close[0]] if close else ' or '.join(allowed)}"
        yield self(place, "pod-field", f"{in_words(value)} is not one of {', '.join(allowed)}", fix)


def _container(container: Place, refuses: _Refuses, names: dict[str, int]) -> Iterator[Finding]:
    name = container.at("name")
    if name.text is not None:
        if len(name.text) > 63 or not DNS_LABEL.fullmatch(name.text):
            what = f"{in_words(name.text)} is no container name: lower case, digits and hyphens, at most 63"
            yield refuses(name, "pod-name", what, f"name: {dns_name(name.text)[:63]}")
        if name.text in names:
            what = f"two containers are called {name.text}, first on line {names[name.text]}"
            yield refuses(name, "pod-name", what, "another name")
        names.setdefault(name.text, name.line)
    image = container.at("image")
    if isinstance(container.value, dict) and not image.value:
        what = f"container {name.value} has no image"
        yield refuses(image, "pod-image", what, "image: the image to run, such as that of the head")
    yield from refuses.unless_listed(container.at("imagePullPolicy"), ("Always", "IfNotPresent", "Never"))
    for port in container.at("ports").items():
        yield from _port(port, refuses)
    for variable in container.at("env").items():
        yield from _variable(variable, refuses)
    yield from _amounts(container, refuses)


def _port(port: Place, refuses: _Refuses) -> Iterator[Finding]:
    name, number = port.at("name"), port.at("containerPort")
    if name.text and (len(name.text) > 15 or not _PORT_NAME.fullmatch(name.text)):
        what = f"{in_words(name.text)} is no port name: lower case, digits and hyphens, at most 15 characters"
        yield refuses(name, "pod-port", what, f"name: {dns_name(name.text)[:15].rstrip('-')}")
    if number.whole is not None and not 0 < number.whole < 65536:
        yield refuses(number, "pod-port", f"there is no port {number.whole}", "containerPort: 1 to 65535")
    yield from refuses.unless_listed(port.at("protocol"), ("TCP", "UDP", "SCTP"))


def _variable(variable: Place, refuses: _Refuses) -> Iterator[Finding]:
    field = variable.at("valueFrom", "fieldRef", "fieldPath")
    path = field.text
    if path is None or path in _FIELDS or re.match(r"metadata\.(labels|annotations)\[", path):
        return
    by_case = {each.lower(): each for each in _FIELDS}
    close = get_close_matches(path.lower(), by_case, n=1, cutoff=0.6)
    fix = f"fieldPath: {by_case[close[0]] if close else ' or '.join(_FIELDS)}"
    yield refuses(field, "pod-field", f"a pod has no field {path} that a variable may read", fix)


def _amounts(container: Place, refuses: _Refuses) -> Iterator[Finding]:
    for key, limit in container.at("resources", "limits").entries():
        request = container.at("resources", "requests", key)
        most, asked = parse_quantity(limit.value), parse_quantity(request.value)
        if key != TPU and most is not None and asked is not None and asked > most:
            what = f"{key}: {request.value} requested, more than the limit of {limit.value}"
            yield refuses(request, "pod-resources", what, f"{key}: {limit.value}, or a higher limit")
    for which in ("limits", "requests"):
        for key, place in container.at("resources", which).entries():
            number = parse_quantity(place.value)
            if number is not None and number < 0:
                yield refuses(place, "pod-resources", f"{key} is negative", f"{key}: a positive amount")


def _mounts(container: Place, volumes: set[str | None], refuses: _Refuses) -> Iterator[Finding]:
    paths: set[str] = set()
    for mount in container.at("volumeMounts").items():
        name, path = mount.at("name"), mount.at("mountPath")
        if name.text is not None and name.text not in volumes:
            known = [each for each in volumes if each and each not in _INJECTED_VOLUMES]
            close = get_close_matches(name.text, known, n=1, cutoff=0.6)
            fix = (
                f"name: {close[0]}"
                if close
                else f"a volume of that name: volumes: [{{name: {name.text}, …}}]"
            )
            yield refuses(name, "pod-volume", f"there is no volume {name.text} in the pod", fix)
        if path.text is not None and path.text in paths:
            yield refuses(path, "pod-volume", f"{path.text} is mounted twice", "another mountPath")
        paths |= {path.text} if path.text else set()


def _toleration(toleration: Place, refuses: _Refuses) -> Iterator[Finding]:
    operator = toleration.at("operator")
    yield from refuses.unless_listed(operator, ("Exists", "Equal", "Lt", "Gt"))
    effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
    yield from refuses.unless_listed(toleration.at("effect"), effects)
    if operator.text == "Exists" and toleration.at("value").value:
        what = "operator Exists takes no value"
        yield refuses(toleration.at("value"), "pod-field", what, "operator: Equal, or no value")
    if not toleration.at("key").value and operator.text != "Exists" and isinstance(toleration.value, dict):
        what = "a toleration without a key needs operator Exists"
        yield refuses(toleration, "pod-field", what, "operator: Exists")


def _elsewhere(pod: Pod) -> Iterator[Finding]:
    """Names of objects that a file cannot show to exist."""
    priority, account = pod.spec.at("priorityClassName"), pod.spec.at("serviceAccountName")
    for place, kind in ((priority, "priorityclass"), (account, "serviceaccount")):
        known = place.text == "default" or (place.text or "").startswith("system-")
        if place.text and not known and not is_template(place.text):
            yield place.finding(
                "live",
                Severity.INFO,
                f"whether {kind} {place.text} exists only the cluster knows",
                fix=f"nothing, if `kubectl get {kind} {place.text}` shows it",
                caught_by=Catcher.OPERATOR,
                when="a FailedToCreate…Pod event",
            )
