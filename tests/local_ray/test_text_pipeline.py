"""Text through Ray Data into the object store, and from there to host processes with JAX."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from raytpu.data import BatchStream, TokenRows, prepare_text, rows_for_step
from raytpu.data.sources import source_files
from raytpu.data.token_packing import stream_of
from raytpu.errors import DataError
from raytpu.spec import TextData

pytestmark = pytest.mark.local_ray

LENGTH = 16


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    # A short path: sockets lie below it, and a Unix socket's path may have 107 bytes.
    folder = tempfile.mkdtemp(prefix="rt-")
    ray.init(num_cpus=2, include_dashboard=False, _temp_dir=folder, log_to_driver=False)
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(24):
        (folder / f"{number:02}.txt").write_text(f"document {number}: " + "naïve ☃ " * (number * 5 % 17))
    return folder


def everything(rows: TokenRows) -> np.ndarray:
    return rows.rows(np.arange(rows.row_count))


def reference(corpus: Path, holdout: float, stream: str) -> np.ndarray:
    """The rows of a stream by the plainest means."""
    tokens: list[int] = []
    for path in sorted(corpus.iterdir()):
        if stream_of(path.name, holdout) == stream:
            tokens += [*path.read_bytes(), 256]
    count = (len(tokens) - 1) // LENGTH
    return np.array([tokens[row * LENGTH : row * LENGTH + LENGTH + 1] for row in range(count)])


def test_rows_are_the_same_whatever_the_tasks_and_blocks(corpus: Path) -> None:
    """A resumed run may have other CPUs and other blocks: its rows must be those it began with."""
    data = TextData(source="text", path=str(corpus), holdout=0.3)
    sizes = [1, 400, 1 << 20]
    with ThreadPoolExecutor(len(sizes)) as threads:
        prepared = list(
            threads.map(lambda size: prepare_text(data, sequence_length=LENGTH, piece_bytes=size), sizes)
        )

    for streams in prepared:
        assert list(streams) == ["train", "eval"]
        for name, rows in streams.items():
            assert (everything(rows) == reference(corpus, 0.3, name)).all()
            assert rows.fingerprint == prepared[0][name].fingerprint
    blocks = [len(streams["train"].blocks) for streams in prepared]
    assert blocks[0] > blocks[1] > blocks[2] == 1


def test_the_standard_library_becomes_rows_that_read_as_its_sources() -> None:
    """The offline demo trains on this."""
    streams = prepare_text(TextData(source="python-stdlib"), sequence_length=128, global_batch=32)

    assert list(streams) == ["train"]
    stream = np.append(everything(streams["train"])[:, :-1].ravel(), 256)
    files = source_files(TextData(source="python-stdlib"))
    first = Path(files[0].url).read_bytes()
    assert bytes(stream[: len(first)].astype(np.uint8)) == first
    assert stream[len(first)] == 256
    assert streams["train"].token_count > 5_000_000


def test_what_a_task_cannot_read_is_one_error_with_every_path(corpus: Path, tmp_path: Path) -> None:
    """The driver checks only the head of the first files; tasks meet the rest and tell it all at once."""
    shutil.copytree(corpus, tmp_path / "text")
    for name in ("05.txt", "17.txt"):
        (tmp_path / "text" / name).write_bytes(b"fine, and then \xff")

    with pytest.raises(DataError) as caught:
        prepare_text(TextData(source="text", path=str(tmp_path)), sequence_length=LENGTH, piece_bytes=200)

    first, *rest = str(caught.value).split("\n")
    assert first == "data source text: 2 problems"
    assert f"{tmp_path}/text/05.txt: is not UTF-8 text (byte 15 is 0xff)" in rest[0]
    assert f"{tmp_path}/text/17.txt: is not UTF-8 text (byte 15 is 0xff)" in rest[1]


def test_too_little_text_for_a_batch_is_refused_with_the_numbers(corpus: Path) -> None:
    """Hosts would find out one by one, minutes later."""
    data = TextData(source="text", path=str(corpus), holdout=1e-9)

    with pytest.raises(DataError) as caught:
        prepare_text(data, sequence_length=LENGTH, global_batch=1000)

    assert "stream train has" in str(caught.value)
    assert "stream eval has 0 tokens in 0 rows of 16; one batch needs 1000 rows: raise holdout" in str(
        caught.value
    )


@ray.remote(
    num_cpus=0,
    runtime_env={
        "env_vars": {
            "JAX_PLATFORMS": "cpu",
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        }
    },
)
class HostProcess:
    """One of ``processes`` JAX processes with two devices each."""

    def __init__(self, rows: TokenRows) -> None:
        self.rows = rows

    def node_address(self) -> str:
        import socket

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{free.getsockname()[1]}"

    def start(self, coordinator: str, process: int, processes: int) -> int:
        import jax

        if processes > 1:
            jax.distributed.initialize(
                coordinator,
                processes,
                process,
                cluster_detection_method="deactivate",
                initialization_timeout=60,
            )
        return jax.device_count()

    def batches(
        self, axes: dict[str, int], count: int, position: dict[str, Any] | None
    ) -> tuple[list[dict[int, list[int]]], dict[str, Any]]:
        """For each batch the tokens by place in the global batch; and the position behind the last one."""
        import jax
        from jax.sharding import Mesh, PartitionSpec

        mesh = Mesh(np.array(jax.devices()).reshape(tuple(axes.values())), tuple(axes))
        spec = PartitionSpec(tuple(axes))
        with BatchStream(self.rows, mesh, spec, 8, seed=3, position=position) as stream:
            taken = [next(stream)["tokens"] for _ in range(count)]
            return [
                {
                    shard.index[0].indices(8)[0] + at: row.tolist()
                    for shard in tokens.addressable_shards
                    for at, row in enumerate(np.asarray(shard.data))
                }
                for tokens in taken
            ], stream.position


def test_another_number_of_processes_goes_on_with_the_very_next_global_batch(corpus: Path) -> None:
    """A run that lost a slice resumes on fewer hosts: every row once, in the same order."""
    data = TextData(source="text", path=str(corpus))
    rows = prepare_text(data, sequence_length=LENGTH, piece_bytes=300)["train"]
    rows_by_hand = reference(corpus, 0.0, "train")
    pair = [HostProcess.remote(rows) for _ in range(2)]  # type: ignore[attr-defined]
    single = HostProcess.remote(rows)  # type: ignore[attr-defined]
    coordinator = ray.get(pair[0].node_address.remote())
    starts = [host.start.remote(coordinator, process, 2) for process, host in enumerate(pair)]
    assert ray.get([*starts, single.start.remote("", 0, 1)]) == [4, 4, 2]

    halves = ray.get([host.batches.remote({"replica": 2, "fsdp": 2}, 9, None) for host in pair])
    assert halves[0][1] == halves[1][1]
    moved, _ = ray.get(single.batches.remote({"fsdp": 2}, 9, halves[0][1]))

    for step, (first, second) in enumerate(zip(halves[0][0], halves[1][0], strict=True)):
        assert (sorted(first), sorted(second)) == ([0, 1, 2, 3], [4, 5, 6, 7])
        expected = rows_by_hand[rows_for_step(3, len(rows_by_hand), 8, step)]
        assert [(first | second)[place] for place in range(8)] == expected[:, :-1].tolist()
    for step, batch in enumerate(moved):
        expected = rows_by_hand[rows_for_step(3, len(rows_by_hand), 8, 9 + step)]
        assert [batch[place] for place in range(8)] == expected[:, :-1].tolist()
