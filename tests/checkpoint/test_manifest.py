"""What a checkpoint must hold is written down, and what it does hold is compared with that."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from raytpu.checkpoint import durable_steps, rungs
from raytpu.checkpoint.ladder import removable
from raytpu.checkpoint.manifest import (
    FileFacts,
    ManifestDamaged,
    read_facts,
    read_manifest,
    share_out,
    size_findings,
    stored_sizes,
    write_manifest,
)
from raytpu.checkpoint.quarantine import all_put_aside, put_aside


def checkpoint(directory: str, step: int, *, manifest: bool = True) -> str:
    """Files of a durable checkpoint on any storage, as Orbax names them."""
    storage, root = fsspec.core.url_to_fs(directory)
    for name, data in (("commit_success.txt", b"done"), ("state/d/ab", b"numbers"), ("about/metadata", b"")):
        path = f"{root}/{step}/{name}"
        storage.makedirs(path.rpartition("/")[0], exist_ok=True)
        storage.pipe_file(path, data)
    where = f"{directory}/{step}"
    if manifest:
        facts = read_facts(where, stored_sizes(where))
        write_manifest(where, step, {n: each for n, each in facts.items() if not isinstance(each, str)})
    return where


@pytest.fixture(params=["local", "memory"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A checkpoint folder where directories can be renamed, and one where they cannot."""
    return str(tmp_path / "run") if request.param == "local" else f"memory://{tmp_path.name}/run"


def spoil(where: str, name: str, data: bytes) -> None:
    storage, root = fsspec.core.url_to_fs(where)
    storage.pipe_file(f"{root}/{name}", data)


def test_a_manifest_names_every_file_with_size_and_checksum(directory: str):
    where = checkpoint(directory, 5)

    assert read_manifest(where, 5) == {
        "about/metadata": FileFacts(size=0, crc32="00000000"),
        "commit_success.txt": FileFacts(size=4, crc32="102de0ab"),
        "state/d/ab": FileFacts(size=7, crc32="779ecaf9"),
    }
    assert sorted(stored_sizes(where)) == ["about/metadata", "commit_success.txt", "state/d/ab"]


def test_a_checkpoint_without_a_manifest_is_unverified_not_damaged(directory: str):
    """Those of an older raytpu would be lost."""
    checkpoint(directory, 5, manifest=False)

    [rung] = rungs(directory, verify=True)
    assert (rung.step, rung.state, rung.reasons) == (5, "unverified", ())


def test_other_bytes_of_the_same_length_are_found_by_reading(directory: str):
    """Sizes alone let a flipped bit through, into every step that follows."""
    spoil(checkpoint(directory, 5), "state/d/ab", b"nUmbers")

    [glance], [look] = rungs(directory), rungs(directory, verify=True)
    assert glance.state == "good"
    assert look.state == "damaged"
    assert look.reasons[0].startswith("state/d/ab holds other bytes than were saved (CRC-32 ")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "cannot be understood"),
        (b"\x00\xff\x17", "cannot be understood"),
        (b"[]", "cannot be understood"),
        (b'{"format": 1, "step": 5, "files": {"state/d/ab": {"size": 7}}}', "KeyError: 'crc32'"),
        (b'{"format": 1, "step": 5, "files": {}}', "does not name all files"),
        (b'{"format": 1, "step": 6, "files": {}}', "step 6, expected format 1 and step 5"),
        (b'{"format": 2, "step": 5, "files": {}}', "format 2 and step 5, expected"),
    ],
)
def test_a_manifest_that_is_none_is_damage(directory: str, text: bytes, why: str):
    """Taken for a missing one, damage would pass as unverified; taken for an empty one, anything would."""
    where = checkpoint(directory, 5)
    spoil(where, "manifest.json", text)

    with pytest.raises(ManifestDamaged, match=why):
        read_manifest(where, 5)
    [rung] = rungs(directory)
    assert rung.state == "damaged"


def test_missing_and_shortened_files_are_named_and_others_are_not():
    manifest = {name: FileFacts(size=9, crc32="") for name in ("same", "short", "gone")}

    assert size_findings(manifest, {"same": 9, "short": 3, "new": 1}) == [
        "short has 3 bytes, not 9",
        "gone is missing",
    ]


def test_shares_are_even_by_bytes_and_hold_every_file_once():
    """One process with all the large files would make all others wait."""
    sizes = {f"large{n}": 1000 for n in range(4)} | {f"small{n}": 10 for n in range(7)} | {"empty": 0}
    shares = share_out(sizes, 3)

    assert sorted(name for share in shares for name in share) == sorted(sizes)
    assert sorted(sum(sizes[name] for name in share) for share in shares) == [1030, 1040, 2000]
    assert share_out(dict(reversed(sizes.items())), 3) == shares
    assert share_out({"one": 5}, 3) == [["one"], [], []]


@pytest.mark.parametrize(
    ("steps", "verified", "keep", "expected"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], 2, [1, 2]),
        ([1, 2, 3, 4], [4], 1, [1, 2, 3]),
        ([1, 2, 3, 4], [3], 1, [1, 2]),  # 4 is newer than what is known to be good
        ([1, 2, 3, 4], [], 1, []),
        ([1, 2, 3, 4], [1, 4], 3, []),  # older ones stay until there are enough verified ones
        ([1, 2, 3, 4], [1, 2, 4], 2, [1]),  # 3 is not verified: it takes nobody's place
        ([], [], 1, []),
    ],
)
def test_only_what_is_older_than_enough_verified_ones_may_go(steps, verified, keep, expected):
    """Three unverified checkpoints are worth less than one that is known to be good."""
    assert removable(steps, verified, keep) == expected


def test_what_is_put_aside_counts_no_more_and_says_why(directory: str):
    for step in (5, 6):
        checkpoint(directory, step)
    aside = put_aside(directory, 6, "state/d/ab is missing")

    assert durable_steps(directory) == (5,)
    assert all_put_aside(directory) == (aside,)
    assert aside.reason == "state/d/ab is missing"
    assert [(rung.step, rung.state) for rung in rungs(directory)] == [(5, "good"), (6, "quarantined")]
    assert rungs(directory)[1].size == 11
    assert aside.path == (f"{directory}/6" if "://" in directory else f"{directory}/quarantined/6-1")


def test_the_same_step_can_be_put_aside_again(tmp_path: Path):
    """A disk that spoils one checkpoint may spoil the next of that step."""
    for _ in range(2):
        checkpoint(str(tmp_path), 6)
        put_aside(str(tmp_path), 6, "spoilt")

    assert [Path(each.path).name for each in all_put_aside(str(tmp_path))] == ["6-1", "6-2"]
    assert sorted(path.name for path in (tmp_path / "quarantined").iterdir()) == [
        "6-1",
        "6-1.json",
        "6-2",
        "6-2.json",
    ]


def test_a_checkpoint_that_was_moved_before_its_reason_was_written_is_still_shown(tmp_path: Path):
    """The process may die in between."""
    checkpoint(str(tmp_path), 6)
    put_aside(str(tmp_path), 6, "spoilt")
    (tmp_path / "quarantined" / "6-1.json").unlink()

    [aside] = all_put_aside(str(tmp_path))
    assert (aside.step, aside.reason, aside.path) == (6, "", f"{tmp_path}/quarantined/6-1")


def test_two_gangs_that_find_the_same_damage_do_not_fail_each_other(tmp_path: Path):
    """Slices with a JAX world each restore from one folder at the same moment."""
    checkpoint(str(tmp_path), 6)
    first = put_aside(str(tmp_path), 6, "spoilt")

    assert put_aside(str(tmp_path), 6, "spoilt, I see it too") == first
    assert len(all_put_aside(str(tmp_path))) == 1
