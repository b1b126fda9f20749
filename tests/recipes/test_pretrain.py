"""The pretraining loop on one process: steps, restart, evaluation, sample, and what it learns."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from raytpu.recipes.pretrain import PretrainConfig, train
from tests.recipes.builders import pretraining
from tests.recipes.local_context import LocalContext, stdlib_rows


def context(
    config: PretrainConfig, *, holdout: bool = False, devices: int = 8, **options: Any
) -> LocalContext:
    rows = stdlib_rows(config.sequence_length, limit_bytes=200_000)
    streams = {"train": rows[200:], "eval": rows[:200]} if holdout else {"train": rows}
    mesh = Mesh(np.array(jax.devices()[:devices]), ("fsdp",))
    return LocalContext(mesh, ("fsdp",), streams, global_batch=config.global_batch, **options)


def test_a_resumed_run_goes_on_with_the_very_numbers_of_an_uninterrupted_one() -> None:
    """A resumed run that differs cannot be trusted to be the same training."""
    config = pretraining(steps=8, sample_tokens=0)
    whole = context(config, save_at=5)
    train(whole, config)  # type: ignore[arg-type]

    resumed = context(config, start=whole.saved)
    train(resumed, config)  # type: ignore[arg-type]

    assert len(whole.losses) == 8
    assert resumed.metrics == whole.metrics[5:]


def test_a_finished_run_started_again_trains_no_further() -> None:
    """``raytpu run`` on a finished run must not overwrite its result."""
    config = pretraining(steps=3, sample_tokens=4)
    done = context(config, save_at=3)
    train(done, config)  # type: ignore[arg-type]

    again = context(config, start=done.saved)
    train(again, config)  # type: ignore[arg-type]

    assert again.losses == []
    assert again.samples == done.samples


def test_held_out_text_is_evaluated_when_there_is_some() -> None:
    """The same batches each time, or the losses of two evaluations do not compare."""
    config = pretraining(steps=6, eval_every=2, eval_batches=2, learning_rate=1e-9, sample_tokens=0)
    with_holdout, without = context(config, holdout=True), context(config)
    train(with_holdout, config)  # type: ignore[arg-type]
    train(without, config)  # type: ignore[arg-type]

    assert [step for step, _ in with_holdout.evaluations] == [2, 4, 6]
    losses = [metrics["loss"] for _, metrics in with_holdout.evaluations]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)
    assert without.evaluations == []


@pytest.mark.parametrize(("model", "characters"), [("gpt-nano", 24), ("gpt2-124m", 16)])
def test_a_sample_goes_on_from_the_prompt(model: str, characters: int) -> None:
    """Learned positions beyond the trained length are noise; a sample must not run into them."""
    overrides = {"width": 32, "heads": 4, "layers": 1, "vocab_size": 257}
    config = pretraining(model=model, overrides=overrides, steps=1, sample_prompt="def ", sample_tokens=20)
    run = context(config)
    train(run, config)  # type: ignore[arg-type]

    [text] = run.samples
    assert text.startswith("def ")
    # Decoding can only shorten: separators vanish, and bytes join into characters.
    assert len("def ") <= len(text) <= characters


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_gpt_nano_learns_python_within_120_steps() -> None:
    """The demo promises a loss below 2.6 nats per byte within 200 steps, and a sample of printable text."""
    config = PretrainConfig(model="gpt-nano", steps=120, global_batch=32, sequence_length=128)
    rows = stdlib_rows(128)
    unseen = np.arange(len(rows)) % 20 == 0  # from all files: a block of rows would be one or two of them
    mesh = Mesh(np.array(jax.devices()[:1]), ("fsdp",))
    run = LocalContext(mesh, ("fsdp",), {"train": rows[~unseen], "eval": rows[unseen]}, global_batch=32)
    train(run, config)  # type: ignore[arg-type]

    [text] = run.samples
    printable = sum(character.isprintable() or character in "\n\t" for character in text) / len(text)
    print(f"last loss {np.mean(run.losses[-10:]):.3f}, step {np.median(run.seconds):.3f} s, sample {text!r}")
    assert np.mean(run.losses[-10:]) < 2.6
    assert run.evaluations[-1][1]["loss"] < 2.6
    assert printable >= 0.95
