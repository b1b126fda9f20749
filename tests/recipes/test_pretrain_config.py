"""What ``train.config`` of the pretraining recipe accepts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from raytpu.recipes.pretrain_config import PretrainConfig
from tests.recipes.builders import pretraining


def test_the_recipe_is_imported_without_jax() -> None:
    """The driver validates the config before it starts anything; it must not claim devices for that."""
    code = "import sys, raytpu.recipes.pretrain; print({'jax', 'flax', 'ray', 'optax'} & set(sys.modules))"

    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_every_field_is_described() -> None:
    """The published schema is what an editor shows beside each key."""
    for name, field in PretrainConfig.model_fields.items():
        assert field.description, name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "gpt2-124"}, "did you mean 'gpt2-124m'"),
        ({"overrides": {"layer": 2}}, "did you mean 'layers'"),
        ({"overrides": {"heads": 5}}, r"width \(64\) must be a multiple of heads \(5\)"),
        ({"overrides": {"dtype": "bf16"}, "dtype": "fp32"}, "dtype is given twice"),
        (
            {"overrides": {"vocab_size": 100}},
            "vocab_size 100 is smaller than the 257 ids of the byte tokenizer",
        ),
        ({"sequence_length": 2048}, "longer than the context_length 1024 of gpt-nano"),
        ({"accumulate": 3}, "global_batch 16 is not divisible by accumulate 3"),
        ({"warmup_steps": 21}, "warmup_steps 21 is more than steps 20"),
        ({"steps": 0}, "greater than or equal to 1"),
        ({"betas": (0.9, 1.0)}, "less than 1"),
        ({"learning_rate": float("nan")}, "finite"),
        ({"learning_rat": 1e-3}, "Extra inputs are not permitted"),
        ({"dtype": "fp16"}, "'bf16' or 'fp32'"),
    ],
)
def test_a_wrong_config_is_refused_before_anything_starts(changes: dict[str, Any], message: str) -> None:
    """The same mistake found on the hosts costs a start-up of all of them."""
    with pytest.raises(ValidationError, match=message):
        pretraining(**changes)


def test_gpt2_124m_is_a_change_of_preset_only() -> None:
    """The demo's file with one word changed must be a valid pretraining of GPT-2."""
    demo = {"model": "gpt-nano", "steps": 200, "global_batch": 32, "sequence_length": 128, "seed": 0}

    config = PretrainConfig(**{**demo, "model": "gpt2-124m"})  # type: ignore[arg-type]

    assert config.architecture.parameter_count == 124_439_808
    assert config.architecture.dtype == "bf16"
    assert config.peak_learning_rate == pytest.approx(6e-4)


def test_dtype_and_remat_override_the_preset() -> None:
    """A run asked for in bf16 must not silently be fp32."""
    architecture = pretraining(dtype="bf16", remat=True).architecture

    assert (architecture.dtype, architecture.remat) == ("bf16", True)
