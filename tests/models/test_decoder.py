"""The decoder against plain definitions: causality, size, cache, options."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from raytpu.models import PRESETS, ModelConfig
from raytpu.models.attention import KeyValueCache, attend, rotary_angles, rotate
from raytpu.models.decoder import abstract_decoder, decoder_of, initial_parameters, logical_axes
from raytpu.models.layout import Layout
from tests.models.builders import layout, one_device, tiny

LLAMA: dict[str, Any] = {
    "positions": "rotary", "activation": "swiglu", "norm": "rmsnorm", "bias": False, "kv_heads": 2,
    "tied_embeddings": False,
}  # fmt: skip


def fresh(config: ModelConfig, placed: Layout, seed: int = 0) -> dict[str, Any]:
    return jax.jit(lambda: initial_parameters(config, placed, seed))()


def logits_of(config: ModelConfig, parameters: dict[str, Any], tokens: np.ndarray) -> np.ndarray:
    run = jax.jit(lambda parameters, tokens: decoder_of(config, one_device(), parameters)(tokens))
    return np.asarray(run(parameters, tokens))


def some_tokens(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 257, shape, dtype=np.int32)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_parameter_count_is_that_of_the_arrays(preset: str) -> None:
    """The count is printed and used to reckon flops; it must be the model's own."""
    config = PRESETS[preset]
    sizes = [
        leaf.size
        for leaf in jax.tree.leaves(jax.eval_shape(lambda: initial_parameters(config, one_device(), 0)))
    ]

    padding = (config.padded_vocab_size - config.vocab_size) * config.width
    assert sum(sizes) == config.parameter_count + padding


def test_the_parameter_count_knows_every_option() -> None:
    """A Llama-like model has other arrays: shared key/value heads, a gate, its own output table."""
    config = tiny(**LLAMA, mlp_width=48, vocab_multiple=1)
    shapes = jax.eval_shape(lambda: initial_parameters(config, one_device(), 0))

    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == config.parameter_count


@pytest.mark.parametrize("changes", [{}, LLAMA], ids=["gpt", "llama"])
def test_no_position_sees_a_later_token(changes: dict[str, Any]) -> None:
    """A leak of the target makes the loss fall to nothing and the model worth nothing."""
    config = tiny(**changes)
    parameters = fresh(config, one_device())
    tokens = some_tokens(2, 16)
    changed = tokens.copy()
    changed[:, 9] = (changed[:, 9] + 1) % 257

    before, after = logits_of(config, parameters, tokens), logits_of(config, parameters, changed)

    np.testing.assert_array_equal(before[:, :9], after[:, :9])
    assert np.abs(before[:, 9:] - after[:, 9:]).max() > 1e-3


@pytest.mark.parametrize("changes", [{}, LLAMA], ids=["gpt", "llama"])
def test_token_by_token_with_a_cache_gives_the_logits_of_the_whole_text(changes: dict[str, Any]) -> None:
    """Samples would come from another model than the one that was trained."""
    config = tiny(**changes)
    placed = one_device()
    parameters = fresh(config, placed)
    tokens = some_tokens(1, 12)

    @jax.jit
    def step(parameters: Any, token: jax.Array, position: jax.Array, cache: KeyValueCache) -> Any:
        return decoder_of(config, placed, parameters).extend(token, position, cache, 12)

    cache = KeyValueCache.empty(config, 1, 12)
    one_by_one = []
    for position in range(12):
        logits, cache = step(parameters, tokens[:, position], jnp.int32(position), cache)
        one_by_one.append(np.asarray(logits))

    whole = logits_of(config, parameters, tokens)
    np.testing.assert_allclose(np.stack(one_by_one, axis=1), whole, rtol=1e-4, atol=1e-5)


def test_padded_ids_are_never_predicted() -> None:
    """Sampling one would emit an id that no tokenizer knows."""
    logits = logits_of(tiny(), fresh(tiny(), one_device()), some_tokens(1, 4))

    assert logits.shape == (1, 4, 384)
    assert (logits[..., 257:] == -1e9).all()


def test_a_layer_computed_again_gives_the_same_gradient() -> None:
    """``remat`` trades time for memory and nothing else."""
    tokens = some_tokens(2, 16)

    def gradient(config: ModelConfig) -> Any:
        def mean_square(parameters: Any) -> jax.Array:
            return jnp.mean(decoder_of(config, one_device(), parameters)(tokens)[..., :257] ** 2)

        return jax.jit(jax.grad(mean_square))(fresh(config, one_device()))

    plain, again = gradient(tiny()), gradient(tiny(remat=True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7), plain, again)


def test_bf16_computes_in_bf16_and_returns_fp32_logits() -> None:
    """A loss in bf16 has three digits, too few to see a model learn."""
    config = tiny(dtype="bf16")
    parameters = fresh(config, one_device())

    low, high = (logits_of(c, parameters, some_tokens(1, 8))[..., :257] for c in (config, tiny()))

    assert {leaf.dtype for leaf in jax.tree.leaves(parameters)} == {jnp.dtype(jnp.float32)}
    assert low.dtype == np.float32
    assert 0 < np.abs(low - high).max() < 0.05


def test_initial_parameters_do_not_depend_on_the_mesh() -> None:
    """A run moved to other slices before its first checkpoint must start from the same point."""
    config = tiny()
    one, many = fresh(config, one_device(), seed=3), fresh(config, layout(fsdp=4, tensor=2), seed=3)

    jax.tree.map(np.testing.assert_array_equal, one, many)


def test_initial_parameters_have_the_deviations_of_gpt2() -> None:
    """Residual branches are scaled by depth, or deep models start with a growing residual stream."""
    config = tiny(layers=8, width=192)
    parameters = fresh(config, one_device())

    feed_forward = parameters["blocks"]["feed_forward"]
    # GPT-2's 0.02 at width 768 is 0.04 at width 192; 8 layers make the residual branches 1/4 of it.
    assert np.std(parameters["tokens"]) == pytest.approx(0.04, rel=0.03)
    assert np.std(feed_forward["project_in"]) == pytest.approx(0.04, rel=0.03)
    assert np.std(feed_forward["project_out"]) == pytest.approx(0.01, rel=0.03)
    assert not feed_forward["bias_in"].any()
    assert (parameters["norm"]["scale"] == 1).all()
    assert not np.array_equal(feed_forward["project_in"][0], feed_forward["project_in"][1])


def test_other_seeds_give_other_parameters() -> None:
    """Runs that should differ would not."""
    one, other = (fresh(tiny(), one_device(), seed) for seed in (0, 1))

    assert not np.array_equal(one["tokens"], other["tokens"])


def test_every_matrix_has_one_embed_axis_and_few_arrays_make_a_model() -> None:
    """Each array is a gather a layer: the number of arrays is the number of collectives."""
    axes = logical_axes(PRESETS["gpt-nano"], one_device())

    assert len(axes) == 8
    assert all(names.count("embed") == 1 for names in axes.values() if names[-1] != "norm")
    blocks = abstract_decoder(PRESETS["gpt-nano"], one_device()).blocks
    assert blocks.attention.project_in.shape[0] == PRESETS["gpt-nano"].layers


def test_attention_is_the_textbook_formula() -> None:
    """Grouped heads are easy to pair wrongly: every query head must use the keys of its own group."""
    rng = np.random.default_rng(0)
    queries = rng.normal(size=(1, 2, 3, 5, 4)).astype(np.float32)
    keys, values = rng.normal(size=(2, 1, 2, 5, 4)).astype(np.float32)
    seen = np.tril(np.ones((5, 5), bool))

    got = attend(*map(jnp.asarray, (queries, keys, values, seen)))

    for head in range(2):
        for query in range(3):
            scores = queries[0, head, query] @ keys[0, head].T / 2
            weights = np.exp(np.where(seen, scores, -np.inf))
            expected = weights / weights.sum(-1, keepdims=True) @ values[0, head]
            np.testing.assert_allclose(got[0, head, query], expected, rtol=1e-5, atol=1e-6)


def test_rotary_scores_depend_on_distance_only() -> None:
    """Otherwise text beyond the trained length reads as noise."""
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 1, 8)).astype(np.float32)

    def score(query_at: int, key_at: int) -> float:
        turned = [
            rotate(jnp.asarray(vector), rotary_angles(jnp.array([at]), 8, 10_000.0))
            for vector, at in ((query, query_at), (key, key_at))
        ]
        return float(jnp.sum(turned[0] * turned[1]))

    assert score(7, 3) == pytest.approx(score(104, 100), rel=1e-4)
    assert score(7, 3) != pytest.approx(score(8, 3), rel=1e-2)
