"""Measures how important each input of a trained model's weight matrices is, so that low-rank factors keep the
important inputs accurate.

Squared gradients estimate the Fisher information, summed over each row of a kernel (Hsu et al. 2022,
arXiv 2207.00112). With squared inputs, factors are chosen for a small error of the kernel's outputs on real tokens.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from efficient_attention.config.distill import DistillConfig
from efficient_attention.config.prune import PruneConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.modules.dense_layer import Dense
from efficient_attention.modules.embedding_table import EmbeddingTable
from efficient_attention.objectives.objective import Batch, Objective, total_loss
from efficient_attention.tasks.registry import make_task

WAYS = ('gradients', 'inputs')
TOGETHER = 8  # rows that one call of the jitted function reads


def input_importance(pretrained: Pretrained, way: str, rows: int) -> dict[Any, Any]:
    """Returns how important each input of every kernel and embedding table is: nested dicts with the paths of the
    parameters, of arrays float32 [..., I].

    Args:
        pretrained: from the workdir of a fine-tuning run, whose first training rows are read; it may be shrunk.
        way: 'gradients' = sums of squared gradients of each row's loss; 'inputs' = sums of squared inputs at the tokens
            that the loss depends on. For a table, 'inputs' counts how often each row is looked up.
        rows: number of rows to read; all rows if there are fewer.

    Raises:
        InputError: the model is not from a fine-tuning run, the way is unknown, or the run's data are missing.
    """
    config = fine_tuning_run_config(pretrained)
    if way not in WAYS:
        raise InputError(f'unknown weights {way!r}; known: {", ".join(WAYS)}')
    plain: dict[str, Any] = {
        'dtype': 'float32',
        'dropout_rate': 0.0,
        'attention_dropout_rate': 0.0,
        'quantization': 'none',
    }
    model = dataclasses.replace(pretrained.model, **plain, float_layers=())
    alone = dataclasses.replace(config, model=model, distill=DistillConfig(), prune=PruneConfig())
    task = make_task(alone)
    task.prepare_training()
    module = task.make_model(nnx.Rngs(0))
    for _, layer in nnx.iter_graph(module):
        if way == 'inputs' and isinstance(layer, Dense | EmbeddingTable):
            layer.weighs_inputs = True
    graph, _ = nnx.split(module)
    params = pretrained.params()
    add = jax.jit(
        lambda params, batch: squared_gradient_sums(graph, task.objective, params, batch, is_squared=way == 'gradients')
    )
    total = None
    rows = min(rows, task.rows_per_epoch() or rows)
    steps = -(-rows // alone.train.batch_size)
    batches = task.training_batches(0, steps, 0, 1)
    for batch in split_batches(batches, rows):
        found = add(params, batch)
        total = found if total is None else jax.tree.map(jnp.add, total, found)
    return jax.tree.map(np.asarray, total)


def fine_tuning_run_config(pretrained: Pretrained) -> RunConfig:
    """Returns the config of the fine-tuning run that trained a model; raises InputError if the model is not from such a
    run.
    """
    config = pretrained.run
    if config is None or config.task != 'fine_tuning':
        kind = 'not a run' if config is None else f'a run of {config.task}'
        raise InputError(f'--weigh reads the training rows of a fine-tuning run; --model is {kind}')
    return config


def split_batches(batches: Iterator[dict[str, np.ndarray]], rows: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields the first `rows` rows of the batches, in smaller batches of at most `TOGETHER` rows."""
    left = rows
    for batch in batches:
        size = min(left, len(next(iter(batch.values()))))
        for start in range(0, size, TOGETHER):
            yield {name: array[start : min(start + TOGETHER, size)] for name, array in batch.items()}
        left -= size
        if left <= 0:
            return


def squared_gradient_sums(
    graph: nnx.GraphDef, objective: Objective, params: Any, batch: Batch, *, is_squared: bool
) -> Any:
    """Returns the squared gradients of each row's loss, summed over the rows of a batch.

    A matrix [..., I, O] gives sums [..., I] over O; an array with fewer than two axes gives 0. If `is_squared` is
    False, the gradients are added as they are, one column of each: layers with `weighs_inputs` return input squares as
    gradients, equal in all columns.
    """

    def loss_of(params: Any, row: Batch) -> jax.Array:
        sums, _ = objective.sums(nnx.merge(graph, params), row, None, None)
        return total_loss(sums, objective.weights(row), objective.loss_factor)

    def add(total: Any, row: Batch) -> tuple[Any, None]:
        alone = jax.tree.map(lambda array: array[None], row)
        gradients = jax.grad(loss_of)(params, alone)
        return jax.tree.map(jnp.add, total, jax.tree.map(reduced, gradients)), None

    def reduced(gradient: jax.Array) -> jax.Array:
        if gradient.ndim < 2:
            return jnp.zeros((), jnp.float32)
        return jnp.square(gradient).sum(-1) if is_squared else gradient[..., 0]

    shapes = jax.eval_shape(lambda: jax.tree.map(reduced, params))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(add, zeros, batch)[0]
