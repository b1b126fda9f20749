"""Why a slice cannot be used, and what the user can do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from raytpu.errors import SliceVerdict, VerdictState
from raytpu.plan.inventory import HostState, SliceState
from raytpu.topology import SliceShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a slice must be, to be used."""

    shape: SliceShape
    hosts: int
    """``shape.hosts``, kept because it is asked for once per slice of a large cluster."""
    exclude: frozenset[str]
    real_slices_exist: bool

    def ever(self, state: SliceState) -> bool:
        """Whether the slice could be used if it were whole and idle."""
        excluded = state.name in self.exclude or (state.simulated and self.real_slices_exist)
        return not excluded and not self.wrong_shape(state)

    def verdict(self, state: SliceState) -> SliceVerdict:
        """What the slice is to the request."""
        why = self.why_not(state)
        if why is None:
            return SliceVerdict(state.name, "usable", "whole and idle")
        return SliceVerdict(state.name, self._state_of(state), why)

    def _state_of(self, state: SliceState) -> VerdictState:
        if state.generation is None or state.topology is None:
            return "unlabelled"
        if not self.ever(state):
            return "other"
        if state.quarantined is not None:
            return "quarantined"
        if any(host.suspect is not None for host in state.hosts):
            return "suspect"
        if not self._is_whole(state):
            return "broken"
        if state.held_by is not None or self._busy(state):
            return "busy"
        return "kept"

    def why_not(self, state: SliceState) -> str | None:
        """Every reason against a slice, in words; ``None`` when it can be used."""
        if wrong := self.wrong_shape(state):
            return "; ".join(wrong)
        reasons = []
        if state.simulated and self.real_slices_exist:
            reasons.append("simulated, in a cluster with real slices")
        if state.name in self.exclude:
            reasons.append("excluded by this request")
        if state.quarantined is not None:
            reasons.append(f"under quarantine: {state.quarantined}")
        if state.held_by is not None:
            reasons.append(f"held by {state.held_by}")
        if state.kept_for is not None:
            reasons.append(f"idle, but kept for {state.kept_for}, which comes first")
        reasons += [f"{_named(host)}: {host.suspect}" for host in state.hosts if host.suspect is not None]
        if not self._is_whole(state):
            reasons += self._broken(state)
        if state.held_by is None:  # the chips of a held slice are taken by its holder
            reasons += self._busy(state)
        return "; ".join(reasons) or None

    def wrong_shape(self, state: SliceState) -> list[str]:
        """What makes a slice another one than the wanted; such a slice will never do."""
        shape = self.shape
        reasons = []
        if state.generation is None:
            reasons.append("generation unknown (its hosts have no label ray.io/accelerator-type)")
        elif state.generation != shape.generation:
            reasons.append(f"wrong generation: {state.generation}, not {shape.generation}")
        if state.topology is None:
            reasons.append("topology unknown (its hosts have no label ray.io/tpu-topology)")
        elif state.topology != shape.topology:
            reasons.append(f"wrong topology: {state.topology}, not {shape.topology}")
        if not reasons and state.chips_per_host != shape.chips_per_host:
            reasons.append(f"wrong chips per host: {state.chips_per_host}, not {shape.chips_per_host}")
        return reasons

    def _is_whole(self, state: SliceState) -> bool:
        chips = self.shape.chips_per_host
        return len(state.hosts) == self.hosts and all(
            host.alive and host.worker_id == position and host.chips == chips
            for position, host in enumerate(state.hosts)
        )

    def _broken(self, state: SliceState) -> list[str]:
        # A dead node stays in Ray's list beside the one that replaced it: only the living count.
        alive = [host for host in state.hosts if host.alive]
        claims = Counter(host.worker_id for host in alive if host.worker_id is not None)
        reasons = []
        missing = [worker_id for worker_id in range(self.hosts) if worker_id not in claims]
        if missing:
            listed = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
            reasons.append(
                f"{self.hosts - len(missing)} of {self.hosts} hosts alive "
                f"(missing host{'s' if len(missing) > 1 else ''} {listed})"
            )
        for host in alive:
            if host.worker_id is None:
                reasons.append(f"host at {host.address} has no label ray.io/tpu-worker-id")
            elif not 0 <= host.worker_id < self.hosts:
                reasons.append(
                    f"host at {host.address} has worker id {host.worker_id}, expected 0 to {self.hosts - 1}"
                )
            if host.chips != self.shape.chips_per_host:
                reasons.append(f"{_named(host)} has {host.chips} chips, expected {self.shape.chips_per_host}")
        for worker_id, times in sorted(claims.items()):
            if times > 1:
                where = ", ".join(host.address for host in alive if host.worker_id == worker_id)
                reasons.append(f"worker id {worker_id} is claimed by {times} hosts ({where})")
        return reasons

    def _busy(self, state: SliceState) -> list[str]:
        parts = [
            f"{_named(host)} is held by {host.held_by}" for host in state.hosts if host.held_by is not None
        ]
        return parts + [
            f"{_named(host)} has {host.chips_free} of {host.chips} chips free"
            for host in state.hosts
            if host.held_by is None
            and host.chips_free != host.chips
            and host.alive
            and host.chips == self.shape.chips_per_host
        ]


def describe_shape(shape: SliceShape) -> str:
    """``v6e 2x4 (2 × 4 chips)``: with the hosts, which tell apart two shapes of one topology."""
    return f"{shape.generation} {shape.topology} ({shape.hosts} × {shape.chips_per_host} chips)"


def next_step(count: int, fit: Fit, states: Sequence[SliceState], *, idle: int) -> str:
    """What would make a refused request fit; empty when the snapshot does not tell.

    Args:
        count: slices wanted.
        idle: slices that could be used, fewer than ``count``.
    """
    if not states:
        return "`raytpu sim up` brings up simulated slices; on GKE, check that the TPU node pool is up"
    same = sum(not fit.wrong_shape(state) for state in states)
    such = f"{same} such slice{'s' if same != 1 else ''}"
    parts = []
    if 0 < same < count:
        parts.append(f"the cluster has {such}, {count} are wanted")
    elif same:
        parts.append(f"the cluster has {such}: the request fits when enough of them are whole and idle")
    if idle:
        parts.append(f"slices.count: {idle} fits now")
    if others := _idle_in_other_shapes(fit, states):
        parts.append(f"idle in another shape: {others}")
    return "; ".join(parts)


def _idle_in_other_shapes(fit: Fit, states: Sequence[SliceState]) -> str:
    found: Counter[str] = Counter()
    for state in states:
        if state.generation is None or state.topology is None or state.held_by is not None:
            continue
        idle = state.hosts and all(host.alive and host.chips_free == host.chips > 0 for host in state.hosts)
        if idle and fit.wrong_shape(state):
            found[f"{state.generation} {state.topology} with {state.chips_per_host} chips per host"] += 1
    return ", ".join(f"{times} × {shape}" for shape, times in sorted(found.items()))


def _named(host: HostState) -> str:
    return f"host at {host.address}" if host.worker_id is None else f"host {host.worker_id}"
