"""A valid document; a test changes one thing."""

from __future__ import annotations

from raytpu.errors import Problem, WorkloadInvalid
from raytpu.spec import parse_workload

VALID = """\
name: stdlib-gpt
slices: {generation: v6e, topology: 2x4, chips_per_host: 4, count: 2}
train:
  entrypoint: raytpu.recipes.pretrain:train
  config: {model: gpt-nano, steps: 200, global_batch: 32, sequence_length: 128, seed: 0}
  mesh:
    dcn: {replica: 2}
    ici: {fsdp: 8}
data:
  train:
    source: python-stdlib
    tokenizer: bytes
checkpoint: {path: ~/raytpu-runs, every_steps: 50, keep: 3}
"""


def changed(old: str, new: str) -> str:
    assert VALID.count(old) == 1, old
    return VALID.replace(old, new)


def problems(text: str, *overrides: str) -> list[Problem]:
    """The problems of a document; none when it is valid."""
    try:
        parse_workload(text, "bad.yaml", overrides)
    except WorkloadInvalid as error:
        return list(error.problems)
    return []


def only_problem(text: str, *overrides: str) -> Problem:
    [problem] = problems(text, *overrides)
    return problem
