"""Decoder language models in Flax NNX, and tokenizers.

Only what needs no JAX is imported here, so that a driver can check a model's name; the modules that
compute are imported by name: ``decoder``, ``generation``, ``layout``.
"""

from __future__ import annotations

from raytpu.models.config import PRESETS as PRESETS
from raytpu.models.config import ModelConfig as ModelConfig
from raytpu.models.config import model_named as model_named
from raytpu.models.tokenizers import BytesTokenizer as BytesTokenizer

__all__ = ["PRESETS", "BytesTokenizer", "ModelConfig", "model_named"]
