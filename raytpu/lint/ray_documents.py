"""The parts of KubeRay's documents that rules speak of: clusters, groups, pods, containers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from raytpu.lint.places import Place
from raytpu.lint.quantity import parse_quantity

GROUP = "ray.io"
TPU = "google.com/tpu"
ACCELERATOR_LABEL = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"

_CLUSTER_IN = {
    "RayCluster": ("spec",),
    "RayJob": ("spec", "rayClusterSpec"),
    "RayService": ("spec", "rayClusterConfig"),
    "RayCronJob": ("spec", "jobTemplate", "rayClusterSpec"),
}
RAY_KINDS = tuple(_CLUSTER_IN)
_RELEASE = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?(?![0-9])")


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod template's spec."""

    spec: Place
    name: str
    """Who it is in a message: ``the head``, ``group tpu-group``, ``the submitter``."""

    @property
    def containers(self) -> list[Place]:
        return self.spec.at("containers").items()

    @property
    def init_containers(self) -> list[Place]:
        return self.spec.at("initContainers").items()

    @property
    def node_selector(self) -> Place:
        return self.spec.at("nodeSelector")


@dataclass(frozen=True, slots=True)
class Group:
    """The head group or a worker group."""

    place: Place
    name: str

    @property
    def pod(self) -> Pod:
        return Pod(self.place.at("template", "spec"), self.name)

    @property
    def start_params(self) -> Place:
        return self.place.at("rayStartParams")

    def count(self, field: str) -> int | None:
        """``replicas`` or its like with the CRD's default; ``None`` of what is no whole number."""
        place = self.place.at(field)
        defaults = {"numOfHosts": 1, "replicas": 0, "minReplicas": 0, "maxReplicas": 2**31 - 1}
        return place.whole if place.is_there else defaults[field]

    @property
    def chips(self) -> int:
        """Chips a pod asks for, as the TPU webhook counts: requests before limits, summed over containers."""
        return sum(chips_of(container) for container in self.pod.containers)

    @property
    def is_for_tpus(self) -> bool:
        """Whether anything in it speaks of TPUs."""
        selector = self.pod.node_selector
        containers = [*self.pod.containers, *self.pod.init_containers]
        return (
            selector.at(ACCELERATOR_LABEL).is_there
            or selector.at(TOPOLOGY_LABEL).is_there
            or any(amount.is_there for container in containers for amount in tpu_amounts(container))
        )


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A RayClusterSpec, alone or inside of a RayJob, RayService or RayCronJob."""

    document: Place
    kind: str
    """Of the document."""
    spec: Place

    @property
    def head(self) -> Group:
        return Group(self.spec.at("headGroupSpec"), "the head")

    @property
    def workers(self) -> list[Group]:
        groups = self.spec.at("workerGroupSpecs").items()
        return [Group(place, f"group {place.at('groupName').value or place.path[-1]}") for place in groups]

    @property
    def autoscales(self) -> bool:
        return self.spec.at("enableInTreeAutoscaling").value is True


def ray_cluster(document: Place) -> RayCluster | None:
    """The cluster that a document describes; ``None`` without one."""
    kind = document.at("kind").text
    if kind not in _CLUSTER_IN:
        return None
    spec = document.at(*_CLUSTER_IN[kind])
    return RayCluster(document, kind, spec) if isinstance(spec.value, dict) else None


def ray_job(document: Place) -> Place | None:
    """The RayJobSpec that a document describes; ``None`` without one."""
    kind = document.at("kind").text
    if kind == "RayJob":
        return document.at("spec")
    return document.at("spec", "jobTemplate") if kind == "RayCronJob" else None


def tpu_amounts(container: Place) -> tuple[Place, Place]:
    """Where a container says how many chips: its requests, its limits."""
    resources = container.at("resources")
    return resources.at("requests", TPU), resources.at("limits", TPU)


def chips_of(container: Place) -> int:
    """Chips that the webhook sees in a container; it rounds up, as Go's ``Quantity.Value``."""
    for amount in tpu_amounts(container):
        number = parse_quantity(amount.value)
        if number is not None and number > 0:
            return math.ceil(number)
    return 0


def environment(container: Place) -> Iterator[tuple[str, Place]]:
    """Names of a container's variables and where they are."""
    for variable in container.at("env").items():
        name = variable.at("name").text
        if name is not None:
            yield name, variable


def release(text: object) -> tuple[int, int, int] | None:
    """The release at the start of a version or an image's tag: ``2.52.0-py310`` is (2, 52, 0)."""
    match = _RELEASE.match(text) if isinstance(text, str) else None
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def image_release(container: Place) -> tuple[int, int, int] | None:
    """The Ray release of a container whose image is one of Ray's own; of others it is not known."""
    image = container.at("image").text
    match = re.search(r"(?:^|/)rayproject/ray(?:-[a-z0-9]+)?:([^@/]+)", image) if image else None
    return release(match[1]) if match else None
