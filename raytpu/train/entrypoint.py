"""The user's train function: found by name, checked against its config, called with what it asks for.

A train function takes ``context`` (a ``TrainContext``), ``config``, both, or nothing. A loop written for
``ray.train.v2.jax.JaxTrainer`` takes ``config`` or nothing, so it runs unchanged. If the annotation of
``config`` is a pydantic model, the workload's ``train.config`` is validated by it before anything starts.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from raytpu.errors import EntrypointError, Problem, WorkloadInvalid, interrupt_behind
from raytpu.spec.config_keys import WELL_KNOWN
from raytpu.spec.problems import problems_of

TrainFunction = Callable[..., Any]


def load_entrypoint(entrypoint: str) -> TrainFunction:
    """The function that ``"package.module:function"`` names.

    Raises:
        EntrypointError: the module cannot be imported or has no such function.
        KeyboardInterrupt: Ctrl-C while it was imported, also when a package has made another error of it.
    """
    module_name, _, function_name = entrypoint.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise EntrypointError(
                f"train.entrypoint {entrypoint!r}: there is no module {error.name!r}; "
                "it is looked up from the current directory and the installed packages"
            ) from error
        raise EntrypointError(
            f"train.entrypoint {entrypoint!r}: its module imports {error.name!r}, which is not installed"
        ) from error
    except (Exception, SystemExit) as error:  # a module of the user's: whatever it raises is theirs to read
        if (interrupt := interrupt_behind(error)) is not None:
            raise interrupt from None
        raise EntrypointError(
            f"train.entrypoint {entrypoint!r}: importing {module_name} raised {type(error).__name__}: {error}"
        ) from error
    function = getattr(module, function_name, None)
    if callable(function):
        return function
    if hasattr(module, function_name):
        kind = type(function).__name__
        article = "an" if kind[0] in "aeiouAEIOU" else "a"
        raise EntrypointError(
            f"train.entrypoint {entrypoint!r}: {function_name!r} of {module_name} is {article} {kind}, "
            "not a function"
        )
    names = [name for name, value in vars(module).items() if inspect.isfunction(value)]
    close = difflib.get_close_matches(function_name, names, n=1)
    advice = f"did you mean {close[0]!r}?" if close else f"it defines {', '.join(sorted(names)) or 'none'}"
    raise EntrypointError(
        f"train.entrypoint {entrypoint!r}: {module_name} has no function {function_name!r}; {advice}"
    )


def bind(function: TrainFunction, config: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Check ``config`` against ``function`` and return a call that takes the context alone.

    Raises:
        EntrypointError: ``function`` takes something else than ``context`` and ``config``.
        WorkloadInvalid: ``config`` does not fit the pydantic model that ``function`` asks for.
    """
    parameters = _parameters(function)
    model = _config_model(function, parameters)
    value: Any = dict(config)
    if model is not None:
        _refuse_strange_keys(function, model, config)
        try:
            value = model.model_validate(dict(config))
        except ValidationError as error:
            problems = problems_of(error, model, dict(config))
            raise WorkloadInvalid(
                _described(function),
                [Problem(f"train.config.{each.path}".rstrip("."), each.message) for each in problems],
            ) from None
    wants_context = takes_context(function)
    wants_config = "config" in parameters

    def call(context: Any) -> Any:
        arguments = {}
        if wants_context:
            arguments[parameters["context"].name] = context
        if wants_config:
            arguments[parameters["config"].name] = value
        return function(**arguments)

    return call


def takes_context(function: TrainFunction) -> bool:
    """Whether it can report its steps to raytpu; a loop written for Ray's trainer cannot.

    Raises:
        EntrypointError: see ``bind``.
    """
    return "context" in _parameters(function)


def _refuse_strange_keys(function: TrainFunction, model: type[BaseModel], config: Mapping[str, Any]) -> None:
    """Pydantic ignores unknown keys unless told otherwise; a misspelt one would train with a default."""
    if model.model_config.get("extra", "ignore") != "ignore":
        return
    known = [name for field, info in model.model_fields.items() for name in (field, info.alias) if name]
    problems = []
    for key in config:
        if key not in known and key not in WELL_KNOWN:
            close = difflib.get_close_matches(key, known, n=1)
            advice = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(known)}"
            problems.append(Problem(f"train.config.{key}", f"unknown key; {advice}"))
    if problems:
        raise WorkloadInvalid(_described(function), problems)


def _described(function: TrainFunction) -> str:
    return f"train.config of {function.__module__}:{function.__qualname__}"


def _parameters(function: TrainFunction) -> dict[str, inspect.Parameter]:
    """The parameters by role. A single parameter of another name is the config, as stock loops have it."""
    roles: dict[str, inspect.Parameter] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not inspect.Parameter.empty or parameter.kind in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        ):
            continue
        role = "context" if parameter.name == "context" else "config"
        if role in roles or parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise EntrypointError(
                f"train function {function.__qualname__}{inspect.signature(function)} must take "
                "'context', 'config', both, or nothing"
            )
        roles[role] = parameter
    return roles


def _config_model(
    function: TrainFunction, parameters: Mapping[str, inspect.Parameter]
) -> type[BaseModel] | None:
    if "config" not in parameters:
        return None
    annotation = parameters["config"].annotation
    if isinstance(annotation, str):
        annotation = getattr(function, "__globals__", {}).get(annotation)
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation
    return None
