"""The model that every part of a workload is built on: frozen, and valid or not built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from raytpu.errors import WorkloadInvalid
from raytpu.spec.problems import BROKEN_RULE, problems_of


class Broken(NamedTuple):
    """A rule that does not hold, at a path below the object that has the rule."""

    at: tuple[str, ...]
    message: str


class Spec(BaseModel):
    """Frozen; strict, so that ``"20"`` and ``true`` are not numbers; unknown keys are refused.

    Raises:
        WorkloadInvalid: when built with wrong values, whether by YAML or in Python; it holds every
            problem, so that one way of catching a bad workload is enough.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        # The docstring under a field is its description in the JSON Schema: written once.
        use_attribute_docstrings=True,
    )

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise WorkloadInvalid(type(self).__name__, problems_of(error, type(self), data)) from error

    # Only a call in Python goes through __init__. The mark, which pydantic puts on its own __init__, keeps
    # nested validation from calling it: a nested object that raised WorkloadInvalid would hide the problems
    # of its siblings. tests/spec/test_specs.py fails if pydantic stops honouring it.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def broken_rules(self) -> Iterator[Broken]:
        """The rules about several fields together that do not hold."""
        yield from ()

    @model_validator(mode="after")
    def _hold_rules(self) -> Self:
        raise_broken(type(self).__name__, self.broken_rules())
        return self


def broken(message: str) -> PydanticCustomError:
    """What a validator of one field raises. Such a rule is checked even when other fields are wrong."""
    return PydanticCustomError(BROKEN_RULE, "{message}", {"message": message})


def raise_broken(title: str, rules: Iterable[Broken]) -> None:
    """Raise one ``ValidationError`` with all broken rules, which pydantic merges into the outer one."""
    details = [InitErrorDetails(type=broken(rule.message), loc=rule.at, input=None) for rule in rules]
    if details:
        raise ValidationError.from_exception_data(title, details)
