"""Why a request fits or does not: one object behind the command line, JSON and exceptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from raytpu.errors import SliceVerdict, Unplaceable, VerdictState
from raytpu.plan.choice import Wish, choose, own_shape, wish
from raytpu.plan.inventory import Inventory, SliceState
from raytpu.plan.verdict import verdict_on
from raytpu.spec import Slices
from raytpu.topology import SliceShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A request against a snapshot: one sentence, a verdict for each slice, what to do."""

    sentence: str
    slices: tuple[SliceVerdict, ...]
    """One for every slice of the inventory, in natural name order."""
    next_step: str
    """What would make the request fit; empty when it does, or when the snapshot does not tell."""

    @classmethod
    def of(cls, refusal: Unplaceable) -> Diagnosis:
        """The diagnosis that an exception was made from."""
        return cls(sentence=refusal.sentence, slices=refusal.slices, next_step=refusal.next_step)

    def refusal(self) -> Unplaceable:
        """The same as an exception."""
        return Unplaceable(self.sentence, self.slices, self.next_step)


def diagnose(want: Slices, inventory: Inventory, exclude: frozenset[str] = frozenset()) -> Diagnosis:
    """What each slice of the inventory is to the request, and whether it fits now.

    Args:
        exclude: names of slices not to use, beside those of the request.
    """
    wished, in_order = wish(want, inventory, exclude), inventory.in_order()
    chosen = choose(wished, in_order)
    if len(chosen) < want.least:
        return why_not(wished, in_order, len(chosen))
    where = ", ".join(candidate.state.name for candidate in chosen)
    return Diagnosis(
        sentence=f"{describe(want)} can be had now: {where}",
        slices=tuple(verdict_on(state, wished) for state in in_order),
        next_step="",
    )


def why_not(wished: Wish, in_order: list[SliceState], most: int) -> Diagnosis:
    """The diagnosis of a request for which ``choose`` found ``most`` slices, fewer than will do."""
    verdicts = tuple(verdict_on(state, wished) for state in in_order)
    strangers = [state for state, each in zip(in_order, verdicts, strict=True) if each.state == "other"]
    return Diagnosis(
        sentence=f"need {describe(wished.want)}: {_what_there_is(verdicts)}",
        slices=verdicts,
        next_step=_next_step(wished, in_order, most, strangers),
    )


def never_fits(
    want: Slices, inventory: Inventory, exclude: frozenset[str] = frozenset()
) -> Unplaceable | None:
    """The refusal of a request that no waiting can make fit on the slices of this inventory, else ``None``.

    A slice counts by its labels, whatever the state of its hosts: what is held will be released, what is
    lost may be replaced, a quarantine may be lifted.
    """
    wished = wish(want, inventory, exclude)
    if any(_could(wished, inventory.slices, shape) >= want.least for shape in wished.shapes):
        return None
    return diagnose(want, inventory, exclude).refusal()


def not_given(want: Slices, inventory: Inventory, tries: int) -> Diagnosis:
    """The diagnosis of a request that fits, and to which Ray did not give the hosts."""
    times = "once" if tries == 1 else f"{tries} times"
    return Diagnosis(
        sentence=f"need {describe(want)}: Ray was asked {times} for slices that it shows idle, and gave none",
        slices=diagnose(want, inventory).slices,
        next_step="`ray status` shows what is short on their hosts",
    )


def diagnosis_document(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as JSON-ready values."""
    return {
        "sentence": diagnosis.sentence,
        "slices": [asdict(verdict) for verdict in diagnosis.slices],
        "next_step": diagnosis.next_step,
    }


def describe(want: Slices) -> str:
    """``2 to 4 whole v6e 4x4 (4 × 4 chips) slices in one zone``: with the hosts, which tell apart two shapes
    of one topology."""
    first, *others = want.shapes
    shapes = " or ".join(
        [
            f"{first.generation} {first.topology} {_hosts_text(first)}",
            *(f"{shape.topology} {_hosts_text(shape)}" for shape in others),
        ]
    )
    number = str(want.count) if want.least == want.count else f"{want.least} to {want.count}"
    noun = f"slice{'s' if want.count != 1 else ''}"
    zone = " in one zone" if want.same_zone and want.count > 1 else ""
    if want.sub_slice:
        return f"{number} {shapes} {noun}{zone}, whole or a part of a larger one"
    return f"{number} whole {shapes} {noun}{zone}"


def _hosts_text(shape: SliceShape) -> str:
    return f"({shape.hosts} × {shape.chips_per_host} chip{'s' if shape.chips_per_host != 1 else ''})"


def _what_there_is(verdicts: Sequence[SliceVerdict]) -> str:
    if not verdicts:
        return "the cluster has no TPU slices at all"
    counts = Counter(verdict.state for verdict in verdicts)
    return ", ".join(f"{counts[state]} {state}" for state in get_args(VerdictState) if counts[state])


def _could(wished: Wish, states: Sequence[SliceState], shape: SliceShape) -> int:
    """How many slices of this shape the request could ever get together."""
    zones: Counter[str] = Counter()
    for state in states:
        if state.named and wished.fits(state, shape) and wished.bars(state) is None:
            zone = state.zone if state.zone is not None else f"? {state.name}"
            zones[zone if wished.want.same_zone else ""] += 1
    return max(zones.values(), default=0)


def _next_step(wished: Wish, in_order: list[SliceState], most: int, strangers: list[SliceState]) -> str:
    """What would make a refused request fit; empty when the snapshot does not tell.

    Args:
        most: slices that could be had now, if that many were enough.
        strangers: slices that are not what is asked for.
    """
    want = wished.want
    if not in_order:
        return "`raytpu sim up` brings up simulated slices; on GKE, check that the TPU node pool is up"
    parts = []
    could = max(_could(wished, in_order, shape) for shape in wished.shapes)
    where = " in one zone" if want.same_zone and want.count > 1 else ""
    such = f"{could} such slice{'s' if could != 1 else ''}{where}"
    if 0 < could < want.least:
        parts.append(f"the cluster has {such}, {want.least} are wanted")
    elif could:
        parts.append(f"the cluster has {such}: the request fits when enough of them are whole and idle")
    if most:
        parts.append(f"slices.{'count' if want.min_count is None else 'min_count'}: {most} fits now")
    if others := _idle_in_other_shapes(wished, strangers):
        parts.append(f"idle in another shape: {others}")
    return "; ".join(parts)


def _idle_in_other_shapes(wished: Wish, strangers: list[SliceState]) -> str:
    found: Counter[str] = Counter()
    for state in strangers:
        own = own_shape(state)
        if own is None or state.held_by is not None or state.kept_for is not None or not state.idle:
            continue
        if state.sound_hosts == own.hosts and not any(wished.fits(state, shape) for shape in wished.shapes):
            found[f"{own.generation} {own.topology} with {own.chips_per_host} chips per host"] += 1
    return ", ".join(f"{times} × {shape}" for shape, times in sorted(found.items()))
