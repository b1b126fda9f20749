"""Every error raytpu raises on purpose.

    RaytpuError
    ├── WrongRequest                exit 2   what was asked cannot be right
    │   ├── SpecError                        a value that no hardware or rule allows
    │   │   ├── TopologyError
    │   │   └── WorkloadInvalid              every problem of one file, with path and line
    │   ├── EntrypointError                  the train function is missing or does not take what it is given
    │   ├── DataError                        a source that cannot be read
    │   ├── StorageError                     a path that cannot be written or read
    │   ├── CheckpointMismatch               a checkpoint of another model
    │   └── UnknownRun
    ├── Refused                     exit 3   right, but does not fit or is refused now
    │   ├── Unplaceable                      no set of whole slices fits, with a reason for each
    │   ├── DeadlineExceeded                 a wait ended, naming who was late
    │   └── RunIsLive                        another driver owns this run
    └── RunFailed                   exit 4   the run started and did not finish
        ├── HostMismatch                     a host is not who the plan says it is
        ├── HostLost
        ├── SliceLost                        slices of a lease are gone, each with the reason
        ├── LeaseEnded                       the right to the slices was taken back
        ├── SaveFailed                       a checkpoint could not be made durable
        ├── ProgramFailed                    the user's train function raised
        └── RunStopped                       somebody asked for the end

Errors survive pickling: ``args`` hold exactly what ``__init__`` takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal


class RaytpuError(Exception):
    """Base of all errors raised on purpose; the CLI prints the message and exits with ``exit_code``."""

    exit_code = 1


class WrongRequest(RaytpuError):
    """What was asked cannot be right, on any cluster, at any time."""

    exit_code = 2


class SpecError(WrongRequest):
    """A value that no hardware or rule allows."""


class TopologyError(SpecError):
    """A slice shape that does not exist on a generation."""

    def __init__(self, topology: str, generation: str, *reasons: str) -> None:
        super().__init__(topology, generation, *reasons)
        self.topology, self.generation, self.reasons = topology, generation, reasons

    def __str__(self) -> str:
        why = "; ".join(self.reasons)
        return f"topology {self.topology!r} does not exist on {self.generation}: {why}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a workload document."""

    path: str
    """Dotted path of the field, such as ``train.mesh.ici``; empty for the document itself."""
    message: str
    line: int | None = None
    """Line in the file, counted from 1; ``None`` when the value came from Python or ``--set``."""

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line is not None else ""
        path = f"{self.path}: " if self.path else ""
        return f"{where}{path}{self.message}"


class WorkloadInvalid(SpecError):
    """Every problem of one workload document."""

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        self.source, self.problems = source, tuple(problems)
        super().__init__(source, self.problems)

    def __str__(self) -> str:
        count = len(self.problems)
        head = f"{self.source}: {count} problem{'s' if count != 1 else ''}"
        return "\n".join([head, *(f"  {problem}" for problem in self.problems)])


class EntrypointError(WrongRequest):
    """The train function is missing or does not take what it is given."""


class DataError(WrongRequest):
    """A data source cannot be read."""


class StorageError(WrongRequest):
    """A storage path cannot be written or read."""


class CheckpointMismatch(WrongRequest):
    """A checkpoint holds another model than the one that wants to restore it."""


class UnknownRun(WrongRequest):
    """No run of that name was found."""


class Refused(RaytpuError):
    """A right request that does not fit, or is refused now."""

    exit_code = 3


VerdictState = Literal["usable", "busy", "kept", "suspect", "broken", "quarantined", "unlabelled", "other"]


@dataclass(frozen=True, slots=True)
class SliceVerdict:
    """What one slice of the cluster is to a request."""

    name: str
    state: VerdictState
    """``usable`` now · ``busy``: held or in use · ``kept`` for a request earlier in the queue · ``suspect``:
    a host does not answer · ``broken``: hosts or chips are missing · ``quarantined`` · ``unlabelled``: Ray
    does not show what it is · ``other``: not what is asked for."""
    why: str
    """Every reason, in words."""
    fix: str = ""
    """What would make the slice usable; empty when nothing but waiting does."""


VERDICTS_SHOWN = 40
"""By feel: about a screen. ``Unplaceable.slices`` has all of them."""


class Unplaceable(Refused):
    """No set of whole slices fits the request; a verdict for each slice that was looked at."""

    def __init__(self, sentence: str, slices: Iterable[SliceVerdict] = (), next_step: str = "") -> None:
        self.sentence, self.slices, self.next_step = sentence, tuple(slices), next_step
        super().__init__(sentence, self.slices, next_step)

    def __str__(self) -> str:
        # What is nearest to fitting is read first where not everything can be shown.
        shown = self.slices
        if len(shown) > VERDICTS_SHOWN:
            shown = tuple(sorted(shown, key=lambda verdict: verdict.state == "other"))[:VERDICTS_SHOWN]
        lines = [self.sentence]
        lines += [f"  {each.name}: {each.why}{f' → {each.fix}' if each.fix else ''}" for each in shown]
        if len(shown) < len(self.slices):
            lines.append(f"  … and {len(self.slices) - len(shown)} more")
        if self.next_step:
            lines.append(f"  {self.next_step}")
        return "\n".join(lines)


class DeadlineExceeded(Refused):
    """A wait ended before what it waited for came."""

    def __init__(self, waited_for: str, deadline_s: float, late: Iterable[str] = (), hint: str = "") -> None:
        self.waited_for, self.deadline_s = waited_for, deadline_s
        self.late, self.hint = tuple(late), hint
        super().__init__(waited_for, deadline_s, self.late, hint)

    def __str__(self) -> str:
        late = f"; late: {', '.join(self.late)}" if self.late else ""
        hint = f"\n  {self.hint}" if self.hint else ""
        return f"waited {self.deadline_s:g} s for {self.waited_for}{late}{hint}"


class RunIsLive(Refused):
    """Another driver owns this run."""


class RunFailed(RaytpuError):
    """The run started and did not finish."""

    exit_code = 4


class HostMismatch(RunFailed):
    """A host is not who, or does not have what, the plan says."""


class HostLost(RunFailed):
    """A host of the gang, or its process, is gone."""


class SliceLost(RunFailed):
    """Slices that were held are gone; whatever ran on them has ended. ``reasons`` is by name of slice."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__(self.reasons)

    def __str__(self) -> str:
        return "lost " + "; ".join(f"{name}: {reason}" for name, reason in self.reasons.items())


class LeaseEnded(RunFailed):
    """The slices that were held belong to somebody else now, or to nobody."""

    def __init__(self, owner: str, reason: str) -> None:
        self.owner, self.reason = owner, reason
        super().__init__(owner, reason)

    def __str__(self) -> str:
        return f"the slices of {self.owner} were taken back: {self.reason}"


class SaveFailed(RunFailed):
    """A checkpoint could not be made durable."""


class ProgramFailed(RunFailed):
    """The user's train function raised, or ended its process; the message holds the traceback.

    ``step`` is how many steps the failing process had done in this attempt's count, ``error`` the kind and
    the place of what was raised: the same bug gives the same two, whatever its message says.
    """

    def __init__(self, message: str, step: int | None = None, error: str = "") -> None:
        self.message, self.step, self.error = message, step, error
        super().__init__(message, step, error)

    def __str__(self) -> str:
        return self.message


class RunStopped(RunFailed):
    """Somebody asked for the end of the run before it was complete."""


def interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """The Ctrl-C that ``error`` was made of: numpy, for one, wraps what its import raises in ImportError."""
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        each = chain.pop()
        if isinstance(each, KeyboardInterrupt):
            return each
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            chain += [each.__cause__, each.__context__]
    return None
