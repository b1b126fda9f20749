"""``raytpu lint FILES``: what is wrong with KubeRay manifests, before a cluster is asked."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from raytpu.cli.home import raytpu_home
from raytpu.errors import SpecError, WrongRequest

if TYPE_CHECKING:
    from raytpu.lint import CustomResources, Finding

FINDINGS = 5
"""Exit code of a check that found something."""

_CRDS_VARIABLE = "RAYTPU_CRDS"
_CLUSTER = "cluster"


def lint(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES", help="Manifests, folders of them, or - for what is piped in.", show_default=False
        ),
    ],
    strict: Annotated[bool, typer.Option("--strict", help="Fail on warnings, too.")] = False,
    crds: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|cluster",
            help="CRDs, for unknown fields and wrong types: of a folder, or of the cluster that kubectl "
            "talks to. Without it: of RAYTPU_CRDS, then those last read from a cluster.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Literal["text", "json", "sarif"],
        typer.Option(help="Text for a person, JSON for a machine, SARIF for a code host."),
    ] = "text",
) -> None:
    """Check KubeRay manifests: schema, operator, TPU webhook, and what nobody else checks.

    Each finding says what to write and who would have told otherwise. Kinds of others are left alone. Exit
    code 5 for errors; with --strict for warnings, too. A comment `# raytpu: ignore=RULE` silences its line.
    """
    from raytpu.lint import fails, lint_text

    texts = list(_texts(files))
    known = _custom_resources(crds, [text for _, text in texts])
    findings = [finding for name, text in texts for finding in lint_text(text, file=name, crds=known)]
    _print(findings, len(texts), output)
    if fails(findings, strict=strict):
        raise typer.Exit(FINDINGS)


def _texts(files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and text of each manifest; of a folder those of its YAML files, by name.

    Raises:
        WrongRequest: nothing of that name, or a folder without YAML files.
    """
    for name in files:
        if name == "-":
            yield "-", sys.stdin.read()
            continue
        path = Path(name)
        if path.is_dir():
            below = sorted(each for each in path.rglob("*.y*ml") if each.suffix in (".yaml", ".yml"))
            if not below:
                raise WrongRequest(f"no .yaml file in the folder {name}")
            for each in below:
                yield str(each), _read(each)
        elif path.is_file():
            yield name, _read(path)
        else:
            raise WrongRequest(f"no file or folder {name}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not a UTF-8 text file ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise WrongRequest(f"{path}: cannot be read: {error.strerror}") from error


def _custom_resources(crds: str | None, manifests: Sequence[str]) -> CustomResources:
    """The CRDs of the kinds that the manifests have; none where there are no CRDs to read.

    Raises:
        WrongRequest: the folder that was named has no CRD.
    """
    from raytpu.lint import may_define, parse_custom_resources

    cache = Path(raytpu_home(), "crds")
    named = crds or os.environ.get(_CRDS_VARIABLE)
    if named == _CLUSTER:
        from raytpu.launch.crds import save_crds_of_cluster

        typer.echo(f"raytpu: CRDs of the cluster are kept in {save_crds_of_cluster(cache)}", err=True)
    folder = cache if named in (None, _CLUSTER) else Path(named)
    files = [path for ending in ("yaml", "yml", "json") for path in sorted(folder.glob(f"*.{ending}"))]
    if named is not None and not files:
        raise WrongRequest(
            f"no CRD in {folder}; expected files as `kubectl get crd rayclusters.ray.io -o yaml`"
        )
    kinds = {kind for text in manifests for kind in re.findall(r"\bkind[\"']?:\s*[\"']?(\w+)", text)}
    texts = ((str(path), _read(path)) for path in files)
    return parse_custom_resources((name, text) for name, text in texts if kinds and may_define(text, kinds))


def _print(findings: Sequence[Finding], files: int, output: str) -> None:
    from raytpu.lint import Severity, findings_document, render_findings, sarif_document

    counts = Counter(finding.severity for finding in findings)
    if output == "json":
        summary = {f"{severity}s": counts[severity] for severity in Severity}
        typer.echo(json.dumps({"files": files, **summary, "findings": findings_document(findings)}, indent=2))
    elif output == "sarif":
        from importlib.metadata import version

        typer.echo(json.dumps(sarif_document(findings, version=version("raytpu")), indent=2))
    elif findings:
        typer.echo(render_findings(_schema_unknown_once(findings)))
    said = ", ".join(f"{counts[each]} {each}{'' if counts[each] == 1 else 's'}" for each in Severity)
    typer.echo(f"raytpu: {files} file{'' if files == 1 else 's'}: {said}", err=True)


def _schema_unknown_once(findings: Sequence[Finding]) -> list[Finding]:
    """That there are no CRDs need not be read once a file."""
    without = [finding for finding in findings if finding.rule != "schema-unknown"]
    return without + [finding for finding in findings if finding.rule == "schema-unknown"][:1]
