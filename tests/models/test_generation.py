"""Writing text with sharded parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from raytpu.models import ModelConfig
from raytpu.models.decoder import decoder_of, initial_parameters
from raytpu.models.generation import make_generate
from raytpu.models.layout import Layout
from tests.models.builders import layout, one_device, tiny

PROMPT = np.array([72, 101, 108, 108, 111], np.int32)


def written(
    config: ModelConfig, placed: Layout, *, temperature: float, slots: int = 16, **options: Any
) -> np.ndarray:
    settings = {"window": slots, "allowed_ids": 257, **options}
    parameters = jax.jit(lambda: initial_parameters(config, placed, 0))()
    buffer = np.zeros(slots, np.int32)
    buffer[: len(PROMPT)] = PROMPT
    generate = make_generate(config, placed, **settings)
    return np.asarray(
        jax.jit(lambda p: generate(p, buffer, len(PROMPT), temperature, jax.random.key(1)))(parameters)
    )


def test_temperature_0_takes_the_likeliest_token_each_time() -> None:
    """The loop with its cache must be the model, step for step."""
    config = tiny()
    parameters = jax.jit(lambda: initial_parameters(config, one_device(), 0))()
    logits = jax.jit(lambda p, t: decoder_of(config, one_device(), p)(t))
    expected = np.zeros(16, np.int32)
    expected[: len(PROMPT)] = PROMPT
    for at in range(len(PROMPT), 16):
        expected[at] = int(jnp.argmax(logits(parameters, expected[None])[0, at - 1]))

    np.testing.assert_array_equal(written(config, one_device(), temperature=0.0), expected)


def test_sharded_parameters_write_the_same_text() -> None:
    """Processes that wrote different texts would part ways in the next collective."""
    alone = written(tiny(), one_device(), temperature=0.8)

    np.testing.assert_array_equal(alone, written(tiny(), layout(replica=2, fsdp=4), temperature=0.8))
    np.testing.assert_array_equal(alone, written(tiny(), layout(fsdp=2, tensor=4), temperature=0.8))


def test_only_allowed_ids_are_written() -> None:
    """GPT-2's table has 50,304 rows and a byte tokenizer 257 ids: the others cannot be decoded."""
    config = tiny(vocab_size=1000)

    text = written(config, one_device(), temperature=1.0, slots=32, allowed_ids=20)

    assert (text[len(PROMPT) :] < 20).all()
    np.testing.assert_array_equal(text[: len(PROMPT)], PROMPT)


def test_rotary_models_write_beyond_the_length_they_were_trained_with() -> None:
    """What lies outside the window must not be seen: no such distance was trained."""
    config = tiny(positions="rotary", layers=1)

    short = written(config, one_device(), temperature=0.0, slots=48, window=1)

    # With a window of one token the text is a function of the last token, so it repeats once a token does.
    follows: dict[int, int] = {}
    for token, following in zip(short[len(PROMPT) - 1 :], short[len(PROMPT) :], strict=False):
        assert follows.setdefault(int(token), int(following)) == following
