"""What is wrong with a document is said at its path and line, all at once."""

from __future__ import annotations

import pickle

import pytest

from raytpu.errors import Problem, SpecError, WorkloadInvalid
from raytpu.spec import parse_override, parse_workload, workload_yaml
from tests.spec.documents import VALID, changed, only_problem, problems


def test_the_valid_document_is_read() -> None:
    """Every other test of this file changes one thing of it."""
    workload = parse_workload(VALID)

    assert workload.name == "stdlib-gpt"
    assert workload.slices.shape.hosts == 2
    assert workload.train.config["steps"] == 200
    assert workload.train.mesh is not None
    assert workload.train.mesh.axes == {"replica": 2, "fsdp": 8}
    assert workload.data["train"].source == "python-stdlib"
    assert workload.checkpoint.keep == 3


@pytest.mark.parametrize(
    ("old", "new", "path", "line", "says"),
    [
        # keys
        ("every_steps", "every_step", "checkpoint.every_step", 13, "unknown key; did you mean every_steps?"),
        ("  mesh:\n", "  steps: 3\n  mesh:\n", "train.steps", 6, "did you mean train.config.steps?"),
        ("name: std", "color: red\nname: std", "color", 1, "expected one of version, name, slices"),
        (
            "  entrypoint: raytpu.recipes.pretrain:train\n",
            "",
            "train.entrypoint",
            3,
            "required key is missing",
        ),
        (", count: 2}", ", count: 2, count: 3}", "slices.count", 2, "given twice, first on line 2"),
        ("name: std", "name: a\nname: std", "name", 2, "given twice, first on line 1"),
        # types
        ("name: stdlib-gpt", "name: 123", "name", 1, "expected text, got the number 123; put it in quotes"),
        ("count: 2}", 'count: "2"}', "slices.count", 2, "whole number, got '2'; leave out the quotes"),
        ("count: 2}", "count: true}", "slices.count", 2, "expected a whole number, got true"),
        ("count: 2}", "count: 0}", "slices.count", 2, "expected at least 1, got the number 0"),
        ("count: 2}", "count: 100000000}", "slices.count", 2, "expected at most 10000, got the number"),
        ("steps: 200", f"steps: {2**63}", "train.config.steps", 5, "expected at most 9223372036854775807"),
        ("ici: {fsdp: 8}", "ici: [8]", "train.mesh.ici", 8, "expected a mapping (key: value), got a list"),
        ("ici: {fsdp: 8}", "ici: {}", "train.mesh.ici", 8, "expected at least one axis"),
        (
            "source: python-stdlib",
            "source: html",
            "data.train.source",
            11,
            "'jsonl' or 'parquet', got 'html'",
        ),
        ("keep: 3", "keep: 2.5", "checkpoint.keep", 13, "expected a whole number, got the number 2.5"),
        (
            "seed: 0",
            "seed: -1",
            "train.config.seed",
            5,
            "expected a whole number, at least 0, got the number -1",
        ),
        (
            "steps: 200",
            "steps: many",
            "train.config.steps",
            5,
            "expected a whole number, at least 1, got 'many'",
        ),
        ("seed: 0", "seed: 0, lr: .nan", "train.config.lr", 5, "finite"),
        ("name: std", "version: 2\nname: std", "version", 1, "expected 1, got the number 2"),
        # names
        ("name: stdlib-gpt", "name: Stdlib_GPT", "name", 1, "expected lower-case letters, digits and -"),
        ("name: stdlib-gpt", f"name: {'a' * 41}", "name", 1, "at most 40 long"),
        ("pretrain:train", "pretrain.train", "train.entrypoint", 4, "expected package.module:function"),
        ("path: ~/raytpu-runs", 'path: ""', "checkpoint.path", 13, "expected a directory or a URL"),
        # hardware
        ("generation: v6e", "generation: v6", "slices.generation", 2, "did you mean v6e?"),
        ("topology: 2x4", "topology: 2x2x2", "slices.topology", 2, "it exists on v4, v5p, v7x"),
        (
            ", chips_per_host: 4",
            "",
            "slices.chips_per_host",
            2,
            "one host of 8 chips or two hosts of 4 chips",
        ),
        ("chips_per_host: 4", "chips_per_host: 2", "slices.chips_per_host", 2, "does not come with 2 chips"),
        # meshes
        (
            "fsdp: 8",
            "fsdp: 4",
            "train.mesh.ici",
            8,
            "ici axes multiply to 4, but a v6e 2x4 slice has 8 devices; fsdp 4 was given, with fsdp 8 it",
        ),
        ("fsdp: 8", "fsdp: 8, tensor: 2", "train.mesh.ici", 8, "axes between slices go to dcn"),
        ("fsdp: 8", "fsdp: 2, tensor: 2", "train.mesh.ici", 8, "with tensor 4 it fits"),
        ("replica: 2", "replica: 4", "train.mesh.dcn", 7, "dcn axes multiply to 4, but slices.count is 2"),
        ("count: 2}", "count: 1}", "train.mesh.dcn", 7, "replica 2 was given, leave dcn out"),
        (
            "{fsdp: 8}",
            "{fsdp: 8}\n    batch_axes: [data]",
            "train.mesh.batch_axes",
            9,
            "no axis of this mesh",
        ),
        ("fsdp: 8", "my-axis: 8", "train.mesh.ici.my-axis", 8, "letters, digits and _"),
        # batches
        (
            "global_batch: 32",
            "global_batch: 33",
            "train.config.global_batch",
            5,
            "33 rows do not divide over 16 shards (replica 2 × fsdp 8); 32 or 48 would",
        ),
        ("global_batch: 32, ", "", "train.config", 5, "global_batch must be set"),
        # data
        ("tokenizer: bytes", "path: a.txt", "data.train.path", 12, "python-stdlib takes no path"),
        ("source: python-stdlib", "source: text", "data.train.path", 10, "source text needs a path"),
        (
            "source: python-stdlib",
            "source: text\n    path: 3",
            "data.train.path",
            12,
            "expected text or a list",
        ),
        ("tokenizer: bytes", "text_column: body", "data.train.text_column", 12, "has no columns"),
        (
            "tokenizer: bytes",
            "holdout: 1",
            "data.train.holdout",
            12,
            "expected less than 1, got the number 1",
        ),
        (
            "tokenizer: bytes\n",
            "holdout: 0.1\n  eval: {source: python-stdlib}\n",
            "data.eval",
            13,
            "two streams called eval",
        ),
        (
            "checkpoint:",
            "deadlines: {hold_s: 0}\ncheckpoint:",
            "deadlines.hold_s",
            13,
            "expected more than 0",
        ),
        # YAML
        ("name: stdlib-gpt", "name: !secret x", "name", 1, "could not determine a constructor for the tag"),
        ("name: std", "1: x\nname: std", "", 1, "keys are text, got 1; put it in quotes"),
        ("keep: 3", "<<: {keep: 3}", "checkpoint", 13, "merge keys (<<) are not supported"),
        ("seed: 0", "seed: 0, loop: &loop [*loop]", "train.config.loop.0", 5, "contains itself"),
        ("keep: 3}", "keep: 3", "", 14, "not YAML: while parsing a flow mapping expected ',' or '}'"),
        ("keep: 3}\n", "keep: 3}\n---\nname: b\n", "", 14, "expected a single document"),
        ("stdlib-gpt", "std\x07lib", "", 1, "character U+0007 is not allowed"),
    ],
)
def test_one_mistake_is_one_problem_at_its_place(old: str, new: str, path: str, line: int, says: str) -> None:
    """A file is mended by its author only when the message leads to the line and says what to write."""
    problem = only_problem(changed(old, new))

    assert (problem.path, problem.line) == (path, line)
    assert says in problem.message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected a mapping with name, slices, train and checkpoint, got nothing"),
        ("- a\n- b\n", "got a list"),
        ("just words", "got 'just words'"),
        ("[" * 600, "nested too deeply"),
    ],
)
def test_a_document_that_is_no_mapping_is_said_to_be_none(text: str, says: str) -> None:
    """An empty or wrong file must not end in a list of missing keys, or a traceback."""
    assert says in only_problem(text).message


def test_all_problems_of_a_document_are_reported_at_once_in_its_order() -> None:
    """One problem a run makes a person run a file ten times."""
    text = """\
name: Bad_Name
slices:
  generation: v6e
  topology: 4x4x4
  count: two
train:
  entrypont: raytpu.recipes.pretrain:train
  config: {steps: "20", global_batch: 31}
  mesh: {ici: {fsdp: 4.0}}
data:
  train: {source: texts}
deadlines: {stop_s: -1}
"""
    found = [(problem.line, problem.path) for problem in problems(text)]

    assert found == [
        (1, "name"),
        (1, "checkpoint"),
        (4, "slices.topology"),
        (5, "slices.count"),
        (7, "train.entrypont"),
        (8, "train.config.steps"),
        (8, "train.config"),
        (9, "train.mesh.ici.fsdp"),
        (11, "data.train.source"),
        (12, "deadlines.stop_s"),
    ]


def test_rules_between_sections_are_checked_although_another_section_is_wrong() -> None:
    """A typing error in one section must not hide an impossible mesh until the next try."""
    text = (
        changed("fsdp: 8", "fsdp: 5").replace("every_steps", "every_step").replace("entrypoint", "entrypint")
    )
    paths = {problem.path for problem in problems(text)}

    assert {
        "checkpoint.every_step",
        "train.entrypint",
        "train.mesh.ici",
        "train.config.global_batch",
    } <= paths


def test_two_devices_a_chip_are_counted_on_v7x() -> None:
    """A mesh of chips would leave half the devices of the slice without a place."""
    text = changed("generation: v6e, topology: 2x4", "generation: v7x, topology: 2x2x2")

    assert only_problem(text).message == (
        "ici axes multiply to 8, but a v7x 2x2x2 slice has 16 devices (8 chips, two devices each); "
        "fsdp 8 was given, with fsdp 16 it fits"
    )
    assert problems(text.replace("fsdp: 8", "fsdp: 16")) == []


def test_the_message_of_a_bad_file_reads_well_and_survives_pickling() -> None:
    """It is printed by the command line and sent between processes."""
    with pytest.raises(WorkloadInvalid) as caught:
        parse_workload(changed("keep: 3", "kept: 3"), "a.yaml")

    assert str(caught.value) == (
        "a.yaml: 1 problem\n  line 13: checkpoint.kept: unknown key; did you mean keep?"
    )
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-3", 0.001),
        ("3E4", 30000.0),
        ("2.5e-4", 0.00025),
        ("'1e-3'", "1e-3"),
        ("2024-01-02", "2024-01-02"),
    ],
)
def test_learning_rates_are_numbers_and_dates_are_text(written: str, value: object) -> None:
    """PyYAML alone reads 1e-3 as text, and the optimizer fails on the slice instead of here."""
    assert parse_workload(changed("seed: 0", f"lr: {written}")).train.config["lr"] == value


# --set


def test_an_override_replaces_a_value_and_makes_what_is_not_there() -> None:
    """`--set` is how one file serves a try and the real run."""
    text = changed("  mesh:\n    dcn: {replica: 2}\n    ici: {fsdp: 8}\n", "")
    overrides = (
        "train.config.steps=20",
        "train.mesh.ici.fsdp=8",
        "train.mesh.dcn={data: 2}",
        "deadlines.hold_s=5",
    )
    workload = parse_workload(text, overrides=overrides)

    assert workload.train.config["steps"] == 20
    assert workload.train.mesh is not None
    assert workload.train.mesh.axes == {"data": 2, "fsdp": 8}
    assert workload.deadlines.hold_s == 5


def test_the_last_override_of_a_field_wins() -> None:
    """As with the options of every other command."""
    assert parse_workload(VALID, overrides=("name=a", "name=b")).name == "b"


@pytest.mark.parametrize(
    ("override", "path", "says"),
    [
        ("train.config.stepz", "", "expected PATH=VALUE, such as train.config.steps=20"),
        ("=3", "", "expected PATH=VALUE"),
        ("train..steps=3", "", "expected PATH=VALUE"),
        ("name.first=a", "", "name is 'stdlib-gpt', which has no keys to set"),
        ("train.config=[", "", "not YAML"),
        ("slices.counts=3", "slices.counts", "did you mean count? (from --set slices.counts=3)"),
        ("checkpoint.keep=x", "checkpoint.keep", "got 'x' (from --set checkpoint.keep=x)"),
    ],
)
def test_a_wrong_override_is_named_and_has_no_line(override: str, path: str, says: str) -> None:
    """A line number would send its author to a file in which nothing is wrong."""
    problem = only_problem(VALID, override)

    assert (problem.path, problem.line) == (path, None)
    assert says in problem.message


def test_an_override_is_a_path_and_a_value() -> None:
    """Commands show what they were given, so the text is kept."""
    override = parse_override("train.config.schedule={warmup: 10, peak: 1e-3}")

    assert override.path == ("train", "config", "schedule")
    assert override.value == {"warmup": 10, "peak": 0.001}
    assert override.text == "train.config.schedule={warmup: 10, peak: 1e-3}"
    assert parse_override("a.b=x=y").value == "x=y"
    with pytest.raises(SpecError, match="PATH=VALUE"):
        parse_override("steps")


# back to YAML


@pytest.mark.parametrize(
    "text",
    [
        VALID,
        changed(
            "seed: 0", "seed: 0, lr: 1e-5, note: '1e-5', 'on': 'yes', none: null, nested: {a: [1, {b: 2.5}]}"
        ),
        changed("seed: 0", "seed: 0, day: '2024-01-02', text: 'é: #1 \"x\"', multi: \"a\\nb\", empty: ''"),
        changed(
            "source: python-stdlib", "source: jsonl\n    path: [a.jsonl, gs://b/c.jsonl]\n    holdout: 0.05"
        ),
        changed("  mesh:\n    dcn: {replica: 2}\n    ici: {fsdp: 8}\n", ""),
        changed("{fsdp: 8}", "{fsdp: 4, tensor: 2}\n    batch_axes: [replica, fsdp]"),
    ],
)
def test_a_workload_written_as_yaml_reads_back_equal(text: str) -> None:
    """The file in a run's directory is what the run is resumed and judged by."""
    workload = parse_workload(text)
    written = workload_yaml(workload)

    assert parse_workload(written) == workload
    assert workload_yaml(parse_workload(written)) == written


def test_the_order_of_mesh_axes_survives_yaml() -> None:
    """The order is the layout: swapped axes put other parameters on a host."""
    text = changed("{fsdp: 8}", "{tensor: 2, fsdp: 4}")
    mesh = parse_workload(workload_yaml(parse_workload(text))).train.mesh

    assert mesh is not None
    assert list(mesh.axes) == ["replica", "tensor", "fsdp"]


def test_defaults_are_written_out() -> None:
    """A later raytpu with other defaults must resume a run as it was started."""
    assert "heartbeat_s: 30.0" in workload_yaml(parse_workload(VALID))


def test_a_problem_without_a_line_comes_last() -> None:
    """Problems of the file are read along the file."""
    found = problems(changed("keep: 3", "kept: 3"), "slices.counts=3")

    assert [problem.line for problem in found] == [13, None]
    assert isinstance(found[0], Problem)


def test_replicas_cannot_be_fewer_than_the_slices_that_must_live() -> None:
    with pytest.raises(
        WorkloadInvalid, match=r"train.replicas.least: 5 is more than slices.count, which is 2"
    ):
        parse_workload(VALID, overrides=["train.across_slices=replicas", "train.replicas.least=5"])


def test_an_axis_between_replicas_can_only_divide_the_batch() -> None:
    """Each has the whole model."""
    mesh = "train.mesh={dcn: {tensor: 2}, ici: {fsdp: 8}}"
    parse_workload(VALID, overrides=[mesh])
    with pytest.raises(WorkloadInvalid, match=r"train.mesh.dcn: tensor: .* can only divide the batch"):
        parse_workload(VALID, overrides=[mesh, "train.across_slices=replicas"])
