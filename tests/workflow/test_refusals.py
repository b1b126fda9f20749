"""Requests that only the cluster or the storage can refuse."""

from __future__ import annotations

import pytest

from tests.workflow.conftest import FinishedRun, Story, processes_of, wait_for

pytestmark = pytest.mark.workflow


def assert_refused(story: Story, arguments: list[str], code: int, *words: str) -> None:
    ended = story.raytpu(*arguments)
    assert ended.code == code, ended.err
    assert "Traceback" not in ended.err
    for word in words:
        assert word in ended.err
    wait_for("every process of the run to be gone", lambda: not processes_of(story), deadline_s=30)


def test_more_slices_than_exist_are_refused_at_once_with_a_reason_for_each(story: Story):
    """Stock Ray waits for the third slice until somebody looks."""
    arguments = story.run_arguments(
        "greedy", "slices.count=3", "train.mesh={dcn: {replica: 3}, ici: {fsdp: 8}}"
    )
    arguments += ["--set", "train.config.global_batch=24"]
    assert_refused(
        story, arguments, 3, "need 3 whole v6e 2x4", "slice-0", "slice-1", "slices.count: 2 fits now"
    )


def test_a_checkpoint_of_another_model_is_refused(finished_run: FinishedRun):
    """Restored by position, it would train noise."""
    arguments = finished_run.story.run_arguments(
        finished_run.name, "train.config.model=gpt-micro", "train.config.steps=30"
    )
    assert_refused(finished_run.story, arguments, 2, "checkpoint", "another model")


def test_a_program_that_raises_fails_the_run_with_its_own_words(story: Story, tmp_path):
    """A user's error must not drown in what it does to the other hosts."""
    (tmp_path / "my_loop.py").write_text(
        "def train(context, config):\n"
        "    if context.process_index == 2:\n"
        "        raise ValueError('the widget is upside down')\n"
        "    for step, batch in enumerate(context.batches(), 1):\n"
        "        context.report(step, {'sum': context.jit(lambda rows: rows.sum())(batch['tokens'])})\n"
    )
    arguments = story.run_arguments("upside", "train.entrypoint=my_loop:train")
    ended = story.raytpu(*arguments, cwd=tmp_path)
    assert ended.code == 4, ended.err
    assert "slice-1/0: ValueError: the widget is upside down" in ended.err
    wait_for("every process of the run to be gone", lambda: not processes_of(story), deadline_s=30)
