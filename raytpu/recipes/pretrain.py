"""Pretrain a decoder language model on packed text: ``entrypoint: raytpu.recipes.pretrain:train``.

Importing this loads no JAX: the driver imports it to validate the workload's ``train.config``.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from raytpu.recipes.pretrain_config import PretrainConfig as PretrainConfig

if TYPE_CHECKING:
    import jax

    from raytpu import TrainContext
    from raytpu.models.layout import Layout

__all__ = ["PretrainConfig", "train"]


def train(context: TrainContext, config: PretrainConfig) -> None:
    """Train for ``config.steps`` steps, evaluate on the stream ``eval`` if there is one, write a sample.

    Collective: every process runs it with the same arguments.

    Raises:
        SpecError: batch, accumulation and mesh do not divide, before anything is compiled.
        CheckpointMismatch: the run's checkpoint is of another model.
    """
    from raytpu.models.layout import Layout
    from raytpu.recipes import pretrain_step as steps

    layout = Layout.of(context.batch_sharding)
    train_step = context.step(
        steps.make_gradients(config, layout),
        steps.make_apply(config, layout),
        parameters=lambda state: state.parameters,
    )
    shardings = steps.state_shardings(config, layout)

    def initial_state() -> steps.TrainState:
        return steps.initial_state(config, layout)

    state = context.restore(context.jit(initial_state, out_shardings=shardings)())
    evaluation = Evaluation(context, config, layout)
    numbers = range(context.start_step + 1, config.steps + 1)
    # The numbers come first: zip then stops without taking a batch that would not be used.
    for step, batch in zip(numbers, context.batches("train"), strict=False):
        state, metrics = train_step(state, batch)
        context.report(step, metrics, state)
        if config.eval_every is not None and step % config.eval_every == 0 and step < config.steps:
            evaluation.run(step, state.parameters)
    evaluation.run(config.steps, state.parameters)
    if config.sample_tokens:
        context.record_sample(write_sample(context, config, layout, state.parameters))


class Evaluation:
    """The same first batches of the stream ``eval`` at every call; nothing when there is no such stream."""

    def __init__(self, context: TrainContext, config: PretrainConfig, layout: Layout) -> None:
        from raytpu.recipes.pretrain_step import make_evaluate

        self._context = context
        self._evaluate = context.jit(make_evaluate(config, layout))
        self._batches: list[dict[str, jax.Array]] = []
        if context.has_data("eval"):
            # Kept on the devices: a few MB, and no second reader beside the training stream.
            self._batches = list(islice(context.batches("eval"), config.eval_batches))

    def run(self, step: int, parameters: Any) -> None:
        """Record the mean loss of the held-out batches as ``loss``. Collective."""
        if not self._batches:
            return
        with self._context.evaluating(step) as metrics:
            losses = [self._evaluate(parameters, batch) for batch in self._batches]
            metrics["loss"] = sum(float(loss) for loss in losses) / len(losses)


def write_sample(context: TrainContext, config: PretrainConfig, layout: Layout, parameters: Any) -> str:
    """``config.sample_prompt`` continued by the model. Collective; every process gets the same text."""
    import jax
    import numpy as np

    from raytpu.models.generation import make_generate
    from raytpu.models.tokenizers import BytesTokenizer

    tokenizer = BytesTokenizer()
    architecture = config.architecture
    prompt = tokenizer.encode(config.sample_prompt)
    length = len(prompt) + config.sample_tokens
    if architecture.positions == "learned":
        length = max(len(prompt), min(length, config.sequence_length))
    buffer = np.zeros(length, np.int32)
    buffer[: len(prompt)] = prompt
    generate = make_generate(
        architecture, layout, window=config.sequence_length, allowed_ids=tokenizer.vocab_size
    )

    def sample(parameters: Any) -> jax.Array:
        # The prompt is part of the program: an argument would have to be a global array.
        key = jax.random.key(config.seed)
        return generate(parameters, buffer, len(prompt), config.sample_temperature, key)

    return tokenizer.decode(np.asarray(context.jit(sample)(parameters)))
