"""What is trained: the user's function, its configuration and its mesh."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import Field, JsonValue, field_validator

from raytpu.spec.config_keys import MOST, WELL_KNOWN
from raytpu.spec.mesh import Mesh
from raytpu.spec.problems import in_words
from raytpu.spec.replicas import Replicas
from raytpu.spec.spec import Broken, Spec, broken, raise_broken


class Train(Spec):
    """A train function and what it is given."""

    entrypoint: str
    """The train function, as package.module:function. It is called on every host as train(context) or
    train(context, config)."""
    config: dict[str, JsonValue] = Field(default={})
    """Handed to the entrypoint. Four keys are also read by raytpu: steps, global_batch (rows a step over
    all devices), sequence_length (tokens a row) and seed; the rest is the entrypoint's own."""
    mesh: Mesh | None = None
    """Arrangement of the devices. By default fsdp over the devices of a slice and replica over slices."""
    across_slices: Literal["lockstep", "replicas"] = "lockstep"
    """How several slices train as one. lockstep: one program over all of them; losing a slice restarts them
    all. replicas: every slice holds the whole state and gradients are averaged between them; losing a slice
    costs the others one step at most. The entrypoint must make its step with context.step."""
    replicas: Replicas = Replicas()
    """Settings of across_slices: replicas."""

    @field_validator("entrypoint")
    @classmethod
    def _names_a_function(cls, entrypoint: str) -> str:
        if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", entrypoint):
            raise broken(
                f"expected package.module:function, got {entrypoint!r}; "
                "for example raytpu.recipes.pretrain:train"
            )
        return entrypoint

    @field_validator("config")
    @classmethod
    def _well_known_keys_are_numbers(cls, config: dict[str, JsonValue]) -> dict[str, JsonValue]:
        raise_broken("Train", config_rules(config))
        return config


def config_rules(config: Mapping[str, JsonValue]) -> Iterator[Broken]:
    """The well-known keys that are present are whole numbers; paths are below it."""
    for key, least in WELL_KNOWN.items():
        if key not in config:
            continue
        value = config[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            yield Broken((key,), f"expected a whole number, at least {least}, got {in_words(value)}")
        elif value > MOST:
            yield Broken((key,), f"expected at most {MOST} (2**63 - 1), got {in_words(value)}")
