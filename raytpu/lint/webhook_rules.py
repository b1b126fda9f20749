"""GKE's TPU webhook, as it decides when a RayCluster is created.

From https://github.com/ai-on-gke/kuberay-tpu-webhook/blob/ef658db/main.go (validateRayCluster); release 1.3.5
was seen to do the same. It compares the hosts with chips ÷ chips of a pod, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from raytpu.lint.findings import Catcher, Finding, Severity
from raytpu.lint.places import Place, dotted
from raytpu.lint.ray_documents import TOPOLOGY_LABEL, Group, RayCluster

MISMATCH = "Number of workers in worker group not equal to specified topology"
NO_REASON = "InternalError: Failed to validate RayCluster"

# More would overflow Go's int: what its product is then is no use to anybody.
_AXES_LIMIT = 4


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the webhook refuses a group."""

    said: str
    """What the user gets to read."""
    why: str
    place: Place


def refusal(group: Group) -> Refusal | None:
    """The webhook's refusal of a worker group, or ``None`` if it lets the group pass."""
    chips, hosts = group.chips, group.count("numOfHosts")
    if chips <= 0 or hosts is None:
        return None
    if hosts == 0:
        return Refusal(NO_REASON, "numOfHosts is 0", group.place.at("numOfHosts"))
    label = group.pod.node_selector.at(TOPOLOGY_LABEL)
    sizes = label.text.split("x") if label.text else []
    if not sizes:
        return Refusal(NO_REASON, f"the node selector has no {TOPOLOGY_LABEL}", label)
    if not all(re.fullmatch(r"[+-]?[0-9]{1,9}", size) for size in sizes):
        return Refusal(NO_REASON, f"{label.text} is no topology", label)
    if len(sizes) > _AXES_LIMIT:
        return Refusal(MISMATCH, f"a topology has no {len(sizes)} axes", label)
    total = 1
    for size in sizes:
        total *= int(size)
    expected = max(total // chips if total > 0 else 0, 1)
    if expected == hosts:
        return None
    why = f"{label.text} with {chips} chips a pod is {expected} host(s), numOfHosts is {hosts}"
    return Refusal(MISMATCH, why, group.place.at("numOfHosts"))


def first_refused(cluster: RayCluster) -> Group | None:
    """The group for which the webhook refuses the cluster: it stops at the first."""
    return next((group for group in cluster.workers if refusal(group) is not None), None)


def when_refused(cluster: RayCluster, said: str) -> str:
    """How a refusal is told to whoever applied the document."""
    if cluster.kind == "RayCluster":
        return f"it refuses the creation with “{said}”; a change of a running cluster it does not see"
    return (
        f"`kubectl apply` succeeds; the {cluster.kind} then stays Initializing, with a "
        f"FailedToCreateRayCluster event that says “{said}”"
    )


def check_webhook(cluster: RayCluster, found: list[Finding]) -> Iterator[Finding]:
    """A finding for each refusal that ``found``, the findings about the slices, does not explain yet."""
    explained = {finding.path for finding in found if finding.caught_by is Catcher.WEBHOOK}
    for group in cluster.workers:
        refused = refusal(group)
        below = f"{dotted(group.place.path)}."
        if refused is None or any(path.startswith(below) for path in explained):
            continue
        yield refused.place.finding(
            "tpu-webhook",
            Severity.ERROR,
            f"the TPU webhook refuses {group.name}: {refused.why}",
            fix="a topology label, google.com/tpu and numOfHosts that agree",
            caught_by=Catcher.WEBHOOK,
            when=when_refused(cluster, refused.said),
        )
