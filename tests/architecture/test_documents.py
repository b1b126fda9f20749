"""The project's text holds for every reader: links resolve, nothing names the machine it was written on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.project_files import ROOT, project_files, shown

DOCUMENTS = [path for path in project_files() if path.suffix == ".md"]

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
FENCED = re.compile(r"^(```|~~~).*?^\1", flags=re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`[^`\n]*`")

# Written in pieces, so that this file does not find itself.
TRACES = {
    "a folder of one machine": re.compile("/" + r"(work|root|home/[a-z]\w*|Users/\w+)/"),
    "the host of a package registry": re.compile(
        r"(pypi\.o" + r"rg|pythonhosted\.o" + r"rg|npmjs\.o" + r"rg)"
    ),
}


def anchors(document: Path) -> set[str]:
    """The anchors GitHub gives to the headings of a document."""
    text = FENCED.sub("", document.read_text(encoding="utf-8"))
    found: set[str] = set()
    for heading in re.findall(r"^#+\s+(.*?)\s*$", text, flags=re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        copies = sum(1 for other in found if re.fullmatch(re.escape(slug) + r"(-\d+)?", other))
        found.add(f"{slug}-{copies}" if copies else slug)
    return found


def broken_links(document: Path) -> list[str]:
    """The relative links of a document that lead nowhere, to a file or to a heading."""
    text = INLINE_CODE.sub("", FENCED.sub("", document.read_text(encoding="utf-8")))
    broken = []
    for target in LINK.findall(text):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (document.parent / file).resolve() if file else document
        dead = not path.exists() or not path.is_relative_to(ROOT)
        if dead or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=shown)
def test_every_relative_link_resolves(document: Path) -> None:
    """A reader who follows a dead link stops reading."""
    assert broken_links(document) == []


def test_a_dead_link_and_a_dead_heading_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above must be able to fail."""
    monkeypatch.setitem(broken_links.__globals__, "ROOT", tmp_path)
    document = tmp_path / "page.md"
    document.write_text("# A heading\n[up](#a-heading) [no](#b) [gone](gone.md) `[code](gone.md)`\n")

    assert broken_links(document) == ["#b", "gone.md"]


@pytest.mark.parametrize("trace", TRACES)
def test_no_text_names_the_machine_it_was_written_on(trace: str) -> None:
    """A path that exists on one machine only, or a mirror that only its network has, breaks everyone else."""
    found = []
    for path in project_files():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue  # a picture or an archive holds no text
        found += [
            f"{shown(path)}:{number}" for number, line in enumerate(lines, 1) if TRACES[trace].search(line)
        ]

    assert found == []
