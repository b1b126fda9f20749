"""What is wrong with Kubernetes manifests of Ray on TPUs: text in, findings out."""

from __future__ import annotations

from raytpu.lint.custom_resources import CustomResource as CustomResource
from raytpu.lint.custom_resources import CustomResources as CustomResources
from raytpu.lint.custom_resources import may_define as may_define
from raytpu.lint.custom_resources import parse_custom_resources as parse_custom_resources
from raytpu.lint.documents import lint_text as lint_text
from raytpu.lint.findings import Catcher as Catcher
from raytpu.lint.findings import Finding as Finding
from raytpu.lint.findings import Severity as Severity
from raytpu.lint.findings import fails as fails
from raytpu.lint.findings import findings_document as findings_document
from raytpu.lint.findings import render_findings as render_findings
from raytpu.lint.sarif import sarif_document as sarif_document

__all__ = [
    "Catcher",
    "CustomResource",
    "CustomResources",
    "Finding",
    "Severity",
    "fails",
    "findings_document",
    "lint_text",
    "may_define",
    "parse_custom_resources",
    "render_findings",
    "sarif_document",
]
