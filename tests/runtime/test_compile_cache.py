"""A program is compiled once per process and machine, and a damaged cache is never more than slow."""

from __future__ import annotations

import hashlib
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from raytpu.runtime import ProgramCache
from tests.runtime.host_processes import answers_of, run_hosts


def mesh(devices: list[jax.Device] | None = None) -> Mesh:
    return Mesh(np.array(devices or jax.devices()), ("data",))


def lowered(on: Mesh, factor: float = 2.0) -> jax.stages.Lowered:
    rows = NamedSharding(on, PartitionSpec("data"))
    # Three rows a device, so that the layout of the result depends on the order of the devices.
    x = jax.ShapeDtypeStruct((3 * on.size, 4), jnp.float32, sharding=rows)
    return jax.jit(lambda x: {"y": x * factor + x.sum(0)}, donate_argnums=()).lower(x)


def run(compiled: jax.stages.Compiled, on: Mesh) -> np.ndarray:
    x = np.arange(12 * on.size, dtype=np.float32).reshape(-1, 4)
    return np.asarray(compiled(jax.device_put(x, NamedSharding(on, PartitionSpec("data"))))["y"])


def entry_of(directory: Path) -> Path:
    [entry] = (directory / "programs").iterdir()
    return entry


def test_a_program_is_loaded_the_second_time_and_gives_the_same_result(tmp_path: Path):
    first = ProgramCache(str(tmp_path), mesh()).compile(lowered(mesh()), "step")
    second = ProgramCache(str(tmp_path), mesh()).compile(lowered(mesh()), "step")

    assert [first.cache, second.cache] == ["miss", "hit"]
    assert np.array_equal(run(first.compiled, mesh()), run(second.compiled, mesh()))
    assert first.warnings == second.warnings == ()


def test_another_program_device_order_or_option_is_another_entry(tmp_path: Path):
    """A wrong hit computes something else, and nobody notices."""
    turned = mesh(jax.devices()[::-1])
    half = mesh(jax.devices()[:4])
    cache = ProgramCache(str(tmp_path), mesh())
    cache.compile(lowered(mesh()), "step")

    assert cache.compile(lowered(mesh(), factor=3.0), "step").cache == "miss"
    assert cache.compile(lowered(mesh()), "step", {"xla_cpu_enable_fast_math": True}).cache == "miss"
    assert ProgramCache(str(tmp_path), turned).compile(lowered(turned), "step").cache == "miss"
    assert ProgramCache(str(tmp_path), half).compile(lowered(half), "step").cache == "miss"


@pytest.mark.parametrize("order", [slice(None, None, -1), slice(0, 4), slice(4, 8)])
def test_a_loaded_program_runs_on_the_devices_of_its_mesh(tmp_path: Path, order: slice):
    """Loading takes JAX's own device order unless told: shards would land on the wrong devices."""
    on = mesh(jax.devices()[order])
    compiled = [ProgramCache(str(tmp_path), on).compile(lowered(on), "step") for _ in range(2)]

    assert [program.cache for program in compiled] == ["miss", "hit"]
    assert np.array_equal(run(compiled[0].compiled, on), run(compiled[1].compiled, on))
    assert compiled[1].compiled.output_shardings["y"].device_set == set(on.devices.flat)


def damage_bit(content: bytes) -> bytes:
    return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]


@pytest.mark.parametrize(
    "damage",
    [lambda content: content[: len(content) // 2], lambda _: b"", damage_bit],
    ids=["truncated", "empty", "one bit"],
)
def test_a_damaged_entry_is_compiled_again_and_repaired(tmp_path: Path, damage: Callable[[bytes], bytes]):
    """A full disk or a killed host must not keep a run from starting, now or the next time."""
    ProgramCache(str(tmp_path), mesh()).compile(lowered(mesh()), "step")
    entry = entry_of(tmp_path)
    entry.write_bytes(damage(entry.read_bytes()))

    again = ProgramCache(str(tmp_path), mesh()).compile(lowered(mesh()), "step")
    after = ProgramCache(str(tmp_path), mesh()).compile(lowered(mesh()), "step")

    assert again.cache == "miss"
    assert "damaged" in again.warnings[0]
    assert (after.cache, after.warnings) == ("hit", ())


def test_an_entry_that_another_version_wrote_is_compiled_again(tmp_path: Path):
    """The checksum is right and the content is not an executable of this JAX."""
    ProgramCache(str(tmp_path), mesh()).compile(lowered(mesh()), "step")
    body = zlib.compress(pickle.dumps(("not", "an", "executable")))
    entry_of(tmp_path).write_bytes(b"raytpu program 1\n" + hashlib.sha256(body).digest() + body)

    again = ProgramCache(str(tmp_path), mesh()).compile(lowered(mesh()), "step")

    assert again.cache == "miss"
    assert "cannot be loaded" in again.warnings[0]


def test_a_directory_that_cannot_be_written_costs_a_warning(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")

    program = ProgramCache(str(tmp_path / "file"), mesh()).compile(lowered(mesh()), "step")

    assert program.cache == "off"
    assert "step" in program.warnings[0]
    run(program.compiled, mesh())


def test_a_program_that_calls_back_into_python_is_not_kept(tmp_path: Path):
    """The call is an address, which means something else in the next process."""

    def talking(x):
        jax.debug.print("{x}", x=x.sum())
        return x

    program = ProgramCache(str(tmp_path), mesh()).compile(jax.jit(talking).lower(jnp.ones(3)), "talking")

    assert program.cache == "off"
    assert "calls back into Python" in program.warnings[0]


def test_without_a_directory_nothing_is_kept():
    program = ProgramCache(None, mesh()).compile(lowered(mesh()), "step")

    assert (program.cache, program.warnings) == ("off", ())


TRAIN = """
me, _ = start(slices=2, hosts=1, devices=4, cache_dir=given["jax_cache"])
import hashlib
import jax, jax.numpy as jnp, numpy as np, optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P
from raytpu.runtime import CompileCounter, ProgramCache, device_mesh, slice_of_process, stop_process

mesh = device_mesh(mesh_plan({"replica": 2}, {"fsdp": 4}), slice_of_process(me))
cache, counter = ProgramCache(given["cache"], mesh), CompileCounter()
optimizer = optax.adamw(1e-3)
graph = nnx.graphdef(nnx.eval_shape(lambda: nnx.Linear(32, 32, rngs=nnx.Rngs(0))))

def new_state():
    weights = nnx.state(nnx.Linear(32, 32, rngs=nnx.Rngs(0)))
    return {"weights": weights, "optimizer": optimizer.init(weights)}

def step(state):
    def loss(weights):
        return (nnx.merge(graph, weights)(jnp.ones((8, 32))) ** 2).mean()
    value, gradient = jax.value_and_grad(loss)(state["weights"])
    updates, after = optimizer.update(gradient, state["optimizer"], state["weights"])
    return {"weights": optax.apply_updates(state["weights"], updates), "optimizer": after}, value

shardings = jax.tree.map(
    lambda leaf: NamedSharding(mesh, P(("replica", "fsdp")) if leaf.ndim else P()), jax.eval_shape(new_state)
)
create = cache.compile(jax.jit(new_state, out_shardings=shardings).lower(), "create")
state = create.compiled()
train = cache.compile(jax.jit(step, donate_argnums=0, out_shardings=(shardings, None)).lower(state), "train")
for _ in range(3):
    state, loss = train.compiled(state)
digest = hashlib.sha256()
for leaf in jax.tree.leaves(state):
    for shard in leaf.addressable_shards:
        digest.update(np.asarray(shard.data).tobytes())
answer([create.cache, train.cache, digest.hexdigest(), float(loss), list(train.warnings)])
stop_process()
"""


def test_every_process_of_a_gang_loads_its_program_and_computes_the_same_bits(tmp_path: Path):
    """JAX's own cache serves process 0 only on CPU: the gang is as slow as its slowest compile."""
    given = {"cache": str(tmp_path / "programs"), "jax_cache": None}
    first = answers_of(run_hosts(TRAIN, 2, **given))
    second = answers_of(run_hosts(TRAIN, 2, **given))

    assert [answer[:2] for answer in first] == [["miss", "miss"]] * 2
    assert [answer[:2] for answer in second] == [["hit", "hit"]] * 2
    assert [answer[2:] for answer in first] == [answer[2:] for answer in second]


def test_what_jaxs_own_cache_served_is_not_stored_again(tmp_path: Path):
    """XLA:CPU serialises a loaded executable without error, and the copy fails when it runs."""
    jax_cache = str(tmp_path / "jax")
    run_hosts(TRAIN, 2, cache=str(tmp_path / "a"), jax_cache=jax_cache)
    served, _ = answers_of(run_hosts(TRAIN, 2, cache=str(tmp_path / "b"), jax_cache=jax_cache))
    again, _ = answers_of(run_hosts(TRAIN, 2, cache=str(tmp_path / "b"), jax_cache=jax_cache))

    assert served[:2] == ["hit", "hit"]
    assert again[:4] == served[:4]
    assert [path.name for path in (tmp_path / "b" / "programs").glob("*process0")] == []
