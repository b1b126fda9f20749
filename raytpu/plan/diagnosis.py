"""Why a request fits or does not: one object behind the command line, JSON and exceptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from raytpu.errors import SliceVerdict, Unplaceable
from raytpu.plan.inventory import Inventory, natural_order
from raytpu.plan.refusal import Fit, describe_shape, next_step
from raytpu.spec import Slices


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A request against a snapshot: one sentence, a verdict for each slice, what to do."""

    sentence: str
    slices: tuple[SliceVerdict, ...]
    """One for every slice of the inventory, in natural name order."""
    next_step: str
    """What would make the request fit; empty when it does, or when the snapshot does not tell."""

    def refusal(self) -> Unplaceable:
        """The same as an exception."""
        return Unplaceable(self.sentence, self.slices, self.next_step)


def diagnose(want: Slices, inventory: Inventory, exclude: frozenset[str] = frozenset()) -> Diagnosis:
    """What each slice of the inventory is to the request."""
    shape = want.shape
    in_order = sorted(inventory.slices, key=lambda state: natural_order(state.name))
    real_exist = any(not state.simulated for state in in_order)
    fit = Fit(shape=shape, hosts=shape.hosts, exclude=exclude, real_slices_exist=real_exist)
    verdicts = tuple(fit.verdict(state) for state in in_order)
    usable = sum(verdict.state == "usable" for verdict in verdicts)
    wanted = f"{want.count} whole {describe_shape(shape)} slice{'s' if want.count != 1 else ''}"
    if usable >= want.count:
        return Diagnosis(sentence=f"{wanted} can be had now", slices=verdicts, next_step="")
    counts = Counter(verdict.state for verdict in verdicts)
    have = ", ".join(f"{count} {state}" for state, count in counts.items())
    return Diagnosis(
        sentence=f"need {wanted}: {have or 'the cluster has no TPU slices at all'}",
        slices=verdicts,
        next_step=next_step(want.count, fit, in_order, idle=usable),
    )


def diagnosis_document(diagnosis: Diagnosis) -> Mapping[str, Any]:
    """The diagnosis as JSON-ready values."""
    return {
        "sentence": diagnosis.sentence,
        "slices": [asdict(verdict) for verdict in diagnosis.slices],
        "next_step": diagnosis.next_step,
    }


def never_fits(
    want: Slices, inventory: Inventory, exclude: frozenset[str] = frozenset()
) -> Unplaceable | None:
    """The refusal of a request that no waiting can make fit on the slices of this inventory, else ``None``.

    A slice counts by its labels, whatever the state of its hosts: what is held will be released, what is
    lost may be replaced, a quarantine may be lifted.
    """
    shape = want.shape
    real_exist = any(not state.simulated for state in inventory.slices)
    fit = Fit(shape=shape, hosts=shape.hosts, exclude=exclude, real_slices_exist=real_exist)
    if sum(fit.ever(state) for state in inventory.slices) >= want.count:
        return None
    return diagnose(want, inventory, exclude).refusal()
