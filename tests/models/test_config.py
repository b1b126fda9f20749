"""Presets and their fields: what is accepted, what is refused and how."""

from __future__ import annotations

from typing import Any

import pytest

from raytpu.errors import SpecError
from raytpu.models import PRESETS, BytesTokenizer, ModelConfig, model_named


def test_gpt2_124m_is_gpt2() -> None:
    """Weights of the released model would not fit, and published losses would not compare."""
    config = model_named("gpt2-124m")

    assert (config.layers, config.width, config.heads, config.hidden_width) == (12, 768, 12, 3072)
    assert (config.vocab_size, config.padded_vocab_size, config.context_length) == (50_257, 50_304, 1024)
    assert (config.positions, config.activation, config.norm) == ("learned", "gelu", "layernorm")
    assert config.bias
    assert config.tied_embeddings
    assert config.parameter_count == 124_439_808


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_can_read_bytes(preset: str) -> None:
    """Ids beyond the token table read as NaN, and the first loss would be NaN without a reason."""
    assert model_named(preset).vocab_size >= BytesTokenizer.vocab_size


@pytest.mark.parametrize(
    ("preset", "overrides", "message"),
    [
        (
            "gpt-nan",
            {},
            r"unknown model preset 'gpt-nan'; did you mean 'gpt-nano'\? valid: gpt-nano, gpt-micro",
        ),
        ("gpt2", {}, "did you mean 'gpt2-124m'"),
        ("gpt-nano", {"layer": 3}, "unknown model field 'layer'; did you mean 'layers'"),
        ("gpt-nano", {"layers": 0}, "layers must be a whole number of at least 1, not 0"),
        ("gpt-nano", {"layers": "3"}, "layers must be a whole number of at least 1, not '3'"),
        ("gpt-nano", {"kv_heads": True}, "kv_heads must be a whole number"),
        ("gpt-nano", {"norm_epsilon": 0}, "norm_epsilon must be a number above 0"),
        ("gpt-nano", {"bias": "no"}, "bias must be true or false, not 'no'"),
        ("gpt-nano", {"activation": "relu"}, "activation must be one of gelu, swiglu, not 'relu'"),
        ("gpt-nano", {"heads": 7}, r"width \(64\) must be a multiple of heads \(7\)"),
        ("gpt-nano", {"heads": 4, "kv_heads": 3}, r"heads \(4\) must be a multiple of kv_heads \(3\)"),
        ("gpt-nano", {"width": 66, "heads": 2}, "rotary positions need an even head width, not 33"),
    ],
)
def test_a_wrong_model_is_refused_by_name(preset: str, overrides: dict[str, Any], message: str) -> None:
    """A misspelt override that is ignored trains another model than the one asked for."""
    with pytest.raises(SpecError, match=message):
        model_named(preset, overrides)


def test_all_wrong_fields_are_named_at_once() -> None:
    """Fixing one problem a run costs a start-up for each."""
    with pytest.raises(SpecError) as caught:
        ModelConfig(layers=0, width=-1, heads=4, vocab_size=257, context_length=8, norm="batchnorm")  # type: ignore[arg-type]

    for field in ("layers", "width", "norm"):
        assert field in str(caught.value)
