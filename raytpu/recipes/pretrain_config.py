"""What ``recipes.pretrain`` can be told. Loads no JAX: the driver validates it before anything starts."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from raytpu.errors import SpecError
from raytpu.models import PRESETS, BytesTokenizer, ModelConfig, model_named

Fraction = Annotated[float, Field(ge=0, le=1)]

# GPT-2 124M (width 768) is usually trained at 6e-4; the best rate falls about as 1/width (muP,
# arXiv:2203.03466), so a preset needs no rate of its own.
_RATE_AT_768 = 6e-4


class PretrainConfig(BaseModel):
    """The ``train.config`` of ``entrypoint: raytpu.recipes.pretrain:train``."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    model: str = "gpt-nano"
    """Name of a preset: gpt-nano, gpt-micro, gpt-mini or gpt2-124m."""
    overrides: dict[str, Any] = {}
    """Fields of ``raytpu.models.ModelConfig`` to change in the preset, such as ``{layers: 6}``."""
    steps: int = Field(ge=1)
    """Optimizer steps in all, those before a restart included."""
    global_batch: int = Field(ge=1)
    """Sequences a step, over all devices."""
    sequence_length: int = Field(ge=2)
    """Tokens a sequence."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of the initial parameters and of the text sample (the data order has the same seed)."""

    learning_rate: float | None = Field(default=None, gt=0)
    """Highest learning rate. ``None``: 6e-4 × 768 / width, GPT-2's rate scaled to the model's width."""
    final_learning_rate: Fraction = 0.1
    """At the last step, as a fraction of the highest; reached along a half cosine."""
    warmup_steps: int | None = Field(default=None, ge=0)
    """Steps of linear rise from 0. ``None``: a tenth of the steps, at most 2000."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Of matrices and tables; biases and norm scales are not decayed."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    """AdamW's decay rates of the mean and of the square. 0.95: language models' usual value, steadier than
    0.999 when the loss still falls fast."""
    grad_clip: float | None = Field(default=1.0, gt=0)
    """Gradients longer than this (L2 over all parameters) are scaled down to it; ``None``: never."""
    dtype: Literal["bf16", "fp32"] | None = None
    """Of activations and matrix products. ``None``: the preset's (fp32 for the small ones, bf16 for
    gpt2-124m). Parameters and optimizer state are fp32 always."""
    remat: bool | None = None
    """Recompute each layer in the backward pass instead of keeping its activations: less memory, about a
    third more work. ``None``: the preset's."""
    accumulate: int = Field(default=1, ge=1)
    """Parts the global batch is cut into and run one after another before the optimizer step; the result
    is that of one part, the activations need 1/accumulate of the memory."""

    eval_every: int | None = Field(default=None, ge=1)
    """Steps between evaluations on the stream ``eval`` (``data.*.holdout``). ``None``: after the last step
    only. Without that stream nothing is evaluated."""
    eval_batches: int = Field(default=4, ge=1)
    """Global batches an evaluation; the same ones each time, so that its losses can be compared."""

    sample_tokens: int = Field(default=200, ge=0)
    """Tokens to write after the last step; 0 writes none. With learned positions the text ends at
    ``sequence_length``, beyond which no position was trained."""
    sample_prompt: str = Field(default="def ", min_length=1)
    """What the sample goes on from."""
    sample_temperature: float = Field(default=0.8, ge=0)
    """0 takes the likeliest token each time; 1 draws from the model's own distribution."""

    @field_validator("model")
    @classmethod
    def _is_a_preset(cls, name: str) -> str:
        try:
            model_named(name)
        except SpecError as error:
            raise ValueError(str(error)) from error
        return name

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        try:
            architecture = self.architecture
        except SpecError as error:
            raise ValueError(f"overrides: {error}") from error
        reasons = []
        if self.sequence_length > architecture.context_length:
            reasons.append(
                f"sequence_length {self.sequence_length} is longer than the context_length "
                f"{architecture.context_length} of {self.model}; shorten it or set overrides.context_length"
            )
        if architecture.vocab_size < BytesTokenizer.vocab_size:
            reasons.append(
                f"overrides.vocab_size {architecture.vocab_size} is smaller than the "
                f"{BytesTokenizer.vocab_size} ids of the byte tokenizer"
            )
        if self.global_batch % self.accumulate:
            reasons.append(
                f"global_batch {self.global_batch} is not divisible by accumulate {self.accumulate}"
            )
        if self.warmup_steps is not None and self.warmup_steps > self.steps:
            reasons.append(f"warmup_steps {self.warmup_steps} is more than steps {self.steps}")
        if self.sample_tokens and len(self.sample_prompt.encode()) >= architecture.context_length:
            reasons.append("sample_prompt fills the whole context_length; shorten it")
        if reasons:
            raise ValueError("; ".join(reasons))
        return self

    @property
    def architecture(self) -> ModelConfig:
        """The preset with ``overrides``, ``dtype`` and ``remat`` applied.

        Raises:
            SpecError: for unknown or impossible overrides.
        """
        changes = dict(self.overrides)
        for name in ("dtype", "remat"):
            if getattr(self, name) is not None:
                if name in changes:
                    raise SpecError(f"{name} is given twice; remove it from overrides")
                changes[name] = getattr(self, name)
        return model_named(self.model, changes)

    @property
    def peak_learning_rate(self) -> float:
        if self.learning_rate is not None:
            return self.learning_rate
        return _RATE_AT_768 * PRESETS["gpt2-124m"].width / self.architecture.width

    @property
    def warmup(self) -> int:
        """Steps of linear rise."""
        return min(2000, self.steps // 10) if self.warmup_steps is None else self.warmup_steps
