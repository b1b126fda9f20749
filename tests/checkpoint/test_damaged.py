"""Real checkpoints, damaged on purpose: never restored, never deleted in silence, never a fresh start."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from raytpu.checkpoint import CheckpointStore, durable_steps, rungs
from raytpu.errors import CheckpointMismatch, StorageError
from tests.runtime.host_processes import answers_of, run_hosts

DEADLINE_S = 60


def state_of(seed: int, size: int = 1 << 14) -> dict[str, jax.Array]:
    return {"x": jax.random.normal(jax.random.key(seed), (size,))}


def save(directory: Path, *steps: int, keep: int = 5) -> None:
    store = CheckpointStore(str(directory), keep)
    for step in steps:
        store.save(step, state_of(step), {"step": step})
    store.close(DEADLINE_S)


def largest(step: Path) -> Path:
    """The file that holds the arrays."""
    return max((path for path in step.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip_a_byte(step: Path) -> None:
    path = largest(step)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def cut_off(step: Path) -> None:
    os.truncate(largest(step), largest(step).stat().st_size // 2)


def remove_a_file(step: Path) -> None:
    largest(step).unlink()


def spoil_the_manifest(step: Path) -> None:
    (step / "manifest.json").write_bytes(b"\x89PNG\r\n")


def drop_the_manifest_and_the_arrays(step: Path) -> None:
    """Unverified, and Orbax cannot read it."""
    (step / "manifest.json").unlink()
    shutil.rmtree(step / "state")


def drop_the_manifest_and_the_description(step: Path) -> None:
    (step / "manifest.json").unlink()
    (step / "about" / "metadata").write_text("{")


DAMAGES = [
    (flip_a_byte, "holds other bytes than were saved"),
    (cut_off, "bytes, not "),
    (remove_a_file, "is missing"),
    (spoil_the_manifest, "manifest.json cannot be understood"),
    (drop_the_manifest_and_the_arrays, "cannot read its arrays"),
    (drop_the_manifest_and_the_description, "its description cannot be read"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_damaged_newest_is_put_aside_and_the_older_one_is_restored(
    tmp_path: Path, damage: Callable[[Path], None], reason: str
):
    """A run would train on from garbage, or not at all."""
    save(tmp_path, 1, 2)
    damage(tmp_path / "2")
    store = CheckpointStore(str(tmp_path), keep=5)

    restored = store.restore_newest(state_of(0))

    assert restored is not None
    assert (restored.step, restored.position, restored.verified) == (1, {"step": 1}, True)
    assert np.array_equal(restored.state["x"], state_of(1)["x"])
    [aside] = restored.quarantined
    assert aside.step == 2
    assert reason in aside.reason
    assert aside.path == str(tmp_path / "quarantined" / "2-1")
    assert json.loads((tmp_path / "quarantined" / "2-1.json").read_text())["reason"] == aside.reason
    assert durable_steps(str(tmp_path)) == (1,)
    assert store.durable_step == 1

    store.save(2, state_of(22), {"step": 2})
    store.close(DEADLINE_S)
    assert [(rung.step, rung.state) for rung in rungs(str(tmp_path), verify=True)] == [
        (1, "good"),
        (2, "good"),
        (2, "quarantined"),
    ]


def test_when_none_is_good_the_error_names_each_and_nothing_is_moved(tmp_path: Path):
    """A fresh start beside the ruins looks like success; and what spoils all may be the storage alone."""
    save(tmp_path, 1, 2)
    flip_a_byte(tmp_path / "1")
    remove_a_file(tmp_path / "2")
    store = CheckpointStore(str(tmp_path), keep=5)

    for _ in range(2):
        with pytest.raises(StorageError, match="no checkpoint is good") as caught:
            store.restore_newest(state_of(0))
        assert "  1: " in str(caught.value)
        assert "holds other bytes" in str(caught.value)
        assert "  2: " in str(caught.value)
        assert "is missing" in str(caught.value)
    assert durable_steps(str(tmp_path)) == (1, 2)


def test_with_nothing_but_quarantine_left_no_run_begins_anew(tmp_path: Path):
    """Its steps would be made again without anybody being told."""
    save(tmp_path, 1, 2)
    flip_a_byte(tmp_path / "2")
    CheckpointStore(str(tmp_path), keep=5).restore_newest(state_of(0))
    shutil.rmtree(tmp_path / "1")

    with pytest.raises(StorageError, match="no checkpoint is left beside those under quarantine"):
        CheckpointStore(str(tmp_path), keep=5).restore_newest(state_of(0))


def test_another_model_is_not_damage(tmp_path: Path):
    """Falling back to a checkpoint that happens to fit would hide a wrong workload file."""
    save(tmp_path, 1)
    store = CheckpointStore(str(tmp_path), keep=5)
    store.save(2, state_of(2, size=64), {})
    store.wait(DEADLINE_S)

    with pytest.raises(CheckpointMismatch, match="another model"):
        store.restore_newest(state_of(0))
    assert durable_steps(str(tmp_path)) == (1, 2)


def test_a_damaged_step_that_was_asked_for_is_refused_and_stays(tmp_path: Path):
    """Who names a step does not want another."""
    save(tmp_path, 1, 2)
    flip_a_byte(tmp_path / "2")

    with pytest.raises(StorageError, match=rf"{tmp_path}/2: cannot be restored: .* holds other bytes"):
        CheckpointStore(str(tmp_path), keep=5).restore(2, state_of(0))
    assert durable_steps(str(tmp_path)) == (1, 2)


def test_an_unverified_newest_is_restored_and_says_so(tmp_path: Path):
    """It is durable: an older raytpu wrote it, or the process was killed before the manifest."""
    save(tmp_path, 1, 2)
    (tmp_path / "2" / "manifest.json").unlink()

    restored = CheckpointStore(str(tmp_path), keep=5).restore_newest(state_of(0))

    assert restored is not None
    assert (restored.step, restored.verified, restored.quarantined) == (2, False, ())


def test_unverified_ones_stay_until_enough_newer_ones_are_verified(tmp_path: Path):
    """With keep=1, the only checkpoint that is known to be good must not make way for one that is not."""
    save(tmp_path, 1, 2, 3)
    for step in (2, 3):
        (tmp_path / str(step) / "manifest.json").unlink()

    save(tmp_path, 4, keep=2)
    assert durable_steps(str(tmp_path)) == (1, 2, 3, 4)
    save(tmp_path, 5, keep=2)
    assert durable_steps(str(tmp_path)) == (4, 5)


KILLED = """
import signal
me, _ = start(slices=1, hosts=1, devices=1)
import jax, jax.numpy as jnp
from raytpu.checkpoint import CheckpointStore, orbax_store
store = CheckpointStore(given["directory"], keep=1)
store.save(1, {"x": jnp.ones(1 << 14)}, {"step": 1})
store.wait(60)
orbax_store.vouch_for = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
store.save(2, {"x": jnp.zeros(1 << 14)}, {"step": 2})
store.wait(60)
"""


def test_a_kill_between_commit_and_manifest_costs_nothing(tmp_path: Path):
    """The older one must still be there, and the newer one be of use."""
    [end] = run_hosts(KILLED, 1, directory=str(tmp_path))

    assert end.returncode == -9, end.output
    assert [(rung.step, rung.state) for rung in rungs(str(tmp_path))] == [(1, "good"), (2, "unverified")]
    store = CheckpointStore(str(tmp_path), keep=1)
    restored = store.restore_newest(state_of(0))
    assert restored is not None
    assert (restored.step, restored.verified) == (2, False)
    store.save(3, state_of(3), {})
    store.close(DEADLINE_S)
    assert durable_steps(str(tmp_path)) == (3,)


DISK_FULL = """
import resource, signal
me, _ = start(slices=1, hosts=1, devices=1)
import jax, jax.numpy as jnp
from raytpu.checkpoint import CheckpointStore, orbax_store
from raytpu.errors import SaveFailed
store = CheckpointStore(given["directory"], keep=1)
store.save(1, {"x": jnp.ones(8)}, {})
store.wait(60)
vouch_for = orbax_store.vouch_for
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def on_a_full_disk(*arguments):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    return vouch_for(*arguments)
orbax_store.vouch_for = on_a_full_disk
store.save(2, {"x": jnp.ones(8)}, {})
try:
    store.close(60)
except SaveFailed as error:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    answer([str(error), store.durable_step, store.verified_step])
"""


def test_a_disk_that_is_full_when_the_manifest_is_due_fails_the_save_and_deletes_nothing(tmp_path: Path):
    """An older checkpoint that is deleted for an unverified newer one may have been the last."""
    [[message, durable, verified]] = answers_of(run_hosts(DISK_FULL, 1, directory=str(tmp_path)))

    assert "reading back the checkpoint of step 2" in message
    assert "File too large" in message
    assert (durable, verified) == (2, 1)
    assert [(rung.step, rung.state) for rung in rungs(str(tmp_path))] == [(1, "good"), (2, "unverified")]


GANG = """
me, _ = start(slices=2, hosts=2, devices=2)
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from raytpu.checkpoint import CheckpointStore
from raytpu.checkpoint import verification
from raytpu.runtime import device_mesh, slice_of_process, stop_process

mesh = device_mesh(mesh_plan({"replica": 2}, {"fsdp": 4}), slice_of_process(me))
rows = NamedSharding(mesh, P(("replica", "fsdp")))
def state(seed):
    return {"x": jax.jit(lambda: jax.random.normal(jax.random.key(seed), (1 << 14,)), out_shardings=rows)()}

read = []
read_facts = verification.read_facts
verification.read_facts = lambda where, names: (read.extend(names), read_facts(where, names))[1]
store = CheckpointStore(given["directory"], keep=5)
restored = store.restore_newest(state(0)) if given["restore"] else None
quarantined = [] if restored is None else [each.step for each in restored.quarantined]
step = 0 if restored is None else restored.step
if restored is not None:
    wanted = state(step)["x"]
    assert all(
        np.array_equal(a.data, b.data)
        for a, b in zip(restored.state["x"].addressable_shards, wanted.addressable_shards)
    )
for each in given["save"]:
    store.save(each, state(each), {"step": each})
store.close(60)
answer([step, quarantined, store.verified_step, len(read)])
stop_process()
"""


def test_all_processes_of_a_gang_verify_together_and_fall_back_to_the_same_step(tmp_path: Path):
    """Two halves of a gang that restore different steps train one model from two states."""
    directory = str(tmp_path)
    first = answers_of(run_hosts(GANG, 4, directory=directory, restore=False, save=[1, 2, 3]))
    assert [answer[:3] for answer in first] == [[0, [], 3]] * 4
    files = sum(len(files_in_manifest(tmp_path / str(step))) for step in (1, 2, 3))
    assert sum(answer[3] for answer in first) == files, "every file is read back once, by one process"
    assert min(answer[3] for answer in first) > 0

    flip_a_byte(tmp_path / "3")
    drop_the_manifest(tmp_path / "2", process=3)
    second = answers_of(run_hosts(GANG, 4, directory=directory, restore=True, save=[2]))

    assert [answer[:3] for answer in second] == [[1, [3, 2], 2]] * 4
    assert [(rung.step, rung.state) for rung in rungs(directory, verify=True)] == [
        (1, "good"),
        (2, "good"),
        (2, "quarantined"),
        (3, "quarantined"),
    ]


def files_in_manifest(step: Path) -> dict[str, object]:
    files: dict[str, object] = json.loads((step / "manifest.json").read_text())["files"]
    return files


def drop_the_manifest(step: Path, process: int) -> None:
    """Unverified, and only the process whose arrays they are meets the damage."""
    (step / "manifest.json").unlink()
    os.truncate(largest(step / "state" / f"ocdbt.process_{process}"), 10)
