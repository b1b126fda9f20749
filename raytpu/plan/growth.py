"""What Ray's autoscaler is asked for, so that a request which waits gets its slices. Pure.

How autoscaler v2 and its KubeRay provider work (Ray 2.60.0; read in ``autoscaler/v2/scheduler.py``,
``…/instance_manager/reconciler.py`` and ``…/cloud_providers/kuberay/cloud_provider.py``, seen in
``tests/local_ray/test_growth.py``):

* Every pass it fits the placement groups that wait onto nodes: those that run, as they are; those that are on
  their way, as its account of their group says; then imagined new ones. For whatever is imagined it raises
  ``replicas`` of the group to ``(nodes there are + new ones) // numOfHosts``, **rounded down**. Asked for one
  host of a slice of several it adds nothing, and keeps that host in its books as on its way for 10 minutes.
  So all hosts of a slice are asked for, in one placement group.
* Its account of a TPU group gives the head resource ``TPU-<pod type>-head`` to *every* host of it; in truth
  worker 0 alone has it. Labels of hosts are not in the account, unless the manifest has ``labels``. So the
  head is what tells one kind of slice from another. It is asked for on every host, until the autoscaler has
  accepted; and on one host of each slice from then on, because a host that has come up without it would not
  fit, and another one would be launched for it.
* It takes nodes away that are idle for a while. What a request has ready, and waits to be joined by more,
  must be part of what it asks for.
* It asks the cloud for 10 nodes at most at a time (``AUTOSCALER_MAX_CONCURRENT_LAUNCHES``), and this too is
  rounded down. More slices are asked for when those before them are on their way, and no host of them is up
  yet, or all are.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, replace

from raytpu.plan.choice import choose, own_shape, wish
from raytpu.plan.diagnosis import Diagnosis, never_fits
from raytpu.plan.inventory import Inventory, SliceState
from raytpu.plan.ledger import Ledger, Request
from raytpu.plan.occupancy import without_holder
from raytpu.topology import SliceShape

GROW_AFTER_S = 5.0
"""A request that could fit waits this long before a slice is brought up for it: one that was given back a
moment ago is on its way to it, and a new one takes minutes and money."""

LAUNCHED_AT_ONCE = 10
"""Nodes (``autoscaler/_private/constants.py``). Its environment may say more; nobody else can read that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """What a request lacks, were slices of one shape to serve it."""

    shape: SliceShape
    ready: tuple[str, ...]
    """Slices that it could have now, all of them idle or with an idle part."""
    missing: int

    @property
    def least(self) -> int:
        return len(self.ready) + self.missing


def shortfalls(
    request: Request, diagnosis: Diagnosis, ledger: Ledger, inventory: Inventory, now_s: float
) -> tuple[Shortfall, ...]:
    """What a request that waits lacks, in order of preference; nothing when it need not be asked for.

    That is so while slices that are being given back would do. The fewest slices that will do are counted:
    the request is served as soon as those are there.

    Args:
        request: one that waits.
        diagnosis: why it does.
        ledger: of the moment of the diagnosis.
        inventory: likewise, with the marks of ``seen_with``.
        now_s: by the book's clock.
    """
    want = request.want
    if never_fits(want, inventory) is None:
        given_back = [lease for lease in ledger.leases if lease.notice is not None or lease.state == "ending"]
        later = without_holder(inventory, [planned for lease in given_back for planned in lease.slices])
        soon = choose(wish(want, later), later.in_order())
        if now_s - request.arrived_s < GROW_AFTER_S or len(soon) >= want.least:
            return ()
    usable = {verdict.name for verdict in diagnosis.slices if verdict.state == "usable"}
    in_order = [state for state in inventory.in_order() if state.name in usable]
    wished = wish(want, inventory)
    found = []
    for shape in wished.shapes:
        chosen = choose(replace(wished, shapes=(shape,)), in_order)
        ready = tuple(candidate.state.name for candidate in chosen)
        found.append(Shortfall(shape=shape, ready=ready, missing=max(0, want.least - len(ready))))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What the autoscaler is shown as needed for one request."""

    request: Request
    shape: SliceShape
    known: frozenset[str]
    """Every slice that there was at first. None of them may serve this demand, beside those that are kept."""
    kept: tuple[str, ...] = ()
    """Those of them that are ready, and must not be taken away as idle."""
    keeps: bool = True
    """``False`` once the autoscaler has refused with ``kept``: it may not know their nodes."""
    coming: int = 0
    """New slices that it has accepted to bring up."""
    asked: int = 0
    """New slices that it has not accepted yet."""

    @property
    def new(self) -> int:
        return self.coming + self.asked


def slices_at_once(shape: SliceShape, nodes_in_flight: int) -> int:
    """How many more slices may be asked for while the cloud owes ``nodes_in_flight`` nodes.

    A slice of more hosts than are launched at once is asked for when nothing else is: with a higher
    limit in the autoscaler's environment it comes, and else the attempt does no harm to others.
    """
    if nodes_in_flight == 0:
        return max(1, LAUNCHED_AT_ONCE // shape.hosts)
    return max(0, LAUNCHED_AT_ONCE - nodes_in_flight) // shape.hosts


def first_demand(request: Request, lack: Shortfall, inventory: Inventory, at_once: int) -> Demand | None:
    """The demand to begin with; ``None`` when nothing may be asked for now."""
    asked = min(lack.missing, at_once)
    if not asked:
        return None
    return Demand(
        request=request,
        shape=lack.shape,
        known=frozenset(state.name for state in inventory.slices),
        kept=lack.ready,
        asked=asked,
    )


def accepted(demand: Demand) -> Demand:
    """The autoscaler brings up what was asked."""
    return replace(demand, coming=demand.new, asked=0)


def continued(demand: Demand, lack: Shortfall, inventory: Inventory, at_once: int) -> Demand:
    """The demand for what is ready and on its way now, asking for the next slices when it may."""
    here = arriving(demand, inventory)
    arrived = [name for name in lack.ready if name not in demand.known]
    if demand.coming and len(arrived) >= demand.coming:  # from now on they are kept by name
        demand, here = replace(demand, known=demand.known.union(arrived), coming=0), ()
    elif demand.coming and here:
        demand, at_once = replace(demand, asked=0), 0
    ready = tuple(name for name in lack.ready if name in demand.known)
    more = lack.least - len(ready) - demand.new
    asked = demand.asked or max(0, min(more, at_once))
    room = max(0, lack.least - demand.coming - asked)
    return replace(demand, asked=asked, kept=ready[:room] if demand.keeps else ())


def refused(demand: Demand) -> Demand | None:
    """What to show after the autoscaler has said that it cannot do it; ``None`` when there is nothing left to
    try."""
    return replace(demand, kept=(), keeps=False) if demand.kept else None


def arriving(demand: Demand, inventory: Inventory) -> tuple[SliceState, ...]:
    """New slices of the demanded kind of which at least one host is there, and that nobody holds."""
    return tuple(state for state in _new_ones(demand, inventory) if state.held_by is None)


def taken(demand: Demand, inventory: Inventory) -> bool:
    """Whether somebody else, who came first, has got a new slice of the demanded kind."""
    return any(state.held_by is not None for state in _new_ones(demand, inventory))


def _new_ones(demand: Demand, inventory: Inventory) -> Iterator[SliceState]:
    for state in inventory.slices:
        if state.name not in demand.known and any(host.alive for host in state.hosts):
            own = own_shape(state)
            if own is not None and own.ray_pod_type == demand.shape.ray_pod_type:
                yield state


def changeling(demand: Demand, inventory: Inventory, awaited: Set[SliceShape]) -> SliceState | None:
    """A new slice of another shape than was meant, which to the autoscaler is the same.

    A v5e or v6e 2x4 of one 8-chip host has the pod type of a 2x4 of two 4-chip hosts, and a demand for 4
    chips fits a host of 8. Where both kinds can be had, the autoscaler prefers the one that is used up.

    Args:
        demand: what was accepted.
        inventory: as it is now.
        awaited: shapes that other demands are for.
    """
    if not demand.coming:
        return None
    expected = awaited | {demand.shape}
    return next((each for each in arriving(demand, inventory) if own_shape(each) not in expected), None)
