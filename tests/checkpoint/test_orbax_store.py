"""One process: what is saved comes back, what is not durable does not count, what fails is told."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from raytpu.checkpoint import (
    CheckpointStore,
    DurableSave,
    SlowSave,
    VerifiedSave,
    durable_steps,
    orbax_store,
    rungs,
)
from raytpu.checkpoint.orbax_store import slow_limit_s
from raytpu.errors import CheckpointMismatch, DeadlineExceeded, SaveFailed, SpecError, StorageError
from tests.runtime.host_processes import answers_of, run_hosts
from tests.waiting import await_true

DEADLINE_S = 60


def train_state(width: int = 8, seed: int = 0) -> dict[str, Any]:
    """NNX weights, an optax state and a random key: the nodes that Orbax alone gives back as dicts."""
    weights = nnx.state(nnx.Linear(4, width, rngs=nnx.Rngs(seed)))
    return {
        "weights": weights,
        "optimizer": optax.adamw(1e-3).init(weights),
        "key": jax.random.split(jax.random.key(seed), 4),
    }


def saved(directory: Path, *steps: int, keep: int = 3) -> CheckpointStore:
    store = CheckpointStore(str(directory), keep)
    for step in steps:
        store.save(step, train_state(seed=step), {"step": step})
    store.wait(DEADLINE_S)
    return store


def same(left: Any, right: Any) -> bool:
    def bits(leaf: jax.Array) -> bytes:
        raw = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        return np.asarray(raw).tobytes()

    return jax.tree.structure(left) == jax.tree.structure(right) and jax.tree.all(
        jax.tree.map(lambda a, b: bits(a) == bits(b), left, right)
    )


def test_any_tree_comes_back_bit_for_bit_with_its_own_nodes(tmp_path: Path):
    """An optax state restored as dicts fails at the first update."""
    store = saved(tmp_path, 3, 7)

    restored = store.restore_newest(train_state(seed=0))

    assert restored is not None
    assert (restored.step, restored.position, restored.verified) == (7, {"step": 7}, True)
    assert same(restored.state, train_state(seed=7))
    assert same(store.restore(3, train_state(seed=0)).state, train_state(seed=3))


def test_a_description_of_the_state_is_enough_to_restore(tmp_path: Path):
    """Otherwise the model lies in memory twice while it is read."""
    store = saved(tmp_path, 5)
    everywhere = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec())
    described = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere),
        jax.eval_shape(train_state),
    )

    state = store.restore(5, described).state

    assert same(state, train_state(seed=5))
    assert all(leaf.sharding.device_set == set(jax.devices()) for leaf in jax.tree.leaves(state))


def test_a_state_without_shardings_is_refused_by_name(tmp_path: Path):
    store = saved(tmp_path, 5)

    with pytest.raises(SpecError, match=r"\['optimizer'\]\[0\].count: a ShapeDtypeStruct without a sharding"):
        store.restore(5, jax.eval_shape(train_state))


def test_arrays_may_be_donated_as_soon_as_save_returns(tmp_path: Path):
    """The next step overwrites them while the background still writes."""
    store = CheckpointStore(str(tmp_path), keep=1)
    state = {"x": jnp.arange(1 << 20, dtype=jnp.float32)}
    expected = np.array(state["x"])
    bump = jax.jit(lambda tree: {"x": tree["x"] + 1}, donate_argnums=0)
    state = bump(bump(state))

    store.save(1, state, {})
    for _ in range(20):
        state = bump(state)
    store.wait(DEADLINE_S)

    assert np.array_equal(np.asarray(store.restore(1, state).state["x"]), expected + 2)


def test_a_save_is_durable_then_verified_and_each_is_reported_once(tmp_path: Path):
    store = saved(tmp_path, 4)

    assert (store.durable_step, store.verified_step) == (4, 4)
    durable, verified = store.save_reports()
    assert isinstance(durable, DurableSave)
    assert isinstance(verified, VerifiedSave)
    assert (durable.step, verified.step) == (4, 4)
    assert durable.seconds > 0
    assert verified.size == sum(rung.size for rung in rungs(str(tmp_path))) > 0
    assert store.save_reports() == []


def test_the_newest_are_kept_and_the_newest_is_never_removed(tmp_path: Path):
    store = saved(tmp_path, 1, 2, 3, 4, keep=2)

    assert durable_steps(str(tmp_path)) == (3, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4"]
    store.close(DEADLINE_S)


def test_saving_a_saved_step_again_changes_nothing(tmp_path: Path):
    """The last step is often also a due one."""
    store = saved(tmp_path, 4)

    store.save(4, train_state(seed=9), {"step": 9})
    store.wait(DEADLINE_S)

    assert store.restore(4, train_state()).position == {"step": 4}


def test_a_step_of_an_abandoned_branch_is_overwritten(tmp_path: Path):
    """After restoring step 1 on purpose, step 2 of the earlier branch is another model."""
    saved(tmp_path, 1, 2).close(DEADLINE_S)
    store = CheckpointStore(str(tmp_path), keep=3)
    store.restore(1, train_state())

    store.save(2, train_state(seed=22), {"step": 22})
    store.wait(DEADLINE_S)

    assert store.restore(2, train_state()).position == {"step": 22}


def test_opening_removes_what_a_killed_save_left(tmp_path: Path):
    """Orbax refuses to save a step whose temporary directory is still there."""
    saved(tmp_path, 1).close(DEADLINE_S)
    (tmp_path / "2.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
    (tmp_path / "3" / "state").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("not ours")

    store = saved(tmp_path, 2)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "notes.txt"]
    store.close(DEADLINE_S)


def test_a_checkpoint_of_another_model_is_refused_with_what_differs(tmp_path: Path):
    """Orbax pads or truncates some shapes silently, and fails on others in the middle of reading."""
    store = saved(tmp_path, 5)
    other = train_state(width=9) | {"extra": jnp.zeros(3)}
    del other["key"]

    with pytest.raises(CheckpointMismatch) as caught:
        store.restore_newest(other)

    message = str(caught.value)
    assert f"{tmp_path}/5 holds another model: 8 of 9 leaves differ" in message
    assert "['weights']['bias'].value: the checkpoint has float32[8], the model float32[9]" in message
    assert message.count("\n  ['") == 5
    assert "… and 3 more" in message


def test_another_kind_of_number_is_another_model(tmp_path: Path):
    """A silent cast from float32 to bfloat16 loses the optimizer's small updates."""
    store = CheckpointStore(str(tmp_path), keep=1)
    store.save(1, {"x": jnp.ones(3)}, {})

    with pytest.raises(
        CheckpointMismatch, match=r"\['x'\]: the checkpoint has float32\[3\], the model bfloat16\[3\]"
    ):
        store.restore(1, {"x": jnp.ones(3, jnp.bfloat16)})


def test_what_is_not_a_jax_array_is_refused_by_name_before_anything_is_written(tmp_path: Path):
    """np.int32 saves and fails when it is restored, which is a run too late."""
    store = CheckpointStore(str(tmp_path), keep=1)

    with pytest.raises(SpecError) as caught:
        store.save(1, {"step": np.int32(3), "rate": 0.1, "x": jnp.ones(3)}, {})

    assert "['step']: a numpy.int32, expected a jax.Array" in str(caught.value)
    assert "['rate']: a builtins.float, expected a jax.Array" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_is_not_there_is_told_with_those_that_are(tmp_path: Path):
    store = saved(tmp_path, 1, 2)

    with pytest.raises(StorageError, match=r"no durable checkpoint of step 9; there are \[1, 2\]"):
        store.restore(9, train_state())


def test_an_empty_directory_has_nothing_to_restore(tmp_path: Path):
    store = CheckpointStore(str(tmp_path), keep=1)

    assert store.restore_newest(train_state()) is None
    with pytest.raises(StorageError, match="no durable checkpoint"):
        store.restore(1, train_state())


def test_a_path_that_is_a_file_is_refused_on_opening(tmp_path: Path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match="cannot be prepared"):
        CheckpointStore(str(tmp_path / "file" / "checkpoints"), keep=1)


@pytest.mark.parametrize("url", ["memory://run", "nosuch://bucket/run"])
def test_a_storage_that_orbax_does_not_know_is_refused(url: str):
    """It would write to a local directory of that name, gone with the machine."""
    with pytest.raises(StorageError, match=url):
        CheckpointStore(url, keep=1)


def test_a_save_that_cannot_begin_is_raised(tmp_path: Path):
    """Training on without checkpoints costs the whole run at the next failure."""
    store = saved(tmp_path / "run", 1)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").write_text("in the way")

    with pytest.raises((SaveFailed, StorageError), match=f"{tmp_path}/run"):
        store.save(2, train_state(), {})


def test_a_save_that_fails_in_the_background_is_raised_at_the_next_step_and_ever_after(tmp_path: Path):
    """Orbax's own manager keeps it to itself until the next save (google/orbax#605)."""
    program = """
    import resource, signal
    me, _ = start(slices=1, hosts=1, devices=1)
    import jax, jax.numpy as jnp
    from raytpu.checkpoint import CheckpointStore
    from raytpu.errors import SaveFailed
    store = CheckpointStore(given["directory"], keep=2)
    store.save(1, {"x": jnp.ones(8)}, {})
    store.wait(60)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))  # a disk that is full from here on
    random = jax.random.normal(jax.random.key(0), (1 << 20,))  # does not compress
    store.save(2, {"x": random}, {})
    told = []
    while len(told) < 2:
        try:
            store.raise_failed_save()
        except SaveFailed as error:
            told.append(str(error))
    try:
        store.close(60)
    except SaveFailed as error:
        told.append(str(error))
    answer([told, store.durable_step])
    """
    [[told, durable]] = answers_of(run_hosts(program, 1, directory=str(tmp_path)))

    assert len(told) == 3
    assert told[0].startswith(f"checkpoint of step 2 to {tmp_path} failed on process 0: ")
    assert "newest durable checkpoint: step 1" in told[0]
    assert durable == 1
    assert durable_steps(str(tmp_path)) == (1,)


def test_a_kill_in_the_middle_of_a_save_leaves_the_older_one_the_newest(tmp_path: Path):
    """The pointer must not move before the data is durable, nor the older one go."""
    program = """
    import signal
    me, _ = start(slices=1, hosts=1, devices=1)
    import jax, jax.numpy as jnp
    from raytpu.checkpoint import CheckpointStore
    store = CheckpointStore(given["directory"], keep=1)
    store.save(1, {"x": jnp.ones(1 << 24)}, {"at": 1})
    store.wait(60)
    store.save(2, {"x": jax.random.normal(jax.random.key(0), (1 << 24,))}, {"at": 2})
    answer(store.durable_step)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    [end] = run_hosts(program, 1, directory=str(tmp_path))

    assert (end.returncode, end.answers) == (-9, [1]), end.output
    assert durable_steps(str(tmp_path)) == (1,)
    assert any("tmp" in path.name for path in tmp_path.iterdir()), "the save was not under way"
    store = CheckpointStore(str(tmp_path), keep=1)
    restored = store.restore_newest({"x": jnp.zeros(1 << 24)})
    assert restored is not None
    assert restored.position == {"at": 1}
    store.save(2, {"x": jnp.zeros(8)}, {})
    store.close(DEADLINE_S)
    assert durable_steps(str(tmp_path)) == (2,)


def test_waiting_has_a_deadline(tmp_path: Path):
    """One slow disk held 704 processes for hours (marin#8538)."""
    store = CheckpointStore(str(tmp_path), keep=1)
    store.save(1, {"x": jax.random.normal(jax.random.key(0), (1 << 24,))}, {})

    with pytest.raises(DeadlineExceeded, match=f"waited 0 s for checkpoint {tmp_path}/1 to become durable"):
        store.wait(0)
    store.wait(DEADLINE_S)


@pytest.mark.parametrize(
    ("earlier", "expected"),
    [
        ([], 300.0),  # nothing to compare with: half the deadline
        ([0.1, 0.2], 10.0),  # nobody acts on seconds
        ([20.0, 30.0, 1000.0], 120.0),
        ([200.0], 300.0),
    ],
)
def test_a_save_is_slow_compared_with_those_before_and_with_its_deadline(earlier, expected):
    assert slow_limit_s(earlier, deadline_s=600) == expected


def test_a_save_that_does_not_end_is_told_once_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Otherwise the first sign is the loop that stands still when the next one is due."""
    monkeypatch.setattr(orbax_store, "SLOW_FLOOR_S", 0.0)
    monkeypatch.setattr(orbax_store, "SLOW_FACTOR", 1)
    go_on = threading.Event()
    store = saved(tmp_path, 1)
    store.save_reports()
    finish = ocp.AsyncCheckpointer.wait_until_finished

    def finish_later(writer: ocp.AsyncCheckpointer) -> None:
        if threading.current_thread() is not threading.main_thread():  # Orbax waits in save as well
            go_on.wait(DEADLINE_S)
        finish(writer)

    monkeypatch.setattr(ocp.AsyncCheckpointer, "wait_until_finished", finish_later)
    store.save(2, train_state(), {})
    told: list[object] = []
    await_true("the slow save to be told", lambda: told.extend(store.save_reports()) or told)

    [slow] = told
    assert isinstance(slow, SlowSave)
    assert slow.step == 2
    assert slow.seconds > slow.limit_s > 0
    assert store.durable_step == 1
    assert store.save_reports() == []
    go_on.set()
    store.close(DEADLINE_S)
    assert [type(report) for report in store.save_reports()] == [DurableSave, VerifiedSave]
