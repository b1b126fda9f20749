"""A checkpoint of several processes restores anywhere, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raytpu.checkpoint import durable_steps
from tests.runtime.host_processes import answers_of, run_hosts

PROGRAM = """
me, _ = start(**given["start"])
import hashlib
import jax, jax.numpy as jnp, numpy as np, optax
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec as P
from raytpu.checkpoint import CheckpointStore
from raytpu.runtime import device_mesh, slice_of_process, stop_process

mesh = device_mesh(mesh_plan(*given["mesh"]), slice_of_process(me))
optimizer = optax.adamw(1e-3)

def new_state(seed=0):
    key = jax.random.key(seed)
    weights = {"kernel": jax.random.normal(key, (16, 8)), "bias": jax.random.normal(key, (8,))}
    half = jax.random.normal(key, (16, 4)).astype(jnp.bfloat16)
    return {"weights": weights, "optimizer": optimizer.init(weights), "half": half, "key": key}

def layout(leaf):
    return NamedSharding(mesh, P("fsdp") if leaf.ndim and leaf.shape[0] % 16 == 0 else P())

shardings = jax.tree.map(layout, jax.eval_shape(new_state))
create = jax.jit(new_state, out_shardings=shardings, static_argnums=0)
everywhere = NamedSharding(mesh, P())

def digest(state):
    total = hashlib.sha256()
    for leaf in jax.tree.leaves(jax.jit(lambda tree: tree, out_shardings=everywhere)(state)):
        raw = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        total.update(np.asarray(raw.addressable_data(0)).tobytes())
    return total.hexdigest()

store = CheckpointStore(given["directory"], keep=5)
state, position = create(0), {}
if given["restore"] is not None:
    state, position = store.restore(given["restore"], state)[:2]
else:
    state = create(1)
store.save(given["save"], state, {"from": given["save"]})
store.close(60)
kernel = state["weights"]["kernel"]
answer([digest(state), position, store.durable_step, kernel.sharding.shard_shape(kernel.shape)])
stop_process()
"""

TWO_SLICES = {"start": {"slices": 2, "hosts": 1, "devices": 4}, "mesh": [{"replica": 2}, {"fsdp": 4}]}
ONE_SLICE = {"start": {"slices": 1, "hosts": 1, "devices": 4}, "mesh": [{}, {"fsdp": 4}]}
ONE_SLICE_OF_TWO_HOSTS = {"start": {"slices": 1, "hosts": 2, "devices": 4}, "mesh": [{}, {"fsdp": 8}]}
ONE_DEVICE = {"start": {"slices": 1, "hosts": 1, "devices": 1}, "mesh": [{}, {"fsdp": 1}]}


def digests_along(directory: str, chain: list[tuple[dict[str, Any], int, list[int]]]) -> set[str]:
    """Save on the first place of ``chain``; restore and save again on each other. Digests of all states."""
    digests = set()
    for step, (where, processes, shard) in enumerate(chain):
        restore = step - 1 if step else None
        answers = answers_of(
            run_hosts(PROGRAM, processes, directory=directory, save=step, restore=restore, **where)
        )
        for digest, position, durable, found_shard in answers:
            digests.add(digest)
            assert position == ({} if restore is None else {"from": restore})
            assert durable == step
            assert found_shard == shard
    return digests


def test_a_checkpoint_moves_to_one_slice_and_to_one_device_and_back(tmp_path: Path):
    """A run that lost a slice could not go on with the one that is left, or would with other weights."""
    chain = [
        (TWO_SLICES, 2, [4, 8]),
        (ONE_SLICE, 1, [4, 8]),
        (ONE_DEVICE, 1, [16, 8]),
        (TWO_SLICES, 2, [4, 8]),
    ]

    assert len(digests_along(str(tmp_path), chain)) == 1
    assert durable_steps(str(tmp_path)) == (0, 1, 2, 3)


def test_a_checkpoint_moves_to_more_devices_than_it_was_saved_from(tmp_path: Path):
    chain = [(ONE_DEVICE, 1, [16, 8]), (ONE_SLICE_OF_TWO_HOSTS, 2, [2, 8])]

    assert len(digests_along(str(tmp_path), chain)) == 1


def test_an_array_of_one_process_is_refused_by_name(tmp_path: Path):
    """Made outside jit, it exists once per process, and Orbax fails on it deep inside."""
    program = """
    me, _ = start(slices=2, hosts=1, devices=2)
    import jax, jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec as P
    from raytpu.checkpoint import CheckpointStore
    from raytpu.errors import SpecError
    from raytpu.runtime import device_mesh, slice_of_process, stop_process
    mesh = device_mesh(mesh_plan({"replica": 2}, {"fsdp": 2}), slice_of_process(me))
    x = jax.jit(lambda: jnp.ones(8), out_shardings=NamedSharding(mesh, P()))()
    store = CheckpointStore(given["directory"], keep=1)
    try:
        store.save(1, {"x": x, "count": jnp.int32(3)}, {})
    except SpecError as error:
        answer(str(error))
    stop_process()
    """

    for index, message in enumerate(answers_of(run_hosts(program, 2, directory=str(tmp_path)))):
        assert f"['count']: lives on process {index} alone" in message
        assert "['x']" not in message


def test_a_save_that_fails_on_one_process_never_becomes_durable(tmp_path: Path):
    """With the parts of one host missing, the checkpoint cannot be restored."""
    program = """
    import resource, signal
    me, _ = start(slices=2, hosts=1, devices=1)
    import jax, jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec as P
    from raytpu.checkpoint import CheckpointStore
    from raytpu.errors import SaveFailed
    from raytpu.runtime import device_mesh, slice_of_process
    mesh = device_mesh(mesh_plan({"fsdp": 2}, {}), slice_of_process(me))
    rows = NamedSharding(mesh, P("fsdp"))
    x = jax.jit(lambda: jax.random.normal(jax.random.key(0), (1 << 20,)), out_shardings=rows)()
    store = CheckpointStore(given["directory"], keep=1)
    store.save(1, {"x": x}, {})
    store.wait(60)
    if index == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
    store.save(2, {"x": x}, {})
    if index == 1:
        while True:
            try:
                store.raise_failed_save()
            except SaveFailed as error:
                answer(str(error))
                open(given["failed"], "w").close()
                os._exit(0)  # what a host does with such an error; its peer sees the loss
    import time
    from pathlib import Path
    while not Path(given["failed"]).exists():
        time.sleep(0.05)
    answer(store.durable_step)
    os._exit(0)
    """

    directory = str(tmp_path / "checkpoints")
    healthy, failed = answers_of(run_hosts(program, 2, directory=directory, failed=str(tmp_path / "failed")))

    assert healthy == 1
    assert "checkpoint of step 2" in failed
    assert "failed on process 1" in failed
    assert durable_steps(directory) == (1,)
