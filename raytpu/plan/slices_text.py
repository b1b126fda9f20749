"""The slices of a cluster as plain text: a table, and below it whatever is not as usual."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raytpu.plan.diagnosis import describe
from raytpu.plan.duration import since_text, until_text
from raytpu.plan.slices_report import Holder, Orphan, SliceRow, SlicesReport
from raytpu.plan.text_table import text_table

NOTHING = "-"


def render_slices(report: SlicesReport) -> str:
    """The report for a person, without a line end at its end."""
    sections = [
        _slices(report),
        _queue(report),
        _quarantines(report),
        _troubles(report),
        _orphans(report),
        _growing(report),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def _slices(report: SlicesReport) -> list[str]:
    if not report.slices:
        lines = ["this cluster has no TPU slices"]
    else:
        header = ("SLICE", "GENERATION", "TOPOLOGY", "HOSTS ALIVE", "CHIPS FREE", "HOLDER", "SINCE")
        lines = text_table(header, [row for each in report.slices for row in _rows(each, report.now_s)])
    if not report.has_book:
        lines.append("")
        lines.append("this cluster has no book of slices yet: nothing is held or waited for through raytpu")
    return lines


def _rows(row: SliceRow, now_s: float) -> Iterator[tuple[str, ...]]:
    """One row, and one more for each further holder."""
    first = (
        row.name,
        row.generation or "?",
        row.topology or "?",
        f"{row.hosts_alive} of {row.hosts}",
        f"{row.chips_free} of {row.chips}",
    )
    if not row.holders:
        yield (*first, NOTHING if row.kept_for is None else f"kept for {row.kept_for}", "")
        return
    for index, holder in enumerate(row.holders):
        since = "" if holder.since_s is None else since_text(holder.since_s, now_s)
        yield (*(first if index == 0 else [""] * len(first)), _holder(holder, now_s), since)


def _holder(holder: Holder, now_s: float) -> str:
    remarks = [holder.part] if holder.part else []
    if holder.state == "placing":
        remarks.append("being placed")
    if holder.state == "ending":
        remarks.append("being given back")
    elif holder.notice is not None:
        remarks.append(f"goes to {holder.notice.by} {until_text(holder.notice.until_s, now_s)}")
    if holder.gone:
        remarks.append("its owner is gone")
    if holder.state == "outside":
        remarks.append("outside raytpu")
    return f"{holder.who} ({'; '.join(remarks)})" if remarks else holder.who


def _queue(report: SlicesReport) -> list[str]:
    if not report.queue:
        return []
    rows = [
        (
            str(waiting.position),
            waiting.request.owner,
            str(waiting.request.priority),
            describe(waiting.request.want),
            since_text(waiting.request.arrived_s, report.now_s),
            until_text(waiting.request.deadline_s, report.now_s),
        )
        for waiting in report.queue
    ]
    header = ("", "OWNER", "PRIORITY", "WAITS FOR", "SINCE", "GIVES UP")
    return ["Queue (`raytpu explain OWNER` says why)", *text_table(header, rows)]


def _quarantines(report: SlicesReport) -> list[str]:
    if not report.quarantines:
        return []
    rows = [
        (each.slice_name, since_text(each.since_s, report.now_s), each.reason) for each in report.quarantines
    ]
    header = ("SLICE", "SINCE", "REASON")
    return ["Under quarantine (`raytpu slices release SLICE` lifts it)", *text_table(header, rows)]


def _troubles(report: SlicesReport) -> list[str]:
    lines = []
    for row in report.slices:
        if row.health.state != "usable":
            lines.append(f"  {row.name}: {row.health.why}")
            if row.health.fix:
                lines.append(f"    → {row.health.fix}")
    return ["Not whole", *lines] if lines else []


def _orphans(report: SlicesReport) -> list[str]:
    if not report.orphans:
        return []
    title = "Held for owners that are gone (`raytpu slices gc` ends it)"
    return [title, *orphan_lines(report.orphans, report.now_s)]


def orphan_lines(orphans: Sequence[Orphan], now_s: float) -> list[str]:
    """A table of orphans."""
    rows = [(orphan.owner, _what(orphan), _gone(orphan, now_s), _ends(orphan, now_s)) for orphan in orphans]
    return text_table(("OWNER", "HAS", "GONE", "ENDS BY ITSELF"), rows)


def _what(orphan: Orphan) -> str:
    if orphan.kind == "placement group":
        return f"placement group {orphan.id}"
    return f"{orphan.kind} {orphan.id}" + (f": {', '.join(orphan.slices)}" if orphan.slices else "")


def _gone(orphan: Orphan, now_s: float) -> str:
    if orphan.gone_since_s is not None:
        return since_text(orphan.gone_since_s, now_s)
    return "may come back to the restarted book" if orphan.may_return else NOTHING


def _ends(orphan: Orphan, now_s: float) -> str:
    if orphan.ends_s is not None:
        return until_text(orphan.ends_s, now_s)
    if orphan.kind == "placement group":
        return "never: no lease knows it"
    return "unless it comes back" if orphan.may_return else NOTHING


def _growing(report: SlicesReport) -> list[str]:
    if not report.growing:
        return []
    return [
        "Asked of the autoscaler",
        *(f"  a slice {each.generation} {each.topology} for {each.owner}" for each in report.growing),
    ]
