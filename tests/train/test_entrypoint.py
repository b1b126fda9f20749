"""Train functions are found, checked and called with what they ask for."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from raytpu.errors import EntrypointError, WorkloadInvalid
from raytpu.train.entrypoint import bind, load_entrypoint


class Config(BaseModel, extra="forbid"):
    steps: int
    learning_rate: float = 0.1


def typed(context: object, config: Config) -> tuple[object, Config]:
    return context, config


def stock(config: dict[str, Any]) -> dict[str, Any]:
    return config


def bare() -> str:
    return "ran"


def context_alone(context: object) -> object:
    return context


def too_many(context: object, config: object, more: object) -> None: ...


def test_a_function_gets_what_its_parameters_ask_for():
    """A loop written for Ray's JaxTrainer takes config or nothing, and must run unchanged."""
    assert bind(typed, {"steps": 3})("ctx") == ("ctx", Config(steps=3))
    assert bind(stock, {"steps": 3})("ctx") == {"steps": 3}
    assert bind(bare, {})("ctx") == "ran"
    assert bind(context_alone, {})("ctx") == "ctx"


def test_a_function_that_asks_for_more_is_refused_before_anything_starts():
    """Found on the hosts, it would cost a whole start."""
    with pytest.raises(EntrypointError, match="must take 'context', 'config', both, or nothing"):
        bind(too_many, {})


def test_every_problem_of_a_typed_config_is_told_at_once():
    """One error a run would cost a run an error."""
    with pytest.raises(WorkloadInvalid) as caught:
        bind(typed, {"steps": "many", "learning_rat": 1})
    text = str(caught.value)
    assert "train.config.steps" in text
    assert "train.config.learning_rat: unknown key; did you mean learning_rate?" in text


@pytest.mark.parametrize(
    ("entrypoint", "words"),
    [
        ("no_such_module_here:train", "there is no module 'no_such_module_here'"),
        ("raytpu.recipes.pretrain:trian", "did you mean 'train'?"),
    ],
)
def test_a_missing_entrypoint_says_what_is_missing_and_what_is_near(entrypoint: str, words: str):
    """A traceback from a host would be the alternative."""
    with pytest.raises(EntrypointError) as caught:
        load_entrypoint(entrypoint)
    assert words in str(caught.value)


def test_a_name_that_is_no_function_is_called_what_it_is(tmp_path, monkeypatch):
    """To be told that there is no such name is to look for a typing error in vain."""
    (tmp_path / "loop_of_an_int.py").write_text("steps = 3\n\ndef stops(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(EntrypointError, match="'steps' of loop_of_an_int is an int, not a function"):
        load_entrypoint("loop_of_an_int:steps")


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError"])
def test_ctrl_c_during_an_import_is_not_blamed_on_the_module(tmp_path, monkeypatch, error: str):
    """numpy makes an ImportError of it, and the run would end as a wrong request, with a traceback."""
    (tmp_path / f"interrupted_by_{error}.py").write_text(
        "try:\n"
        "    try:\n"
        "        raise KeyboardInterrupt\n"
        "    except BaseException as interrupt:\n"
        f"        raise {error}('the C-extensions failed') from interrupt\n"
        "except Exception as failed:\n"
        f"    raise {error}('importing failed')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(KeyboardInterrupt):
        load_entrypoint(f"interrupted_by_{error}:train")
