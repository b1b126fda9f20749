"""Variables of TPU pods that raytpu, JaxTrainer or the webhook set, and what follows when people set them."""

from __future__ import annotations

from collections.abc import Iterator

from raytpu.lint.findings import Catcher, Finding, Severity
from raytpu.lint.places import Place
from raytpu.lint.ray_documents import Group, RayCluster, environment

_SLICES = "MEGASCALE_NUM_SLICES"
_HANGS = "the pods run, and the program waits for slices that never come"
_PER_POD = ("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES", "TPU_NAME")
_PER_SLICE = ("MEGASCALE_SLICE_ID", "MEGASCALE_COORDINATOR_ADDRESS")


def check_multislice(cluster: RayCluster) -> Iterator[Finding]:
    """Every worker group for TPUs."""
    groups = [group for group in cluster.workers if group.is_for_tpus]
    for group in groups:
        for container in group.pod.containers:
            variables = dict(environment(container))
            yield from _by_hand(group, variables)
            if _SLICES in variables:
                yield from _number_of_slices(cluster, group, groups, variables[_SLICES])
        yield from _independent(group)


def _independent(group: Group) -> Iterator[Finding]:
    slices = group.count("replicas") or 0
    if slices > 1 and group.chips and not any(_SLICES in dict(environment(c)) for c in group.pod.containers):
        yield group.place.at("replicas").finding(
            "multislice-unset",
            Severity.INFO,
            f"{slices} slices without {_SLICES}: the webhook then adds no MEGASCALE_* variables",
            fix=f'env: [{{name: {_SLICES}, value: "{slices}"}}] if one program spans them, unless raytpu or '
            "Ray's JaxTrainer runs it",
            caught_by=Catcher.NOBODY,
            when="each slice runs a program of its own",
        )


def _by_hand(group: Group, variables: dict[str, Place]) -> Iterator[Finding]:
    hosts, slices = group.count("numOfHosts") or 1, group.count("replicas") or 1
    for names, several, whose in (
        (_PER_POD, hosts > 1 or slices > 1, "every pod"),
        (_PER_SLICE, True, "every slice"),
    ):
        for name in names:
            place = variables.get(name)
            if place is None or place.at("valueFrom").is_there or not several:
                continue
            yield place.finding(
                "tpu-variables",
                Severity.ERROR,
                f"{name} is set by hand: the webhook keeps it, and {whose} gets {place.at('value').value}",
                fix=f"nothing: leave {name} out; the webhook sets it right",
                caught_by=Catcher.NOBODY,
                when="the pods run, and JAX hangs or fails when the hosts join",
            )


def _number_of_slices(
    cluster: RayCluster, group: Group, groups: list[Group], variable: Place
) -> Iterator[Finding]:
    text = variable.at("value").text
    if text is None or "$" in text:
        return
    replicas = group.count("replicas")
    wanted = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None
    if wanted is None or wanted < 1:
        what = f"{_SLICES} is {text}, no number of slices"
        yield _wrong(variable, what, f"{_SLICES}: number of slices, as replicas, in quotes")
        return
    least, most = group.count("minReplicas"), group.count("maxReplicas")
    if cluster.autoscales and None not in (least, most) and (least or 0) <= wanted <= (most or 0):
        return
    if replicas is None or replicas == wanted:
        return
    together = [other for other in groups if wanted in _wanted(other)]
    if len(together) > 1 and sum(other.count("replicas") or 0 for other in together) == wanted:
        names = " and ".join(str(other.place.at("groupName").value) for other in together)
        what = (
            f"the {wanted} slices are spread over groups {names}; slice ids count per group, so each group "
            "has a slice 0 and a coordinator of its own"
        )
        yield _wrong(variable, what, f"one group with replicas: {wanted}")
        return
    what = f"{_SLICES} is {wanted}, but {group.name} has replicas: {replicas}"
    yield _wrong(variable, what, f'replicas: {wanted}, or {_SLICES} as "{replicas}"')


def _wanted(group: Group) -> set[int]:
    found = set()
    for container in group.pod.containers:
        text = dict(environment(container)).get(_SLICES, container.at("env")).at("value").text
        if text is not None and text.isascii() and text.isdigit() and len(text) < 6:
            found.add(int(text))
    return found


def _wrong(variable: Place, what: str, fix: str) -> Finding:
    return variable.finding(
        "multislice", Severity.ERROR, what, fix=fix, caught_by=Catcher.NOBODY, when=_HANGS
    )
