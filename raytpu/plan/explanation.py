"""A plan in words, for a person, and as a document, for a machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from raytpu.plan.batch import BatchPlan, RowSpan
from raytpu.plan.gang import GangPlan, PlannedSlice, ProcessAssignment
from raytpu.plan.mesh import MeshPlan, describe_axes
from raytpu.plan.text_table import text_table
from raytpu.plan.verdict import host_list
from raytpu.plan.workload import WorkloadPlan, whole_number

ROWS_SHOWN = 64
"""Longest table shown whole. By feel: about a screen; a larger one shows its two ends."""


def explain_plan(plan: WorkloadPlan) -> str:
    """The plan as text for a terminal: slices, hosts, mesh, batch, steps and checkpoints."""
    sections = [
        _summary(plan),
        _slices_section(plan.gang),
        _hosts_section(plan.gang, plan.batch),
        _mesh_section(plan.gang, plan.mesh),
        _batch_section(plan),
        _checkpoint_section(plan),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def plan_document(plan: WorkloadPlan) -> dict[str, Any]:
    """The plan as JSON-ready values; ``workload`` is the whole document it was made from."""
    gang, mesh, batch = plan.gang, plan.mesh, plan.batch
    return {
        "workload": plan.workload.model_dump(mode="json"),
        "simulated": gang.simulated,
        "slices": [
            {
                "name": planned.name,
                "index": planned.index,
                "generation": planned.shape.generation,
                "topology": planned.shape.topology,
                "accelerator": planned.shape.accelerator_name,
                "chips": planned.shape.chips,
                "devices": planned.shape.devices,
                "hosts": planned.shape.hosts,
                "chips_per_host": planned.shape.chips_per_host,
                "part_of": None if planned.whole else planned.of.topology,
                "processes": [asdict(process) | {"host": process.host} for process in planned.processes],
            }
            for planned in gang.slices
        ],
        "mesh": {
            "axes": list(mesh.axes),
            "sizes": dict(mesh.sizes),
            "dcn": dict(mesh.dcn),
            "ici": dict(mesh.ici),
            "batch_axes": list(mesh.batch_axes),
        },
        "batch": None if batch is None else _batch_document(batch),
        "steps": _steps_document(plan),
        "checkpoint": {
            "run_path": _run_path(plan),
            "every_steps": plan.workload.checkpoint.every_steps,
            "keep": plan.workload.checkpoint.keep,
        },
    }


def _batch_document(batch: BatchPlan) -> dict[str, Any]:
    def spans(owners: Iterable[Iterable[RowSpan]]) -> list[list[list[int]]]:
        return [[[span.first, span.last] for span in owned] for owned in owners]

    return {
        "global_batch": batch.global_batch,
        "shards": batch.shards,
        "rows_per_shard": batch.rows_per_shard,
        "rows_per_slice": batch.rows_per_slice,
        "rows_by_slice": spans(batch.rows_by_slice),
        "rows_per_process": None if batch.rows_per_process is None else list(batch.rows_per_process),
        "rows_by_process": None if batch.rows_by_process is None else spans(batch.rows_by_process),
    }


def _steps_document(plan: WorkloadPlan) -> dict[str, int | None]:
    steps = whole_number(plan.workload, "steps")
    length = whole_number(plan.workload, "sequence_length")
    tokens = None if plan.batch is None or length is None else plan.batch.global_batch * length
    return {
        "steps": steps,
        "sequence_length": length,
        "tokens_per_step": tokens,
        "tokens": None if tokens is None or steps is None else tokens * steps,
    }


def _run_path(plan: WorkloadPlan) -> str:
    return f"{plan.workload.checkpoint.path.rstrip('/')}/{plan.workload.name}"


def _summary(plan: WorkloadPlan) -> list[str]:
    gang, workload = plan.gang, plan.workload
    shape = gang.slices[0].shape
    where = "simulated on CPU" if gang.simulated else "on TPU"
    hosts = len(gang.processes)
    least, every = workload.train.replicas.least, workload.train.replicas.every_steps
    replicas = [
        "  each slice is a replica with the whole state: when one is lost the others go on"
        + (f", and wait while fewer than {least} live" if least > 1 else "")
        + (f"; they average their parameters every {every} steps" if every > 1 else "")
    ] * (workload.train.across_slices == "replicas")
    return [
        f"{workload.name}: {_count(len(gang.slices), 'slice')} of {shape.generation} {shape.topology}, "
        f"{_count(hosts, 'host')}, {_count(len(gang.slices) * shape.chips, 'chip')}, {where}",
        f"  runs {workload.train.entrypoint} in {_count(hosts, 'process', 'processes')}, one on each host",
        *replicas,
    ]


def _slices_section(gang: GangPlan) -> list[str]:
    rows: list[tuple[str, ...]] = [
        (
            planned.name,
            planned.shape.generation,
            planned.shape.topology,
            planned.shape.accelerator_name,
            f"{planned.shape.hosts} × {_count(planned.shape.chips_per_host, 'chip')}",
        )
        for planned in gang.slices
    ]
    header = ["SLICE", "GENERATION", "TOPOLOGY", "ACCELERATOR", "HOSTS"]
    if not all(planned.whole for planned in gang.slices):
        header.append("PART OF")
        rows = [(*row, _part_of(planned)) for row, planned in zip(rows, gang.slices, strict=True)]
    return ["Slices", *_table(header, rows)]


def _part_of(planned: PlannedSlice) -> str:
    if planned.whole:
        return "(whole)"
    chips = "" if planned.shape.chips_per_host == planned.of.chips_per_host else "chips of "
    return f"{planned.of.topology}: {chips}{host_list(process.worker_id for process in planned.processes)}"


def _hosts_section(gang: GangPlan, batch: BatchPlan | None) -> list[str]:
    header = ["HOST", "PROCESS", "ADDRESS", "DEVICES"]
    if batch is not None:
        header.append("ROWS OF EACH BATCH")
    rows = [
        [process.host, str(process.process_index), process.address, str(process.local_devices)]
        + ([] if batch is None else [_rows_of(process, batch)])
        for process in gang.processes
    ]
    return ["Hosts", *_table(header, rows)]


def _rows_of(process: ProcessAssignment, batch: BatchPlan) -> str:
    if batch.rows_by_process is not None:
        return _span_text(batch.rows_by_process[process.process_index])
    within = _span_text(batch.rows_by_slice[process.slice_index])
    if batch.rows_per_process is not None:
        return f"{batch.rows_per_process[process.process_index]} of {within}"
    return f"some of {within}"


def _span_text(spans: Sequence[RowSpan]) -> str:
    texts = [str(span.first) if span.count == 1 else f"{span.first}–{span.last}" for span in spans]
    if len(texts) > 6:
        texts = [*texts[:4], f"… {len(texts) - 5} more …", texts[-1]]
    return ", ".join(texts)


def _mesh_section(gang: GangPlan, mesh: MeshPlan) -> list[str]:
    """One line per slice: its place on the DCN axes, and the ICI axes that fill it."""
    devices = sum(planned.shape.devices for planned in gang.slices)
    lines = [f"Mesh  {describe_axes(mesh.sizes)} = {_count(devices, 'device')}"]
    inner = describe_axes(mesh.ici)
    if not mesh.dcn:
        return [*lines, f"  ICI, inside {gang.slices[0].name}  [ {inner} ]"]
    rows = []
    for planned in gang.slices:
        place, rest = [], planned.index
        for axis in reversed([*mesh.dcn]):
            rest, coordinate = divmod(rest, mesh.dcn[axis])
            place.append(_place(axis, coordinate, mesh))
        rows.append((", ".join(reversed(place)), planned.name, f"[ {inner} ]"))
    return [*lines, *_table(("DCN, BETWEEN SLICES", "SLICE", "ICI, INSIDE"), rows)]


def _place(axis: str, coordinate: int, mesh: MeshPlan) -> str:
    if axis not in mesh.ici or mesh.ici[axis] == 1:
        return f"{axis} {coordinate}"
    size = mesh.ici[axis]
    return f"{axis} {coordinate * size}–{(coordinate + 1) * size - 1}"


def _batch_section(plan: WorkloadPlan) -> list[str]:
    batch, steps = plan.batch, _steps_document(plan)
    if batch is None:
        lines = ["Batch  train.config has no global_batch: the entrypoint feeds itself"]
    else:
        lines = [f"Batch  {_shards_text(batch, plan.mesh)}; {_count(batch.rows_per_slice, 'row')} a slice"]
        if batch.rows_by_process is None:
            lines.append(
                "  the TPU runtime orders the devices: which rows a host feeds is settled at its start"
            )
        if steps["tokens_per_step"] is not None:
            lines.append(
                f"  {batch.global_batch:,} rows × {steps['sequence_length']:,} tokens = "
                f"{steps['tokens_per_step']:,} tokens a step"
            )
    if steps["steps"] is not None:
        in_all = "" if steps["tokens"] is None else f", {steps['tokens']:,} tokens in all"
        lines.append(f"  {_count(steps['steps'], 'step')}{in_all}")
    return lines


def _shards_text(batch: BatchPlan, mesh: MeshPlan) -> str:
    rows = _count(batch.global_batch, "row")
    if not mesh.batch_axes:
        return f"{rows}, the same on every device (no axis divides the batch)"
    axes = " × ".join(mesh.batch_axes)
    shards = f"{_count(batch.shards, 'shard')} of {_count(batch.rows_per_shard, 'row')}"
    return f"{rows} = {shards}, divided over {axes}"


def _checkpoint_section(plan: WorkloadPlan) -> list[str]:
    checkpoint = plan.workload.checkpoint
    every = "every step" if checkpoint.every_steps == 1 else f"every {checkpoint.every_steps} steps"
    return [f"Checkpoints  {every}, the newest {checkpoint.keep} kept, in {_run_path(plan)}"]


def _count(number: int, thing: str, things: str | None = None) -> str:
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    shown = [list(row) for row in rows]
    left_out = len(rows) - ROWS_SHOWN
    if left_out > 0:
        half = ROWS_SHOWN // 2
        gap = [f"… {left_out} more …", *[""] * (len(header) - 1)]
        shown = [*shown[:half], gap, *shown[-half:]]
    return text_table(header, shown)
