"""Generation, topology, chips and hosts of a worker group: what must agree, and what nobody else knows.

The shapes come from ``raytpu.topology``. When the TPU webhook would refuse the group, a finding says so; most
wrong shapes pass it, and their pods wait for a node that does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from raytpu.lint.findings import Catcher, Finding, Severity
from raytpu.lint.places import Place, is_template
from raytpu.lint.quantity import parse_quantity
from raytpu.lint.ray_documents import (
    ACCELERATOR_LABEL,
    TOPOLOGY_LABEL,
    TPU,
    Group,
    RayCluster,
    chips_of,
    tpu_amounts,
)
from raytpu.lint.schema import in_words
from raytpu.lint.webhook_rules import first_refused, refusal, when_refused
from raytpu.topology import GENERATIONS, SliceShape, slice_shapes
from raytpu.topology.generation import raytpu_name

_PENDING = "its pods stay Pending (FailedScheduling): no such node exists"
_NO_CHIPS = "the pods run, without TPU_* variables and without chips"
_BY_LABEL = {fact.gke_accelerator: name for name, fact in GENERATIONS.items()}
# Labels of GKE whose shapes raytpu does not know: generation v3, and the former single-host label of v5e.
_OTHER_LABELS = ("tpu-v3-device", "tpu-v3-slice", "tpu-v5-lite-device")
_TOPOLOGY = re.compile(r"[1-9][0-9]{0,4}(x[1-9][0-9]{0,4})+")


def check_slices(cluster: RayCluster) -> Iterator[Finding]:
    """Every worker group that has to do with TPUs."""
    blamed = first_refused(cluster)
    for group in cluster.workers:
        yield from _resource_names(group)
        if group.is_for_tpus:
            refused = refusal(group) if blamed is not None and blamed.place.path == group.place.path else None
            caught = (Catcher.NOBODY, _PENDING)
            if refused is not None:
                caught = (Catcher.WEBHOOK, when_refused(cluster, refused.said))
            yield from _group(group, caught)
    yield from _resource_names(cluster.head)
    asking = next((each for each in cluster.head.pod.containers if chips_of(each)), None)
    if asking is not None:
        place = next(amount for amount in reversed(tpu_amounts(asking)) if amount.is_there)
        yield place.finding(
            "tpu-head",
            Severity.WARNING,
            "the head asks for TPU chips: it takes a host of its own slice, and a lost head is a lost slice",
            fix=f"no {TPU} and no TPU node selector on the head; a CPU node pool does",
            caught_by=Catcher.NOBODY,
            when="maintenance of that host takes the whole cluster",
        )


def _resource_names(group: Group) -> Iterator[Finding]:
    for container in group.pod.containers:
        for which in ("limits", "requests"):
            for key, place in container.at("resources", which).entries():
                if key != TPU and re.search(r"(^|[/.-])(cloud-)?tpus?$", key.lower()):
                    yield place.finding(
                        "tpu-resource-name",
                        Severity.ERROR,
                        f"{key} is no resource of a TPU node",
                        fix=f"{TPU}: {place.value}",
                        caught_by=Catcher.NOBODY,
                        when=_PENDING,
                    )


Caught = tuple[Catcher, str]


def _group(group: Group, caught: Caught) -> Iterator[Finding]:
    asked = list(_amounts(group, caught))
    yield from asked
    selector = group.pod.node_selector
    accelerator, topology = selector.at(ACCELERATOR_LABEL), selector.at(TOPOLOGY_LABEL)
    if is_template(accelerator.value) or is_template(topology.value):
        return
    labels = list(_labels(group, accelerator, topology, caught))
    yield from labels
    generation = _BY_LABEL.get(accelerator.text or "")
    if labels or generation is None or topology.text is None:
        return
    shapes = [shape for shape in slice_shapes(generation) if shape.topology == topology.text]
    if shapes and not asked and group.chips > 0:
        yield from _hosts(group, shapes, caught)


def _error(place: Place, rule: str, what: str, fix: str, caught: Caught) -> Finding:
    return place.finding(rule, Severity.ERROR, what, fix=fix, caught_by=caught[0], when=caught[1])


def _amounts(group: Group, caught: Caught) -> Iterator[Finding]:
    """Where chips are asked for: in the Ray container, whole, in limits and equal in requests."""
    containers = group.pod.containers
    if not containers:
        return
    misspelt = any(True for _ in _resource_names(group))
    elsewhere = [*containers[1:], *group.pod.init_containers]
    requests, limits = tpu_amounts(containers[0])
    if not chips_of(containers[0]):
        other = next((each for each in elsewhere if chips_of(each)), None)
        if other is not None:
            place = next(amount for amount in reversed(tpu_amounts(other)) if amount.is_there)
            ray = containers[0].at("name").value
            yield _error(
                place,
                "tpu-container",
                f"chips are asked for by container {other.at('name').value}; Ray runs in the first one, "
                f"{ray}, which gets none and no TPU_* variables",
                f"{TPU}: {in_plain(place.value)} in the limits of {ray}, and not here",
                (Catcher.NOBODY, "the pods run, and JAX in the Ray container finds no TPU"),
            )
        elif not misspelt and not any(
            each.is_there and parse_quantity(each.value) is None for each in (limits, requests)
        ):
            zero = f"{TPU} is {in_plain(limits.value)}" if limits.is_there else f"{TPU} is 0"
            yield _error(limits, "tpu-chips", zero, f"{TPU}: {_chips(group)}", (Catcher.NOBODY, _NO_CHIPS))
        elif not misspelt and not limits.is_there and not requests.is_there:
            what = f"{group.name} selects TPU nodes, but its container asks for no {TPU}"
            yield _error(limits, "tpu-chips", what, f"{TPU}: {_chips(group)}", (Catcher.NOBODY, _NO_CHIPS))
        return
    for amount in (requests, limits):
        number = parse_quantity(amount.value)
        if number is not None and number.denominator != 1:
            what = f"{TPU} is {in_plain(amount.value)}; chips are whole"
            yield _error(amount, "tpu-chips", what, f"{TPU}: {_chips(group)}", caught)
            return
    asked, limit = parse_quantity(requests.value), parse_quantity(limits.value)
    refused_later: Caught = (
        Catcher.OPERATOR,
        "`kubectl apply` succeeds; FailedToCreateWorkerPod events follow and no pod is made",
    )
    if not limits.is_there:
        what = f"{TPU} is in requests but not in limits, which the API server refuses of every pod"
        yield _error(limits, "tpu-limits", what, f"limits: {{{TPU}: {requests.value}}}", refused_later)
    elif asked is not None and limit is not None and asked != limit:
        what = f"{TPU} is {requests.value} in requests and {limits.value} in limits; they must be equal"
        at_fault = caught if caught[0] is Catcher.WEBHOOK else refused_later
        yield _error(requests, "tpu-limits", what, f"{TPU}: {in_plain(limits.value)}", at_fault)


def _chips(group: Group) -> str:
    """The chips a host of the selected shape has, for a message."""
    selector = group.pod.node_selector
    generation = _BY_LABEL.get(selector.at(ACCELERATOR_LABEL).text or "")
    if generation is None:
        return "4"
    shapes = [s for s in slice_shapes(generation) if s.topology == selector.at(TOPOLOGY_LABEL).text]
    hosts = group.count("numOfHosts")
    fitting = [shape for shape in shapes if shape.hosts == hosts] or shapes
    return " or ".join(sorted({str(shape.chips_per_host) for shape in fitting})) or "4"


def counted(count: int, noun: str) -> str:
    """``1 host``, ``4 hosts``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def in_plain(value: object) -> str:
    """A value as it stands in YAML."""
    return "0" if value is None else str(value)


def _labels(group: Group, accelerator: Place, topology: Place, caught: Caught) -> Iterator[Finding]:
    """The two labels that choose the nodes."""
    if topology.text in _BY_LABEL or (accelerator.text and _TOPOLOGY.fullmatch(accelerator.text)):
        yield _error(
            accelerator,
            "tpu-accelerator",
            f"the values of {ACCELERATOR_LABEL} and {TOPOLOGY_LABEL} are swapped",
            f"{ACCELERATOR_LABEL}: {topology.value} and {TOPOLOGY_LABEL}: {accelerator.value}",
            caught,
        )
        return
    if not accelerator.is_there:
        choices = _with_topology(topology.text)
        fix = f"{ACCELERATOR_LABEL}: {' or '.join(choices or _BY_LABEL)}"
        any_pool = (Catcher.NOBODY, "the pods take whatever TPU nodes fit, of any generation")
        at_fault = any_pool if caught[0] is Catcher.NOBODY else caught
        what = f"{group.name} asks for TPU chips without saying of which generation"
        yield _error(accelerator, "tpu-accelerator", what, fix, at_fault)
    elif accelerator.text is not None and accelerator.text not in _BY_LABEL:
        yield _unknown_label(accelerator, accelerator.text)
    if not topology.is_there:
        what = f"{group.name} asks for TPU chips without a topology"
        generation = _BY_LABEL.get(accelerator.text or "", "v6e")
        wanted = (group.count("numOfHosts"), group.chips)
        shapes = slice_shapes(generation)
        some = [s.topology for s in shapes if (s.hosts, s.chips_per_host) == wanted]
        fix = f"{TOPOLOGY_LABEL}: {' or '.join(some or dict.fromkeys(s.topology for s in shapes))}"
        yield _error(topology, "tpu-topology", what, fix, caught)
    elif topology.text is not None:
        yield from _topology(accelerator, topology, topology.text, caught)


def _unknown_label(accelerator: Place, label: str) -> Finding:
    if label in _OTHER_LABELS:
        return accelerator.finding(
            "tpu-accelerator",
            Severity.INFO,
            f"raytpu does not know the shapes of {label}; topology, chips and hosts were not compared",
            fix="nothing",
            caught_by=Catcher.NOBODY,
            when="the pods stay Pending if they do not agree",
        )
    named = next((part for part in re.split(r"[-_]", label.lower()) if part in GENERATIONS), None)
    meant = named or raytpu_name(label)
    close = get_close_matches(label.lower(), _BY_LABEL, n=1, cutoff=0.6)
    value = GENERATIONS[meant].gke_accelerator if meant else close[0] if close else " or ".join(_BY_LABEL)
    what = f"{in_words(label)} is no accelerator of GKE"
    fix = f"{ACCELERATOR_LABEL}: {value}"
    return _error(accelerator, "tpu-accelerator", what, fix, (Catcher.NOBODY, _PENDING))


def _with_topology(topology: str | None) -> list[str]:
    names = dict.fromkeys(shape.generation for shape in slice_shapes() if shape.topology == topology)
    return [GENERATIONS[name].gke_accelerator for name in names]


def _topology(accelerator: Place, topology: Place, written: str, caught: Caught) -> Iterator[Finding]:
    if not _TOPOLOGY.fullmatch(written):
        plain = written.strip().lower().replace("×", "x").replace("*", "x")
        fix = f"{TOPOLOGY_LABEL}: {plain if _TOPOLOGY.fullmatch(plain) else '4x4'}"
        what = f"{in_words(written)} is no topology: chips along each axis, joined by a small x"
        yield _error(topology, "tpu-topology", what, fix, caught)
        return
    generation = _BY_LABEL.get(accelerator.text or "")
    if generation is None:
        return
    shapes = slice_shapes(generation)
    if all(shape.topology != written for shape in shapes):
        fact = GENERATIONS[generation]
        sizes = sorted(int(size) for size in written.split("x"))
        same = next((s.topology for s in shapes if sorted(s.chip_grid) == sizes), None)
        chips = 1
        for size in sizes:
            chips *= size
        near = sorted(shapes, key=lambda s: (abs(s.chips - chips), s.chips))[:3]
        names = list(dict.fromkeys(shape.topology for shape in near))
        why = f"; {generation} has {fact.axes} axes" if len(sizes) != fact.axes else ""
        fix = f"{TOPOLOGY_LABEL}: {same or ' or '.join(names)}"
        elsewhere = [label for label in _with_topology(written) if label != accelerator.text]
        if elsewhere and not same:
            fix += f"; or, if the topology is right, {ACCELERATOR_LABEL}: {' or '.join(elsewhere)}"
        yield _error(topology, "tpu-topology", f"no slice of {generation} is {written}{why}", fix, caught)


def _hosts(group: Group, shapes: list[SliceShape], caught: Caught) -> Iterator[Finding]:
    """Chips of a pod and number of pods, for a topology that exists."""
    container = next(each for each in group.pod.containers if chips_of(each))
    requests, limits = tpu_amounts(container)
    shape, chips, hosts = shapes[0], group.chips, group.count("numOfHosts")
    kinds = " or ".join(
        f"{counted(each.hosts, 'host')} of {counted(each.chips_per_host, 'chip')}" for each in shapes
    )
    fitting = [each for each in shapes if each.chips_per_host == chips]
    if not fitting:
        asking = sum(1 for each in group.pod.containers if chips_of(each))
        together = f"its {asking} containers together ask" if asking > 1 else "its container asks"
        counts = " or ".join(dict.fromkeys(str(each.chips_per_host) for each in shapes))
        yield _error(
            limits if limits.is_there else requests,
            "tpu-chips",
            f"a slice {shape} is {kinds}, but {together} for {chips}",
            f"{TPU}: {counts}" + (" in one container" if asking > 1 else ""),
            caught,
        )
    expected = [each.hosts for each in fitting or shapes]
    if hosts is None or hosts in expected:
        return
    written = group.place.at("numOfHosts")
    said = f"numOfHosts is {hosts}" if written.is_there else "numOfHosts is missing and counts as 1"
    fix = f"numOfHosts: {' or '.join(str(each) for each in expected)}"
    if group.count("replicas") in expected and hosts == 1:
        fix += ", and replicas: 1: replicas counts slices, numOfHosts the hosts of one"
    yield _error(written, "tpu-hosts", f"a slice {shape} is {kinds}, but {said}", fix, caught)
