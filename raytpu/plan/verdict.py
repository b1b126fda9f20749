"""What one slice is to a request: its state, every reason in words, and how to mend it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from raytpu.errors import SliceVerdict, VerdictState
from raytpu.plan.choice import Candidate, Wish, own_shape
from raytpu.plan.inventory import HostState, Outsider, SliceState
from raytpu.topology import SliceShape, slice_shapes, sub_slices

# Where Ray takes a node's labels from, when it starts (ray 2.60.0, _private/resource_and_label_spec.py and
# _private/accelerators/tpu.py).
_VARIABLE_OF_LABEL = {
    "ray.io/accelerator-type": "TPU_ACCELERATOR_TYPE",
    "ray.io/tpu-topology": "TPU_TOPOLOGY",
    "ray.io/tpu-slice-name": "TPU_NAME",
    "ray.io/tpu-worker-id": "TPU_WORKER_ID",
    "ray.io/availability-zone": "RAY_NODE_ZONE",
}

# Of several reasons, the state is that of the one that lasts longest.
_GRAVITY: tuple[VerdictState, ...] = (
    "other",
    "unlabelled",
    "quarantined",
    "broken",
    "suspect",
    "busy",
    "kept",
)


class Reason(NamedTuple):
    """One reason why a slice cannot be had."""

    state: VerdictState
    why: str
    fix: str = ""
    label: str = ""
    """The missing label, when it is one: several are mended at once."""


def verdict_on(state: SliceState, wished: Wish) -> SliceVerdict:
    """What the slice is to the request."""
    fitting = [shape for shape in wished.shapes if wished.fits(state, shape)]
    if not fitting:
        return _verdict(state, list(_another_shape(state, wished)))
    for shape in fitting:
        usable = wished.candidate(state, shape)
        if usable is not None:
            no_zone = list(_zone_unknown(state, wished))
            return _verdict(state, no_zone) if no_zone else _usable(usable, wished)
    return _verdict(state, list(_reasons(state, wished, fitting)))


def _usable(candidate: Candidate, wished: Wish) -> SliceVerdict:
    state = candidate.state
    zone = f", in {state.zone}" if wished.want.same_zone and state.zone is not None else ""
    if candidate.part is None:
        return SliceVerdict(state.name, "usable", f"whole and idle{zone}")
    hosts = host_list(candidate.worker_ids)
    why = f"{candidate.shape.topology} on {hosts} of {candidate.of} is idle{zone}"
    return SliceVerdict(state.name, "usable", why)


def _verdict(state: SliceState, reasons: list[Reason]) -> SliceVerdict:
    """All reasons in one."""
    if len(reasons) == 1:  # the usual case, in clusters where it is met a thousand times
        [reason] = reasons
        return SliceVerdict(state.name, reason.state, reason.why, reason.fix)
    gravest = min((reason.state for reason in reasons), key=_GRAVITY.index)
    labels = list(dict.fromkeys(reason.label for reason in reasons if reason.label))
    fixes = dict.fromkeys(
        _fix_of_labels(labels) if reason.label else reason.fix
        for reason in reasons
        if reason.label or reason.fix
    )
    return SliceVerdict(state.name, gravest, "; ".join(reason.why for reason in reasons), "; ".join(fixes))


def _reasons(state: SliceState, wished: Wish, fitting: list[SliceShape]) -> Iterator[Reason]:
    """Every reason against a slice that is, or has a part, of a wanted shape."""
    own = own_shape(state)
    assert own is not None  # the labels of a slice that fits name a shape
    if (barred := wished.bars(state)) is not None:
        named = state.name in wished.want.exclude
        yield Reason("other", barred, f"take {state.name} out of slices.exclude" if named else "")
    if state.quarantined is not None:
        yield Reason(
            "quarantined",
            f"under quarantine: {state.quarantined}",
            f"`raytpu slices release {state.name}` lifts it, once the cause is gone",
        )
    if state.held_by is not None:
        yield Reason("busy", f"held by {state.held_by}")
    if state.kept_for is not None:
        yield Reason("kept", f"kept for {state.kept_for}, which comes first")
    yield from _unsound(state, own)
    if state.held_by is None and not state.idle:  # the chips of a held slice are taken by its holder
        if own not in fitting:
            # Said first: single hosts or chips may be idle, and still no part is.
            parts = " or ".join(shape.topology for shape in fitting)
            yield Reason("busy", f"no {parts} part of it is idle")
        yield from _busy(state, own)
    yield from _zone_unknown(state, wished)


def health(state: SliceState) -> SliceVerdict:
    """The slice by itself, whoever has it: ``usable``, or what is broken, suspect or unlabelled."""
    own = own_shape(state)
    reasons = list(_unsound(state, own) if own is not None else _shapeless(state))
    return _verdict(state, reasons) if reasons else SliceVerdict(state.name, "usable", "whole")


def _unsound(state: SliceState, own: SliceShape) -> Iterator[Reason]:
    if state.sound_hosts != own.hosts:
        for host in state.hosts:
            if host.suspect is not None and host.alive:
                yield Reason("suspect", f"{_named(host)}: {host.suspect}")
        yield from _broken(state, own)


def _shapeless(state: SliceState) -> Iterator[Reason]:
    """Why nobody can tell what the slice is."""
    if state.generation is None:
        yield _label_missing("generation unknown", "ray.io/accelerator-type", "its hosts have")
    if state.topology is None:
        yield _label_missing("topology unknown", "ray.io/tpu-topology", "its hosts have")
    if not state.named:
        yield _label_missing("", "ray.io/tpu-slice-name", "its host has")
    if state.generation is None or state.topology is None:
        return
    kinds = [
        each.chips_per_host for each in slice_shapes(state.generation) if each.topology == state.topology
    ]
    if not any(host.alive for host in state.hosts):
        yield Reason(
            "broken", "no host alive", "start Ray on its hosts again; GKE replaces lost hosts by itself"
        )
    elif state.chips_per_host == 0 and kinds:
        yield _no_chips("its hosts have no resource TPU", min(kinds))
    else:
        chips = f"{state.chips_per_host} chips per host"
        yield Reason("other", f"there is no {state.generation} {state.topology} with {chips}")


def _another_shape(state: SliceState, wished: Wish) -> Iterator[Reason]:
    """What makes a slice another one than the wanted."""
    shapes = wished.shapes
    generation, topologies = shapes[0].generation, [shape.topology for shape in shapes]
    if state.generation is None:
        yield _label_missing("generation unknown", "ray.io/accelerator-type", "its hosts have")
    elif state.generation != generation:
        yield Reason("other", f"wrong generation: {state.generation}, not {generation}")
    if state.topology is None:
        yield _label_missing("topology unknown", "ray.io/tpu-topology", "its hosts have")
    elif state.topology not in topologies:
        wanted = " or ".join(topologies)
        if wished.want.sub_slice and state.generation == generation:
            yield Reason("other", f"wrong topology: {state.topology}, which has no part of {wanted}")
        else:
            yield Reason("other", f"wrong topology: {state.topology}, not {wanted}", _as_part(state, wished))
    elif state.generation == generation:
        yield from _other_hosts(state, [shape for shape in shapes if shape.topology == state.topology])


def _other_hosts(state: SliceState, shapes: list[SliceShape]) -> Iterator[Reason]:
    expected = " or ".join(str(shape.chips_per_host) for shape in shapes)
    if any(host.alive for host in state.hosts) and not any(host.chips for host in state.hosts if host.alive):
        yield _no_chips("its hosts have no resource TPU", int(shapes[0].chips_per_host))
    else:
        yield Reason("other", f"wrong chips per host: {state.chips_per_host}, not {expected}")


def _as_part(state: SliceState, wished: Wish) -> str:
    """Advice for a larger slice of which a part would do."""
    own = own_shape(state)
    if own is None or not any(sub_slices(shape, own) for shape in wished.shapes):
        return ""
    return "with slices.sub_slice: true, a part of it would do"


def _broken(state: SliceState, shape: SliceShape) -> Iterator[Reason]:
    if not state.named:  # how many hosts it should have is not worth a word, before that is known
        yield _label_missing("", "ray.io/tpu-slice-name", "its host has")
        return
    # A dead node stays in Ray's list beside the one that replaced it: only the living count.
    alive = [host for host in state.hosts if host.alive]
    hosts = shape.hosts
    claims = Counter(host.worker_id for host in alive if host.worker_id is not None)
    missing = [worker_id for worker_id in range(hosts) if worker_id not in claims]
    nameless = sum(host.worker_id is None for host in alive)
    if missing:
        listed = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
        noun = f"host{'s' if len(missing) > 1 else ''}"
        yield Reason(
            "broken",
            f"{hosts - len(missing)} of {hosts} hosts alive (missing {noun} {listed})",
            # A host that only lacks its label is there: the label is what to mend.
            f"start Ray on {noun} {listed} again; GKE replaces a lost host by itself"
            if nameless < len(missing)
            else "",
        )
    for host in alive:
        yield from _wrong_host(host, shape)
    for worker_id, times in sorted(claims.items()):
        if times > 1:
            where = ", ".join(host.address for host in alive if host.worker_id == worker_id)
            yield Reason(
                "broken",
                f"worker id {worker_id} is claimed by {times} hosts ({where})",
                "stop the one that is not part of the slice; Ray drops a dead one by itself",
            )


def _wrong_host(host: HostState, shape: SliceShape) -> Iterator[Reason]:
    expected = shape.chips_per_host
    if host.worker_id is None:
        yield _label_missing("", "ray.io/tpu-worker-id", f"{_named(host)} has")
    elif not 0 <= host.worker_id < shape.hosts:
        yield Reason(
            "broken",
            f"host at {host.address} has worker id {host.worker_id}, expected 0 to {shape.hosts - 1}",
            "start Ray there with its TPU_WORKER_ID, or with the TPU_NAME of its own slice",
        )
    if host.chips == 0:
        yield _no_chips(f"{_named(host)} has no resource TPU", expected)
    elif host.chips != expected:
        yield Reason(
            "broken",
            f"{_named(host)} has {host.chips} chips, expected {expected}",
            "a chip may be sick: replace the host",
        )


def _busy(state: SliceState, shape: SliceShape) -> Iterator[Reason]:
    holders: dict[str, list[int]] = {}
    for host in state.hosts:
        if host.held_by is not None and host.alive and host.worker_id is not None:
            holders.setdefault(host.held_by, []).append(host.worker_id)
    for holder, workers in holders.items():
        verb = "is" if len(workers) == 1 else "are"
        yield Reason("busy", f"{host_list(workers)} {verb} held by {holder}")
    in_use = [
        host
        for host in state.hosts
        if host.answers  # else what Ray shows of its chips is old
        and host.held_by is None
        and host.chips_free != host.chips
        and host.chips == shape.chips_per_host  # else the number of chips is what is said
    ]
    yield from _used_by_outsiders([host for host in in_use if host.outsiders])
    for host in in_use:
        if not host.outsiders:
            yield Reason(
                "busy",
                f"{_named(host)} has {host.chips_free} of {host.chips} chips free",
                "`raytpu slices` shows who has the others",
            )
    crowded = [host for host in state.hosts if host.crowded and host.held_by is None and host.chips_free]
    for host in crowded:
        yield Reason(
            "busy",
            f"{_named(host)} has no CPU free, and a process takes one",
            "end the tasks or actors that have them, or start Ray there with more --num-cpus",
        )


def _used_by_outsiders(hosts: list[HostState]) -> Iterator[Reason]:
    """One reason for all hosts that the same ones use."""
    by_user: dict[tuple[Outsider, ...], list[HostState]] = {}
    for host in hosts:
        by_user.setdefault(host.outsiders, []).append(host)
    for outsiders, used in by_user.items():
        numbers = [host.worker_id for host in used if host.worker_id is not None]
        where = host_list(numbers) if len(numbers) == len(used) else ", ".join(map(_named, used))
        in_part = "" if all(host.chips_free == 0 for host in used) else " in part"
        verb = "is" if len(used) == 1 else "are"
        users = " and ".join(each.who for each in outsiders)
        yield Reason(
            "busy",
            f"{where} {verb} used{in_part} by {users}, outside raytpu",
            "; ".join(dict.fromkeys(each.fix for each in outsiders if each.fix)),
        )


def _zone_unknown(state: SliceState, wished: Wish) -> Iterator[Reason]:
    if wished.zone_missing(state):
        yield _label_missing("zone unknown", "ray.io/availability-zone", "its hosts have")


def _label_missing(what: str, label: str, who_has: str) -> Reason:
    text = f"{who_has} no label {label}"
    return Reason("unlabelled", f"{what} ({text})" if what else text, _fix_of_labels([label]), label)


def _fix_of_labels(labels: Sequence[str]) -> str:
    variables = " and ".join(_VARIABLE_OF_LABEL[label] for label in labels)
    return (
        f"start Ray there with {variables} set, or with --labels {','.join(f'{label}=…' for label in labels)}"
    )


def _no_chips(why: str, expected: int) -> Reason:
    return Reason(
        "unlabelled",
        why,
        "Ray found no TPU chips there (/dev/accel*, /dev/vfio): mend the device plugin or driver, or start "
        f"Ray with --resources '{{\"TPU\": {expected}}}'",
    )


def _named(host: HostState) -> str:
    return f"host at {host.address}" if host.worker_id is None else f"host {host.worker_id}"


def host_list(worker_ids: Iterable[int]) -> str:
    """``host 3``, ``hosts 0, 1, 4 to 7``."""
    runs: list[list[int]] = []
    for worker_id in sorted(worker_ids):
        if runs and worker_id == runs[-1][-1] + 1:
            runs[-1].append(worker_id)
        else:
            runs.append([worker_id])
    texts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    plural = "s" if len(runs) > 1 or len(runs[0]) > 1 else ""
    return f"host{plural} {', '.join(texts)}"
