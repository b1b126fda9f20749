"""Whatever is done to a manifest, lint answers, and soon."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
import yaml

from raytpu.lint import Severity, lint_text
from tests.lint.manifests import CASES, READS_CRDS, cluster, known_crds, verdicts

pytestmark = READS_CRDS

ODD = (
    None,
    True,
    -1,
    0,
    2**40,
    1.5,
    float("inf"),
    "",
    "x" * 300,
    "4x4",
    "${X}",
    "é\u0000",
    [],
    [None],
    {},
    {"a": 1},
    "1e999",
    ".",
)
SLOW_S = 1.0
"""A document takes 3 ms; of processor time, so that a busy machine changes little."""


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container and key below a value."""
    keys = (
        list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    )
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


def mutated(text: str, chance: random.Random) -> str:
    """The manifest after one to five changes to its values, or to its characters."""
    if chance.random() < 0.3:
        for _ in range(chance.randint(1, 5)):
            at = chance.randrange(len(text))
            text = (
                text[:at]
                + chance.choice(["", "\n", ":", "  ", "- ", "{", '"', "&a ", "*a", "\t"])
                + text[at + chance.randint(0, 3) :]
            )
        return text
    document = yaml.load(text, Loader=yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader)
    for _ in range(chance.randint(1, 5)):
        found = places(document)
        if not found:
            break
        holder, key = chance.choice(found)
        match chance.randrange(4):
            case 0:
                del holder[key]
            case 1:
                holder[key] = chance.choice(ODD)
            case 2:
                other, name = chance.choice(found)
                holder[key] = (
                    json.loads(json.dumps(other[name]))
                    if name in other or (isinstance(other, list) and name < len(other))
                    else None
                )
            case _:
                if isinstance(holder, dict):
                    holder[str(key) + chance.choice(["s", "X", " "])] = holder.pop(key)
                else:
                    holder.append(holder[key])
    return json.dumps(document)


def lint_mutated(count: int, seed: int) -> None:
    chance = random.Random(seed)
    texts = [(CASES / each["file"]).read_text(encoding="utf-8") for each in verdicts()]
    crds = known_crds()
    for number in range(count):
        text = mutated(chance.choice(texts), chance)
        began = time.process_time()
        lint_text(text, crds=crds if number % 2 else None)
        took_s = time.process_time() - began
        assert took_s < SLOW_S, f"seed {seed}, manifest {number}: {took_s:.2f} s\n{text}"


def test_no_mutated_manifest_takes_lint_down() -> None:
    """A linter with a traceback fails everybody's commit."""
    lint_mutated(200, seed=7)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_ten_thousand_mutated_manifests_do_not_take_lint_down() -> None:
    """As above, with more chance."""
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    lint_mutated(10_000, seed=seed)


def test_a_topology_with_a_thousand_axes_is_only_wrong() -> None:
    """Products of that size overflow a float."""
    found = lint_text(cluster("tpu-v6e-slice", "x".join(["999999999"] * 1000), 4, 4))

    assert Severity.ERROR in {each.severity for each in found}


def test_a_hundred_documents_are_linted_within_two_seconds() -> None:
    """A hook that is slow is taken out."""
    crds = known_crds()
    texts = [(CASES / each["file"]).read_text(encoding="utf-8") for each in verdicts()[:100]]
    lint_text(texts[0], crds=crds)

    began = time.process_time()
    for text in texts:
        lint_text(text, crds=crds)

    assert len(texts) == 100
    assert time.process_time() - began < 2
