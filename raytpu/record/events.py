"""What can happen in a run: one frozen class per kind of event, and their stable JSON.

The JSON of an event is one object: ``kind`` and its fields by name. Numbers that JSON lacks (a loss that
is not a number) are written as the strings "nan", "inf" and "-inf". A reader of another version meets
kinds it does not know, or known kinds without a field it needs, as ``Unknown``; fields that it does not
know it leaves out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_type_hints


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A driver took the run: once per driver, so more than once when a run is resumed."""

    kind: ClassVar[str] = "run_started"
    run: str
    lineage: int = 1
    cluster: str = ""
    """Address of the Ray cluster."""
    driver: str = ""
    """``hostname:pid`` of the driver."""
    steps: int | None = None
    """Steps the run is to make in all, when the workload says so."""
    checkpoints: str = ""
    """Where checkpoints go."""
    version: str = ""
    """Of raytpu."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChanged:
    """What the driver does now, such as ``holding``, ``starting``, ``running``."""

    kind: ClassVar[str] = "state_changed"
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """The driver begins to bring up a gang. Everything up to ``AttemptEnded`` belongs to this attempt."""

    kind: ClassVar[str] = "attempt_started"
    attempt: int
    """Counted from 1 over the whole lineage, also across drivers."""
    slices: tuple[str, ...] = ()
    processes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReady:
    """A host process is up and is who the plan says it is."""

    kind: ClassVar[str] = "host_ready"
    host: str
    """``slice-0/1``"""
    process_index: int
    address: str = ""
    pid: int = 0
    platform: str = ""
    devices: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTimed:
    """A phase of start-up that just ended, on this writer.

    Names that begin with ``hold`` count as waiting for slices, those that begin with ``restore`` as
    restoring, all others as start-up.
    """

    kind: ClassVar[str] = "phase_timed"
    name: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCompiled:
    kind: ClassVar[str] = "program_compiled"
    name: str
    seconds: float
    cache: str = "off"
    """``hit``, ``miss`` or ``off``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished:
    """One step of the training loop, as one host saw it."""

    kind: ClassVar[str] = "step_finished"
    step: int
    seconds: float
    """From the end of the step before to the end of this one, waiting for data included."""
    data_wait_s: float = 0.0
    """The part of ``seconds`` in which this host waited for its batch."""
    wait_s: float = 0.0
    """The part of ``seconds`` in which it waited for devices or for other hosts, its own work being done."""
    metrics: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    """Of the global batch: of all hosts together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """The loop went on; the checkpoint is not yet safe."""

    kind: ClassVar[str] = "checkpoint_saved"
    step: int
    blocked_s: float
    """How long the loop stood still for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDurable:
    """The checkpoint can be restored even if everything dies now."""

    kind: ClassVar[str] = "checkpoint_durable"
    step: int
    seconds: float = 0.0
    """From the begin of the save."""
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointVerified:
    """All files of the durable checkpoint were read back, and its manifest is written."""

    kind: ClassVar[str] = "checkpoint_verified"
    step: int
    seconds: float = 0.0
    """From the moment it was durable."""
    size: int = 0
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSlow:
    """A save takes far longer than it should, and still runs. Told once for each save."""

    kind: ClassVar[str] = "checkpoint_slow"
    step: int
    seconds: float
    """So far."""
    limit_s: float
    """Beyond which it counts as slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointQuarantined:
    """The checkpoint is damaged; the run goes on from an older one."""

    kind: ClassVar[str] = "checkpoint_quarantined"
    step: int
    reason: str
    path: str = ""
    """Where its files are now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRestored:
    kind: ClassVar[str] = "checkpoint_restored"
    step: int
    seconds: float
    path: str = ""
    verified: bool = False
    """A manifest vouched for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    kind: ClassVar[str] = "evaluated"
    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleWritten:
    """Text that the model wrote."""

    kind: ClassVar[str] = "sample_written"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    kind: ClassVar[str] = "attempt_ended"
    ending: str
    """Such as ``completed``, ``program_failed``, ``slice_lost``, ``stopped``; see ``plan.EndingKind``."""
    reason: str = ""
    slices: tuple[str, ...] = ()
    """Slices that were lost with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsStuck:
    """The run makes no step for longer than it may; the stacks of all hosts are in their logs."""

    kind: ClassVar[str] = "hosts_stuck"
    cause: str
    """``silent``, ``program`` or ``collective``; see ``plan.StuckKind``."""
    hosts: tuple[str, ...]
    """Those that the others wait for; all of them when nobody is ahead."""
    step: int
    seconds: float
    """Since the last sign of progress."""
    limit_s: float
    reason: str = ""
    """In words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLost:
    """A slice of a run of replicas is gone; the attempt goes on with the others."""

    kind: ClassVar[str] = "replica_lost"
    slice: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaged:
    """What this host of a replica has sent to its peers, told when the train function is done."""

    kind: ClassVar[str] = "averaged"
    rounds: int
    """Averages that were committed here."""
    sent_bytes: int
    """For averages, also those that were made again after a loss; without what joining replicas took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionNoticed:
    """A host of the run goes away soon, and its slice with it."""

    kind: ClassVar[str] = "preemption_noticed"
    host: str
    """``slice-0/1``"""
    source: str
    """Who says so, in words."""
    seconds: float
    """Left, as far as is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The driver let go of the run on purpose."""

    kind: ClassVar[str] = "run_ended"
    outcome: str
    """``finished``, ``failed`` or ``stopped``."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """An event that another version of raytpu wrote. Made by readers only."""

    kind: ClassVar[str] = "unknown"
    document: dict[str, Any]
    """The event as it was written."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A line that is no event: half of one, or spoilt on the disk. Made by readers only."""

    kind: ClassVar[str] = "damaged"
    text: str
    """The begin of the line."""
    why: str


WrittenEvent = (
    RunStarted
    | StateChanged
    | AttemptStarted
    | HostReady
    | PhaseTimed
    | ProgramCompiled
    | StepFinished
    | CheckpointSaved
    | CheckpointDurable
    | CheckpointVerified
    | CheckpointSlow
    | CheckpointQuarantined
    | CheckpointRestored
    | Evaluated
    | SampleWritten
    | AttemptEnded
    | HostsStuck
    | ReplicaLost
    | Averaged
    | PreemptionNoticed
    | RunEnded
)
Event = WrittenEvent | Unknown | Damaged

EVENT_KINDS: Mapping[str, type[WrittenEvent]] = {kind.kind: kind for kind in WrittenEvent.__args__}


def event_document(event: WrittenEvent) -> dict[str, Any]:
    """``event`` as JSON values: ``kind`` and its fields, in the order in which they are declared.

    Raises:
        TypeError: a field holds what is neither text, number, nor a list or mapping of those.
    """
    values = {entry.name: _json_value(getattr(event, entry.name)) for entry in dataclasses.fields(event)}
    return {"kind": event.kind, **values}


def event_of(document: Mapping[str, Any]) -> Event:
    """The event that ``document`` describes; ``Unknown`` when this version cannot tell."""
    kind = document.get("kind")
    known = EVENT_KINDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        return Unknown(document=dict(document), why=f"kind {kind!r} is not known")
    readers = _FIELD_READERS[known]
    try:
        return known(**{name: read(document[name]) for name, read in readers.items() if name in document})
    except (TypeError, ValueError, AttributeError) as error:
        return Unknown(document=dict(document), why=f"{kind}: {error}")


def _json_value(value: object) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_json_value(item) for item in value]
    number = float(value)  # type: ignore[arg-type]  # array scalars of any library; TypeError for the rest
    return number if math.isfinite(number) else str(number)


def _texts(value: list[str]) -> tuple[str, ...]:
    return tuple(str(item) for item in value)


def _numbers(value: dict[str, Any]) -> dict[str, float]:
    return {str(key): float(item) for key, item in value.items()}


def _whole_or_none(value: int | None) -> int | None:
    return None if value is None else int(value)


_READER_OF_TYPE: Mapping[Any, Any] = {
    str: str,
    bool: bool,
    int: int,
    float: float,
    int | None: _whole_or_none,
    tuple[str, ...]: _texts,
    dict[str, float]: _numbers,
}


def _field_readers(kind: type[WrittenEvent]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {entry.name: _READER_OF_TYPE[hints[entry.name]] for entry in dataclasses.fields(kind)}


_FIELD_READERS: Mapping[type[WrittenEvent], Mapping[str, Any]] = {
    kind: _field_readers(kind) for kind in EVENT_KINDS.values()
}
