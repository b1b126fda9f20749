"""Findings as SARIF 2.1.0, which code hosts show beside the lines of a change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raytpu.lint.findings import Finding, Severity

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def sarif_document(findings: Sequence[Finding], *, version: str) -> dict[str, Any]:
    """A SARIF log of one run. ``version`` is raytpu's."""
    rules = sorted({finding.rule for finding in findings})
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "raytpu lint",
                        "version": version,
                        "rules": [{"id": rule} for rule in rules],
                    }
                },
                "results": [_result(finding, rules) for finding in findings],
            }
        ],
    }


def _result(finding: Finding, rules: list[str]) -> dict[str, Any]:
    path = f"{finding.path}: " if finding.path else ""
    consequence = finding.consequence[0].upper() + finding.consequence[1:]
    return {
        "ruleId": finding.rule,
        "ruleIndex": rules.index(finding.rule),
        "level": _LEVELS[finding.severity],
        "message": {
            "text": f"{path}{finding.what}. Write: {finding.fix}. {consequence}.",
        },
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": finding.file},
                    "region": {"startLine": finding.line},
                },
                "logicalLocations": [{"fullyQualifiedName": finding.path}],
            }
        ],
        "properties": {"caught_by": str(finding.caught_by), "fix": finding.fix},
    }
