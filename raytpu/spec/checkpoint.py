"""Where and how often state is saved."""

from __future__ import annotations

from pydantic import Field, field_validator

from raytpu.spec.spec import Spec, broken


class Checkpoint(Spec):
    """Checkpoints and the record of a run lie under ``path/<name of the workload>``."""

    path: str
    """Directory that all hosts can write: a local or network path for simulated slices, a bucket (gs://…)
    for real ones. ~ is the home directory."""
    every_steps: int = Field(ge=1)
    """Steps between checkpoints: the most that a lost slice can cost."""
    keep: int = Field(default=3, ge=1)
    """Newest checkpoints to keep. Three, so that one that turns out to be bad is not the last."""

    @field_validator("path")
    @classmethod
    def _is_not_empty(cls, path: str) -> str:
        if not path.strip():
            raise broken("expected a directory or a URL, got an empty text")
        return path
