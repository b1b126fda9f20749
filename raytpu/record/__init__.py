"""What happened in a run, kept beside its checkpoints: events, logs, its driver, and their sum."""

from __future__ import annotations

from raytpu.record.event_log import EventLog as EventLog
from raytpu.record.event_reading import EventTail as EventTail
from raytpu.record.event_reading import Recorded as Recorded
from raytpu.record.event_reading import read_events as read_events
from raytpu.record.events import AttemptEnded as AttemptEnded
from raytpu.record.events import AttemptStarted as AttemptStarted
from raytpu.record.events import Averaged as Averaged
from raytpu.record.events import CheckpointDurable as CheckpointDurable
from raytpu.record.events import CheckpointQuarantined as CheckpointQuarantined
from raytpu.record.events import CheckpointRestored as CheckpointRestored
from raytpu.record.events import CheckpointSaved as CheckpointSaved
from raytpu.record.events import CheckpointSlow as CheckpointSlow
from raytpu.record.events import CheckpointVerified as CheckpointVerified
from raytpu.record.events import Damaged as Damaged
from raytpu.record.events import Evaluated as Evaluated
from raytpu.record.events import Event as Event
from raytpu.record.events import HostReady as HostReady
from raytpu.record.events import HostsStuck as HostsStuck
from raytpu.record.events import PhaseTimed as PhaseTimed
from raytpu.record.events import PreemptionNoticed as PreemptionNoticed
from raytpu.record.events import ProgramCompiled as ProgramCompiled
from raytpu.record.events import ReplicaLost as ReplicaLost
from raytpu.record.events import RunEnded as RunEnded
from raytpu.record.events import RunStarted as RunStarted
from raytpu.record.events import SampleWritten as SampleWritten
from raytpu.record.events import StateChanged as StateChanged
from raytpu.record.events import StepFinished as StepFinished
from raytpu.record.events import Unknown as Unknown
from raytpu.record.events import WrittenEvent as WrittenEvent
from raytpu.record.goodput import BADPUT_TYPES as BADPUT_TYPES
from raytpu.record.goodput import Bucket as Bucket
from raytpu.record.goodput import Goodput as Goodput
from raytpu.record.goodput import split_wall_time as split_wall_time
from raytpu.record.host_log import HostLog as HostLog
from raytpu.record.log_reading import LogLine as LogLine
from raytpu.record.log_reading import LogTail as LogTail
from raytpu.record.log_reading import hosts_with_logs as hosts_with_logs
from raytpu.record.log_reading import read_logs as read_logs
from raytpu.record.run_directory import RunDirectory as RunDirectory
from raytpu.record.run_index import find_run as find_run
from raytpu.record.run_index import known_runs as known_runs
from raytpu.record.run_index import remember_run as remember_run
from raytpu.record.run_lease import Driver as Driver
from raytpu.record.run_lease import RunLease as RunLease
from raytpu.record.run_lease import StopRequest as StopRequest
from raytpu.record.run_lease import check_free as check_free
from raytpu.record.run_lease import is_alive as is_alive
from raytpu.record.run_lease import read_driver as read_driver
from raytpu.record.run_lease import request_stop as request_stop
from raytpu.record.run_lease import stop_requested as stop_requested
from raytpu.record.stragglers import HostPace as HostPace
from raytpu.record.stragglers import Straggler as Straggler
from raytpu.record.summary import Phase as Phase
from raytpu.record.summary import RunSummary as RunSummary
from raytpu.record.summary import summarise as summarise
from raytpu.record.summary import summary_document as summary_document
from raytpu.record.summary_text import duration_text as duration_text
from raytpu.record.summary_text import render_summary as render_summary

__all__ = [
    "BADPUT_TYPES",
    "AttemptEnded",
    "AttemptStarted",
    "Averaged",
    "Bucket",
    "CheckpointDurable",
    "CheckpointQuarantined",
    "CheckpointRestored",
    "CheckpointSaved",
    "CheckpointSlow",
    "CheckpointVerified",
    "Damaged",
    "Driver",
    "Evaluated",
    "Event",
    "EventLog",
    "EventTail",
    "Goodput",
    "HostLog",
    "HostPace",
    "HostReady",
    "HostsStuck",
    "LogLine",
    "LogTail",
    "Phase",
    "PhaseTimed",
    "PreemptionNoticed",
    "ProgramCompiled",
    "Recorded",
    "ReplicaLost",
    "RunDirectory",
    "RunEnded",
    "RunLease",
    "RunStarted",
    "RunSummary",
    "SampleWritten",
    "StateChanged",
    "StepFinished",
    "StopRequest",
    "Straggler",
    "Unknown",
    "WrittenEvent",
    "check_free",
    "duration_text",
    "find_run",
    "hosts_with_logs",
    "is_alive",
    "known_runs",
    "read_driver",
    "read_events",
    "read_logs",
    "remember_run",
    "render_summary",
    "request_stop",
    "split_wall_time",
    "stop_requested",
    "summarise",
    "summary_document",
]
