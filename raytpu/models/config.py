"""What a decoder language model is made of, and the presets by name. Pure: no JAX."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from raytpu.errors import SpecError

Dtype = Literal["bf16", "fp32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A pre-norm decoder: GPT-2's choices are the defaults, Llama's are the other value of each field.

    Raises:
        SpecError: with every reason at once, when the fields cannot make a model.
    """

    layers: int
    width: int
    """Size of the residual stream; called ``embed`` in the sharding rules."""
    heads: int
    vocab_size: int
    """Token ids the tokenizer may produce. The table has ``padded_vocab_size`` rows."""
    context_length: int
    """Longest sequence in tokens; with learned positions the rows of the position table."""
    kv_heads: int | None = None
    """Heads of keys and values, shared by equal groups of query heads; ``None``: one for each head."""
    mlp_width: int | None = None
    """Inner size of the feed-forward part; ``None``: 4 × width, as in GPT-2."""
    positions: Literal["learned", "rotary"] = "learned"
    rotary_base: float = 10_000.0
    activation: Literal["gelu", "swiglu"] = "gelu"
    """``gelu`` is the tanh approximation, which GPT-2 was trained with."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_epsilon: float = 1e-5
    bias: bool = True
    """Biases in all projections and in layernorm."""
    tied_embeddings: bool = True
    """The token table is also the output projection."""
    vocab_multiple: int = 128
    """Rows of the token table are rounded up to this: 128 lanes of a TPU tile, and the reason for
    GPT-2's 50257 being 50304. Padded ids get a logit of -1e9, so they are never predicted."""
    dtype: Dtype = "fp32"
    """Of activations and matrix products. Parameters, optimizer, norms and the loss stay fp32."""
    remat: bool = False
    """Keep only the input of each layer for the backward pass and compute the rest again."""

    def __post_init__(self) -> None:
        reasons = [*_wrong_choices(self), *_wrong_numbers(self)]
        if not reasons and self.heads % (self.kv_heads or self.heads):
            reasons.append(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if not reasons and self.width % self.heads:
            reasons.append(f"width ({self.width}) must be a multiple of heads ({self.heads})")
        elif not reasons and self.positions == "rotary" and self.head_width % 2:
            reasons.append(f"rotary positions need an even head width, not {self.head_width}")
        if reasons:
            raise SpecError("model: " + "; ".join(reasons))

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def key_value_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def hidden_width(self) -> int:
        return self.mlp_width or 4 * self.width

    @property
    def padded_vocab_size(self) -> int:
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def parameter_count(self) -> int:
        """Trained numbers, without the padding rows of the token table (124,439,808 for GPT-2)."""
        projections = 2 * self.width * self.width + 2 * self.width * self.key_value_heads * self.head_width
        matrices = 3 if self.activation == "swiglu" else 2
        per_norm = self.width * (2 if self.norm == "layernorm" and self.bias else 1)
        biases = 0
        if self.bias:
            biases = 2 * self.width + 2 * self.key_value_heads * self.head_width  # attention
            biases += (matrices - 1) * self.hidden_width + self.width
        layer = projections + matrices * self.width * self.hidden_width + biases + 2 * per_norm
        tables = self.vocab_size * self.width * (1 if self.tied_embeddings else 2)
        positions = self.context_length * self.width if self.positions == "learned" else 0
        return self.layers * layer + tables + positions + per_norm


def _wrong_choices(config: ModelConfig) -> list[str]:
    reasons = []
    for name, hint in get_type_hints(ModelConfig).items():
        choices = get_args(hint)
        value = getattr(config, name)
        if choices and all(isinstance(choice, str) for choice in choices) and value not in choices:
            reasons.append(f"{name} must be one of {', '.join(choices)}, not {value!r}")
        if hint is bool and not isinstance(value, bool):
            reasons.append(f"{name} must be true or false, not {value!r}")
    return reasons


def _wrong_numbers(config: ModelConfig) -> list[str]:
    reasons = []
    for name, hint in get_type_hints(ModelConfig).items():
        value = getattr(config, name)
        optional = type(None) in get_args(hint)
        if hint is int or (optional and value is not None):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                reasons.append(f"{name} must be a whole number of at least 1, not {value!r}")
        elif hint is float and (not isinstance(value, int | float) or isinstance(value, bool) or value <= 0):
            reasons.append(f"{name} must be a number above 0, not {value!r}")
    return reasons


# Bytes 0 to 255 and the document separator: see tokenizers.BytesTokenizer.
_BYTES_VOCAB = 257

PRESETS: Mapping[str, ModelConfig] = {
    # The small ones read bytes, have no biases and rotate positions: fewer parameter arrays mean fewer
    # collectives a step, which is what a step of a small model costs on many devices.
    "gpt-nano": ModelConfig(
        layers=2, width=64, heads=2, vocab_size=_BYTES_VOCAB, context_length=1024, positions="rotary",
        norm="rmsnorm", bias=False,
    ),
    "gpt-micro": ModelConfig(
        layers=4, width=256, heads=8, vocab_size=_BYTES_VOCAB, context_length=1024, positions="rotary",
        norm="rmsnorm", bias=False,
    ),
    "gpt-mini": ModelConfig(
        layers=6, width=384, heads=6, vocab_size=_BYTES_VOCAB, context_length=1024, positions="rotary",
        norm="rmsnorm", bias=False,
    ),
    # Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", table 2, and the
    # released 124M weights: https://huggingface.co/openai-community/gpt2/blob/main/config.json
    "gpt2-124m": ModelConfig(
        layers=12, width=768, heads=12, vocab_size=50_257, context_length=1024, dtype="bf16",
    ),
}  # fmt: skip


def model_named(preset: str, overrides: Mapping[str, Any] | None = None) -> ModelConfig:
    """The preset of that name with some fields replaced.

    Raises:
        SpecError: for an unknown preset or field, naming the nearest and all valid ones, or when the
            fields do not fit together.
    """
    if preset not in PRESETS:
        raise SpecError(_unknown("model preset", preset, tuple(PRESETS)))
    names = tuple(field.name for field in fields(ModelConfig))
    changes = dict(overrides or {})
    wrong = [_unknown("model field", name, names) for name in changes if name not in names]
    if wrong:
        raise SpecError("; ".join(wrong))
    return replace(PRESETS[preset], **changes)


def _unknown(what: str, given: str, valid: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(str(given), valid, n=1, cutoff=0.4)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {what} {given!r}; {meant}valid: {', '.join(valid)}"
