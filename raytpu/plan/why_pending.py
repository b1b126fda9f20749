"""What a book of slices has to say about one owner: what it holds, or why it waits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from raytpu.errors import VERDICTS_SHOWN, SliceVerdict
from raytpu.plan.book_view import BookView
from raytpu.plan.diagnosis import Diagnosis
from raytpu.plan.duration import age_text, since_text, until_text
from raytpu.plan.gang import PlannedSlice
from raytpu.plan.ledger import Lease, Request
from raytpu.plan.slices_report import part_text
from raytpu.plan.text_table import text_table
from raytpu.plan.verdict import health
from raytpu.plan.waiting import Waiting, waiting_line, waiting_with
from raytpu.spec import Slices


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLine:
    """One slice, as it is to the owner."""

    name: str
    state: str
    """``held``, ``lost``, or the state of a verdict."""
    why: str
    fix: str = ""

    @classmethod
    def of(cls, verdict: SliceVerdict) -> SliceLine:
        return cls(name=verdict.name, state=verdict.state, why=verdict.why, fix=verdict.fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One sentence, a line for each slice, what else there is to know, and what to do."""

    owner: str
    state: str
    """``holds`` or ``waits``; of a workload file ``fits``, ``does not fit`` or ``never fits``; else the state
    of the run as its record has it."""
    sentence: str
    slices: tuple[SliceLine, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    """Label and text."""
    next_step: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The same and more for a machine, JSON-ready. Times are by the book's clock, in seconds since 1970."""


def explain_owner(view: BookView, name: str) -> tuple[Explanation, ...]:
    """What the book knows of an owner, or of the lease or request with that id; empty when nothing."""
    held = [_explain_lease(lease, view) for lease in view.ledger.leases if name in (lease.owner, lease.id)]
    waits = [
        _explain_waiting(waiting, view)
        for waiting in waiting_line(view)
        if name in (waiting.request.owner, waiting.request.id)
    ]
    return (*held, *waits)


def owners(view: BookView) -> tuple[str, ...]:
    """Everybody who holds or waits, once each, sorted."""
    requests = (*view.ledger.requests, *(lease.request for lease in view.ledger.leases))
    return tuple(sorted({request.owner for request in requests}))


# -- what is held ----------------------------------------------------------------------------------------


def _explain_lease(lease: Lease, view: BookView) -> Explanation:
    return Explanation(
        owner=lease.owner,
        state="holds",
        sentence=_held_sentence(lease, view.now_s),
        slices=(
            *(_held_line(planned, view) for planned in lease.slices),
            *(SliceLine(name=name, state="lost", why=reason) for name, reason in lease.lost),
        ),
        notes=tuple(_lease_notes(lease, view)),
        next_step=_lease_step(lease),
        facts={
            "lease_id": lease.id,
            "lease_state": lease.state,
            "priority": lease.request.priority,
            "since_s": lease.since_s,
            "notice": None if lease.notice is None else asdict(lease.notice),
            "owner_gone_since_s": lease.gone_since_s,
        },
    )


def _held_sentence(lease: Lease, now_s: float) -> str:
    names = ", ".join(planned.name for planned in lease.slices)
    shape, count = lease.slices[0].shape, len(lease.slices)
    if all(planned.whole for planned in lease.slices):
        what = f"{count} whole {shape.generation} {shape.topology} slice{'s' if count != 1 else ''}"
    else:
        what = f"a {shape.generation} {shape.topology} part of {'it' if count == 1 else 'each'}"
    age = age_text(now_s - lease.since_s)
    match lease.state:
        case "placing":
            return f"{lease.owner} was granted {names}, and Ray has been placing it for {age}: {what}"
        case "ending":
            return f"{lease.owner} is giving back {names}: {what}"
    return f"{lease.owner} has held {names} for {age}: {what}"


def _held_line(planned: PlannedSlice, view: BookView) -> SliceLine:
    part = part_text(planned)
    what = part or f"{planned.shape.hosts} of {planned.shape.hosts} hosts"
    state = view.inventory.slice(planned.name)
    if state is None:
        return SliceLine(name=planned.name, state="held", why=f"{what}; Ray does not show the slice")
    found = health(state)
    if found.state == "usable":
        return SliceLine(name=planned.name, state="held", why=what)
    return SliceLine(name=planned.name, state="held", why=found.why, fix=found.fix)


def _lease_notes(lease: Lease, view: BookView) -> Iterator[tuple[str, str]]:
    yield "lease", f"{lease.id}, priority {lease.request.priority}"
    if lease.notice is not None:
        until = until_text(lease.notice.until_s, view.now_s)
        yield "notice", f"preempted by {lease.notice.by}: the lease ends {until}"
    if lease.gone_since_s is not None:
        ends = until_text(lease.gone_since_s + lease.request.orphan_grace_s, view.now_s)
        yield "owner", f"gone for {age_text(view.now_s - lease.gone_since_s)}; the lease ends {ends}"
    elif lease.id in view.orphans:
        yield "owner", "not connected to the book"


def _lease_step(lease: Lease) -> str:
    if lease.state == "ending":
        return ""
    if lease.gone_since_s is not None:
        return f"`raytpu slices gc` ends it now; a successor can take lease {lease.id} over until then"
    if lease.notice is not None:
        return "what its owner has not saved by then is lost; it can queue again"
    if lease.lost:
        return "lost slices do not come back to a lease: its owner goes on with the rest or asks anew"
    return ""


# -- what waits ------------------------------------------------------------------------------------------


def _explain_waiting(waiting: Waiting, view: BookView) -> Explanation:
    request, diagnosis = waiting.request, waiting.diagnosis
    if waiting.served:
        sentence = f"{request.owner} is about to get its slices: {diagnosis.sentence}"
    else:
        sentence = f"{request.owner} waits: {diagnosis.sentence}"
    now_s = view.now_s
    asked = f"asked {since_text(request.arrived_s, now_s)}, gives up {until_text(request.deadline_s, now_s)}"
    notes = [("queue", f"{_place(waiting)}; {asked}"), *_waiting_notes(waiting)]
    grown = [f"{each.generation} {each.topology}" for each in view.growing if each.request_id == request.id]
    if grown:
        notes.append(("growing", f"asked of the autoscaler: {', '.join(grown)}"))
    if request.id in view.orphans:
        notes.append(("owner", "not connected to the book"))
    return Explanation(
        owner=request.owner,
        state="waits",
        sentence=sentence,
        slices=_lines(diagnosis),
        notes=tuple(notes),
        next_step=diagnosis.next_step,
        facts={
            "request_id": request.id,
            "since_s": request.arrived_s,
            "deadline_s": request.deadline_s,
            "growing": grown,
            **_queue_facts(waiting),
        },
    )


def explain_wish(
    view: BookView, name: str, want: Slices, *, priority: int, growable: bool
) -> tuple[Explanation, bool]:
    """Whether slices that nobody has asked for yet could be had now, and if not, why; and the answer alone.

    Args:
        name: of the workload that wants them.
        growable: whether the cluster can bring up slices of its shape.
    """
    now_s = view.now_s
    request = Request(
        id="", owner=name, want=want, arrived=0, arrived_s=now_s, deadline_s=now_s + 1, priority=priority
    )
    waiting = waiting_with(view, request, growable=growable)
    diagnosis = waiting.diagnosis
    if waiting.served:
        state, sentence = "fits", f"{name} fits: {diagnosis.sentence}"
    elif waiting.never:
        state, sentence = "never fits", f"{name} can never fit on this cluster: {diagnosis.sentence}"
    else:
        state, sentence = "does not fit", f"{name} does not fit now: {diagnosis.sentence}"
    notes: list[tuple[str, str]] = []
    if not waiting.served and not waiting.never:
        notes = [("queue", f"it would be {_place(waiting)}"), *_waiting_notes(waiting)]
        if growable:
            notes.append(("growing", "the autoscaler would be asked for what is missing"))
    explanation = Explanation(
        owner=name,
        state=state,
        sentence=sentence,
        slices=_lines(diagnosis),
        notes=tuple(notes),
        next_step=diagnosis.next_step,
        facts=_queue_facts(waiting),
    )
    return explanation, waiting.served


def _place(waiting: Waiting) -> str:
    """``first``, or ``3rd, behind big (priority 1), small``."""
    if not waiting.ahead:
        return "first in the queue"
    shown = [_ahead(other, waiting.request) for other in waiting.ahead[-3:]]
    more = len(waiting.ahead) - len(shown)
    names = ", ".join(([f"{more} others"] if more else []) + shown)
    return f"number {waiting.position} in the queue, behind {names}"


def _ahead(other: Request, request: Request) -> str:
    same = other.priority == request.priority
    return other.owner if same else f"{other.owner} (priority {other.priority})"


def _waiting_notes(waiting: Waiting) -> Iterator[tuple[str, str]]:
    for lease in waiting.ending_for_it:
        names = ", ".join(planned.name for planned in lease.slices)
        yield "preempts", f"{lease.owner} ({names}), which gets {lease.request.save_s:g} s to save"


def _queue_facts(waiting: Waiting) -> dict[str, Any]:
    request = waiting.request
    return {
        "position": waiting.position,
        "ahead": [other.owner for other in waiting.ahead],
        "priority": request.priority,
        "preempts": [lease.owner for lease in waiting.ending_for_it],
    }


def _lines(diagnosis: Diagnosis) -> tuple[SliceLine, ...]:
    return tuple(SliceLine.of(verdict) for verdict in diagnosis.slices)


# -- for a person and for a machine ----------------------------------------------------------------------


def render_explanations(explanations: Iterable[Explanation]) -> str:
    """The explanations for a person, without a line end at its end."""
    return "\n\n".join("\n".join(_text(each)) for each in explanations)


def _text(explanation: Explanation) -> Iterator[str]:
    yield explanation.sentence
    yield from _slice_lines(explanation.slices)
    labelled = [*explanation.notes, *([("next", explanation.next_step)] if explanation.next_step else [])]
    width = max((len(label) for label, _ in labelled), default=0)
    for label, text in labelled:
        first, *others = text.splitlines() or [""]
        yield f"  {label:<{width}}  {first}".rstrip()
        yield from (f"  {'':<{width}}  {line}".rstrip() for line in others)


def _slice_lines(lines: Sequence[SliceLine]) -> list[str]:
    if not lines:
        return []
    # What is nearest to fitting is read first where not everything can be shown.
    shown = list(lines)
    if len(shown) > VERDICTS_SHOWN:
        shown = sorted(lines, key=lambda line: line.state == "other")[:VERDICTS_SHOWN]
    rows = []
    for line in shown:
        rows.append((line.name, line.state, line.why))
        if line.fix:
            rows.append(("", "", f"→ {line.fix}"))
    left_out = len(lines) - len(shown)
    more = [f"  … and {left_out} more; --output json has all"] if left_out else []
    return [*text_table(("SLICE", "STATE", "WHY"), rows), *more]


def explanations_document(explanations: Iterable[Explanation]) -> dict[str, Any]:
    """The explanations as JSON-ready values; each has the keys of ``diagnosis_document`` and more."""
    return {
        "explanations": [
            {
                "owner": each.owner,
                "state": each.state,
                "sentence": each.sentence,
                "slices": [asdict(line) for line in each.slices],
                "next_step": each.next_step,
                **each.facts,
            }
            for each in explanations
        ]
    }
