"""What lint says: for each mistake the place, the words to write, and who else would have told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How bad it is. ``raytpu lint`` fails on errors; with ``--strict`` on warnings too."""

    ERROR = "error"
    """It is refused, or does not do what it says."""
    WARNING = "warning"
    """It is likely not what was meant."""
    INFO = "info"
    """Worth knowing; right manifests have it too."""


class Catcher(StrEnum):
    """the first layer that notices a mistake when nobody lints."""

    SERVER = "server"
    WEBHOOK = "webhook"
    OPERATOR = "operator"
    NOBODY = "nobody"


_CATCHERS = {
    Catcher.SERVER: "the API server",
    Catcher.WEBHOOK: "the TPU webhook",
    Catcher.OPERATOR: "the KubeRay operator",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One mistake in one place."""

    file: str
    line: int
    """Counted from 1: of the field, or of the nearest thing around it when the field is missing."""
    path: str
    """Such as ``spec.workerGroupSpecs[0].numOfHosts``; empty for the document itself."""
    rule: str
    """Its short name, which stays: comments that ignore it and tools that read JSON or SARIF use it."""
    severity: Severity
    what: str
    """What is wrong, in one sentence."""
    fix: str
    """What to write instead."""
    caught_by: Catcher
    when: str
    """How that layer tells; where none does, what happens."""

    @property
    def consequence(self) -> str:
        """Who would have noticed it, and when."""
        if self.caught_by is Catcher.NOBODY:
            return f"nobody else tells, and {self.when}"
        return f"{_CATCHERS[self.caught_by]} would tell: {self.when}"


def render_findings(findings: Iterable[Finding]) -> str:
    """the findings as text: ``file:line: severity: path: what``, then what to write and who would tell."""
    return "\n".join(line for finding in findings for line in _lines(finding))


def _lines(finding: Finding) -> list[str]:
    path = f"{finding.path}: " if finding.path else ""
    lines = [
        f"{finding.file}:{finding.line}: {finding.severity}: {path}{finding.what} [{finding.rule}]",
        f"    write: {finding.fix}",
    ]
    if finding.severity is not Severity.INFO:
        lines.append(f"    {finding.consequence}")
    return lines


def findings_document(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """the findings as plain data for JSON, in the order given."""
    return [
        {**asdict(finding), "severity": str(finding.severity), "caught_by": str(finding.caught_by)}
        for finding in findings
    ]


def fails(findings: Iterable[Finding], *, strict: bool) -> bool:
    """Whether a CI job should stop: for an error, and if ``strict`` for a warning too."""
    stops = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
    return any(finding.severity in stops for finding in findings)
