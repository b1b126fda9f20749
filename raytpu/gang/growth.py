"""Slices that the cluster does not have yet, asked of Ray's autoscaler through placement groups that wait.

What is asked, and why, is in ``plan.growth``. Whether the cluster can grow a slice is not written down
anywhere: ``get_cluster_config`` would say it, but nothing in Ray 2.60 fills it in. So it is asked, and the
autoscaler's answer is heard: after each pass it tells the GCS which placement groups it cannot serve
(``infeasible_gang_resource_requests``). An answer takes one pass, 5 s by default on KubeRay.

A cluster without autoscaler v2 is known from one key of the GCS and asked nothing more. Autoscaler v1 gives
no such answers; it counts as none.
"""

from __future__ import annotations

import time
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from raytpu.gang import ray_internals
from raytpu.gang.demand_bundles import bundles, head_of, in_words
from raytpu.gang.placement import name_of
from raytpu.plan import Diagnosis, Inventory
from raytpu.plan.book_view import Growing
from raytpu.plan.growth import (
    LAUNCHED_AT_ONCE,
    Demand,
    Shortfall,
    accepted,
    arriving,
    changeling,
    continued,
    first_demand,
    refused,
    slices_at_once,
    taken,
)
from raytpu.plan.ledger import Request
from raytpu.topology import SliceShape

ASK_AGAIN_S = 60.0
"""After "no": limits are edited, and what stood in the way ends. Until then the same is refused at once."""

MISFIT_S = 600.0
"""After slices of another shape came. Each attempt costs a slice."""

SERVED_S = 30.0
"""A demand that was placed keeps its hosts this long for its request, which gets them at once as a rule. A
host that nobody has is idle since it came up, and the autoscaler may take it away at its next pass."""

HEAR_S = 0.5
"""Between two questions to the GCS, which answers with the state of every node; longer where that takes time,
so that it is 5 % of the book's time at most."""

SILENT_S = 60.0
"""Without an answer, there is no autoscaler. Its pass takes 5 s by default, and seconds more when Kubernetes
is slow."""

SEEN_FREE_S = 3.0
"""Ray shows a host that was given back as in use for up to a second, and the autoscaler refuses what is asked
to include it."""

IN_FLIGHT_S = 60.0
"""For the cloud to show the nodes that the autoscaler asked for; the pods of a KubeRay cluster are there in a
second. What is owed for longer will not come."""

LOST_S = 15.0
"""A new slice that is neither on its way nor there for this long is asked for anew."""

_LOOK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A request that waits."""

    request: Request
    lacks: tuple[Shortfall, ...]
    """What would serve it, in order of preference; empty while nothing has to change for it."""


@dataclass(slots=True, kw_only=True)
class _Standing:
    """A demand, and the placement group that shows it."""

    demand: Demand
    group: PlacementGroup
    since_s: float
    shown: int | None = None
    """A version of the GCS's state in which the group was there and waited."""
    missed_since_s: float | None = None
    """Since when nothing that was accepted is on its way or there."""
    nodes: frozenset[str] = frozenset()
    """Ids of those that Ray has placed it on, and which it keeps for its request."""
    placed_s: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ruling:
    """No ``slices`` more of this shape, for a while."""

    shape: SliceShape
    slices: int
    until_s: float
    why: str


class Growth:
    """The demands that stand now, and the means to change them. Used by one thread, connected to Ray."""

    def __init__(self) -> None:
        self._standing: dict[str, _Standing] = {}
        self._rulings: list[_Ruling] = []
        self._hopeless: dict[str, str] = {}
        self._serial = 0
        self._autoscaled: bool | None = None
        self._state: ray_internals.AutoscalerState | None = None
        self._heard_s = self._looked_s = float("-inf")
        self._pause_s = HEAR_S
        self._owed_since_s: float | None = None

    # -- what is known -----------------------------------------------------------------------------------

    @property
    def growing(self) -> tuple[Growing, ...]:
        """Every slice that the autoscaler is asked for."""
        return tuple(
            Growing(
                request_id=each.demand.request.id,
                owner=each.demand.request.owner,
                generation=each.demand.shape.generation,
                topology=each.demand.shape.topology,
            )
            for each in self._standing.values()
            if not each.nodes
            for _ in range(each.demand.new)
        )

    @property
    def kept_nodes(self) -> frozenset[str]:
        """Ids of nodes that are kept from the autoscaler, for whoever the book gives them to."""
        return frozenset[str]().union(*(each.nodes for each in self._standing.values()))

    def possible(self, shape: SliceShape) -> bool:
        """Whether there is an autoscaler to ask, and it has not refused slices of this shape lately."""
        return self._there_is_one and self._ruling(shape, 1) is None

    def hopeful(self, request_id: str) -> bool:
        """Whether slices for this request may still be brought up; so it is not refused for never fitting."""
        return self._there_is_one and request_id not in self._hopeless

    def told(self, diagnosis: Diagnosis, request_id: str) -> Diagnosis:
        """The diagnosis of a request with what the autoscaler does about it."""
        steps = [step for step in (diagnosis.next_step, self._says(request_id)) if step]
        return replace(diagnosis, next_step="; ".join(steps))

    def _says(self, request_id: str) -> str:
        if request_id in self._hopeless:
            return self._hopeless[request_id]
        standing = self._standing.get(request_id)
        if standing is None or standing.nodes:
            return ""
        demand = standing.demand
        hosts = demand.shape.hosts
        words = f"Ray's autoscaler {'brings up' if demand.coming else 'is asked for'} {in_words(demand)}"
        if hosts > LAUNCHED_AT_ONCE and not (self._state is not None and self._state.starting):
            return (
                f"{words}, which come if AUTOSCALER_MAX_CONCURRENT_LAUNCHES in its environment is {hosts} or "
                f"more ({LAUNCHED_AT_ONCE} by default)"
            )
        return f"{words}, but nodes that it requested do not come (`ray status`)" if self._stuck else words

    @property
    def _there_is_one(self) -> bool:
        if self._autoscaled is None:
            self._autoscaled = ray_internals.autoscaler_v2()
        return self._autoscaled

    # -- what is wanted ----------------------------------------------------------------------------------

    def want(self, wanted: Sequence[Wanted], inventory: Inventory, given: Set[str]) -> None:
        """Let the autoscaler see what these requests lack, and nothing for any other.

        Args:
            wanted: requests that wait.
            inventory: what is there.
            given: ids of nodes that are about to be placed on.
        """
        by_id = {each.request.id: each for each in wanted}
        for request_id in [of for of, standing in self._standing.items() if standing.nodes & given]:
            self._withdraw(request_id)
        self._hopeless = {of: why for of, why in self._hopeless.items() if of in by_id}
        if not self._standing and not any(each.lacks for each in wanted):
            return
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S and by_id.keys() == self._standing.keys():
            return
        self._looked_s = now_s
        self._hear(now_s)
        if self._state is None:
            return
        self._rulings = [ruling for ruling in self._rulings if ruling.until_s > now_s]
        for request_id in [each for each in self._standing if each not in by_id]:
            self._withdraw(request_id)
        for request_id, standing in list(self._standing.items()):
            self._follow(request_id, standing, inventory, now_s)
        for each in wanted:
            if each.lacks:
                self._serve(each, inventory, now_s)

    def _serve(self, wanted: Wanted, inventory: Inventory, now_s: float) -> None:
        """The demand of one request, as it has to be now."""
        request_id = wanted.request.id
        standing = self._standing.get(request_id)
        if standing is not None and standing.nodes:
            return
        rulings = [self._ruling(lack.shape, lack.missing) for lack in wanted.lacks]
        open_lacks = [lack for lack, no in zip(wanted.lacks, rulings, strict=True) if no is None]
        if not open_lacks:
            self._withdraw(request_id)
            self._hopeless[request_id] = "; ".join(dict.fromkeys(no.why for no in rulings if no is not None))
            return
        self._hopeless.pop(request_id, None)
        lack = open_lacks[0]
        if standing is not None:
            same = [each for each in open_lacks if each.shape == standing.demand.shape]
            lack = same[0] if same else lack
        at_once = slices_at_once(lack.shape, self._nodes_in_flight())
        if standing is None or standing.demand.shape != lack.shape:
            demand = first_demand(wanted.request, lack, inventory, at_once)
        else:
            demand = continued(standing.demand, lack, inventory, at_once)
        if demand is None:
            self._withdraw(request_id)
        else:
            self._show(demand, inventory, now_s)

    def _nodes_in_flight(self) -> int:
        """Nodes that the cloud owes, or is about to be asked for."""
        assert self._state is not None
        asked = sum(each.demand.asked * each.demand.shape.hosts for each in self._standing.values())
        return asked + (0 if self._stuck else self._state.requested)

    # -- what the autoscaler says ------------------------------------------------------------------------

    def _hear(self, now_s: float) -> None:
        if now_s - self._heard_s < self._pause_s:
            return
        heard = ray_internals.autoscaler_state()
        self._heard_s = time.monotonic()
        self._pause_s = max(HEAR_S, 20 * (self._heard_s - now_s))
        if heard is None:
            return
        if heard.requested == 0 or self._state is None or self._state.requested != heard.requested:
            self._owed_since_s = now_s if heard.requested else None
        self._state = heard

    @property
    def _stuck(self) -> bool:
        """The cloud has owed the same nodes for long."""
        return self._owed_since_s is not None and time.monotonic() - self._owed_since_s > IN_FLIGHT_S

    def _follow(self, request_id: str, standing: _Standing, inventory: Inventory, now_s: float) -> None:
        """See what has become of a demand."""
        assert self._state is not None
        demand = standing.demand
        if standing.nodes:
            alive = {host.node_id for state in inventory.slices for host in state.hosts if host.alive}
            if now_s - standing.placed_s > SERVED_S or not standing.nodes <= alive:
                self._withdraw(request_id)
            return
        awaited = {each.demand.shape for each in self._standing.values()}
        other = changeling(demand, inventory, awaited)
        if other is not None:
            what = f"{other.generation} {other.topology} with {other.chips_per_host} chips per host"
            self._rule_out(
                demand, f"Ray's autoscaler has brought up {other.name} instead: a {what}", MISFIT_S
            )
            self._withdraw(request_id)
        elif standing.group.wait(0.001):
            placed_on = placement_group_table(standing.group)["bundles_to_node_id"].values()
            standing.nodes, standing.placed_s = frozenset(placed_on), now_s
            standing.demand = accepted(demand)
        else:
            answer = self._answer(standing)
            if answer is None:
                if demand.asked and now_s - standing.since_s > SILENT_S:
                    self._rule_out(
                        demand, f"no answer from Ray's autoscaler for {SILENT_S:.0f} s", ASK_AGAIN_S
                    )
            elif not answer:
                self._refused(standing, inventory, now_s)
            elif demand.asked:
                if self._launched(demand, inventory):
                    self._show(accepted(demand), inventory, now_s)
            elif self._missed(standing, inventory, now_s):
                self._withdraw(request_id)

    def _answer(self, standing: _Standing) -> bool | None:
        """Whether the autoscaler can do what is asked; ``None`` before it has seen it."""
        assert self._state is not None
        group_id = standing.group.id.hex()
        if standing.shown is None and group_id in self._state.waiting:
            standing.shown = self._state.version
        if standing.shown is None or self._state.worked_on <= standing.shown:
            return None
        return group_id not in self._state.refused

    def _launched(self, demand: Demand, inventory: Inventory) -> bool:
        """Whether there is a machine for every node that the autoscaler has requested.

        A launch can fail after it was agreed to: KubeRay's does while pods of any group are being deleted.
        The next pass tries again, and must find the demand unchanged.
        """
        assert self._state is not None
        return not self._state.requested or (not demand.coming and bool(arriving(demand, inventory)))

    def _refused(self, standing: _Standing, inventory: Inventory, now_s: float) -> None:
        demand = standing.demand
        assert self._state is not None
        if demand.kept and now_s - standing.since_s < SEEN_FREE_S:
            standing.shown = self._state.version  # heard again after the next pass
            return
        less = refused(demand)
        if less is not None:
            self._show(less, inventory, now_s)
            return
        self._withdraw(demand.request.id)
        if demand.asked:  # else what was on its way is gone, and is asked for anew
            self._rule_out(
                demand,
                f"Ray's autoscaler cannot add {in_words(demand)}: no worker group offers "
                f"{head_of(demand.shape)} with {demand.shape.chips_per_host} chips a host, "
                "or its maxReplicas is reached",
                ASK_AGAIN_S,
            )

    def _missed(self, standing: _Standing, inventory: Inventory, now_s: float) -> bool:
        """Whether what was accepted is neither on its way nor there, or has gone to somebody else."""
        assert self._state is not None
        if self._state.requested or self._state.starting or arriving(standing.demand, inventory):
            standing.missed_since_s = None
            return False
        if standing.missed_since_s is None:
            standing.missed_since_s = now_s
        return taken(standing.demand, inventory) or now_s - standing.missed_since_s > LOST_S

    def _ruling(self, shape: SliceShape, slices: int) -> _Ruling | None:
        now_s = time.monotonic()
        return next(
            (no for no in self._rulings if no.shape == shape and no.slices <= slices and no.until_s > now_s),
            None,
        )

    def _rule_out(self, demand: Demand, why: str, for_s: float) -> None:
        until_s = time.monotonic() + for_s
        self._rulings.append(_Ruling(shape=demand.shape, slices=demand.new, until_s=until_s, why=why))

    # -- placement groups --------------------------------------------------------------------------------

    def _show(self, demand: Demand, inventory: Inventory, now_s: float) -> None:
        """Let the placement group of a request be the one for this demand."""
        standing = self._standing.get(demand.request.id)
        if standing is not None and standing.demand == demand:
            return
        nodes = list(bundles(demand, inventory))
        if standing is not None and nodes == list(bundles(standing.demand, inventory)):
            standing.demand = demand  # slices of one host: accepted or not, they look the same
            return
        # In this order: a pass of the autoscaler that saw both would bring up twice as much.
        self._withdraw(demand.request.id)
        self._serial += 1
        group = placement_group(
            [resources for resources, _ in nodes],
            strategy="STRICT_SPREAD",
            name=name_of(demand.request, f"demand-{self._serial}"),
            lifetime="detached",
            bundle_label_selector=[labels for _, labels in nodes],
        )
        self._standing[demand.request.id] = _Standing(demand=demand, group=group, since_s=now_s)

    def _withdraw(self, request_id: str) -> None:
        standing = self._standing.pop(request_id, None)
        if standing is not None:
            remove_placement_group(standing.group)
