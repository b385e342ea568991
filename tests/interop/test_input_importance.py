"""Tests of input importance on a run's rows: squared gradients of each row, or squared inputs of each kernel."""

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.input_importance import input_importance
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.objectives.objective import total_loss
from efficient_attention.tasks.registry import make_task
from tests.training.tiny_fine_tuning import tiny_config

ROWS = 13  # a batch of 8 and a part of the next batch


@pytest.fixture(scope='module')
def run(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return tiny_config(tmp_path_factory.mktemp('rows'), **{'examples.buckets': (16,)})


@pytest.fixture(scope='module')
def drawn(run: RunConfig) -> Pretrained:
    task = make_task(run)
    params = jax.device_get(jax.jit(lambda: nnx.to_pure_dict(nnx.state(task.make_model(nnx.Rngs(0)))))())
    labels = run.examples.labels
    known = {'problem': 'classification', 'family': '', 'tokenizer': None, 'lowercase': True, 'labels': labels}
    return Pretrained(model=run.model, head=run.head, params=lambda: params, run=run, **known)


@pytest.fixture(scope='module')
def rows(run: RunConfig) -> list[dict[str, np.ndarray]]:
    """Returns the first rows of the run, each as a batch of one row."""
    task = make_task(run)
    task.prepare_training()
    batches = task.training_batches(0, 2, 0, 1)
    found = [{name: array[i : i + 1] for name, array in batch.items()} for batch in batches for i in range(8)]
    return found[:ROWS]


def test_squared_gradients_are_those_of_a_loop_over_rows(run: RunConfig, drawn: Pretrained, rows: list):
    task = make_task(run)
    graph, _ = nnx.split(nnx.eval_shape(lambda: task.make_model(nnx.Rngs(0))))

    def loss(params: dict, row: dict) -> jax.Array:
        sums, _ = task.objective.sums(nnx.merge(graph, params), row, None, None)
        return total_loss(sums, task.objective.weights(row))

    gradient = jax.jit(jax.grad(loss))
    each = jax.device_get([gradient(drawn.params(), row) for row in rows])
    found = input_importance(drawn, 'gradients', ROWS)['encoder']
    for path in (('embeddings', 'token', 'embedding'), ('stack', 'layers', 'feed_forward', 'up', 'kernel')):
        here, squares = found, np.float64(0)
        for name in path:
            here = here[name]
        for one in each:
            leaf = one['encoder']
            for name in path:
                leaf = leaf[name]
            squares = squares + (np.asarray(leaf, np.float64) ** 2).sum(-1)
        assert here.shape == squares.shape and squares.max() > 0.0
        np.testing.assert_allclose(here, squares, rtol=1e-3, atol=1e-6 * squares.max())


def test_inputs_are_squared_at_the_tokens_that_matter(run: RunConfig, drawn: Pretrained, rows: list):
    """After a norm, a token's squared inputs sum to the width. The classifier reads only a row's first token."""
    found = input_importance(drawn, 'inputs', ROWS)['encoder']
    tokens = [int((row['segments'] > 0).sum()) for row in rows]
    attention = found['stack']['layers']['attention']
    queries = attention['query']['kernel'].sum(-1) / run.model.width
    np.testing.assert_allclose(queries, [sum(tokens), ROWS], rtol=0.01)
    np.testing.assert_allclose(attention['key']['kernel'].sum(-1) / run.model.width, [sum(tokens)] * 2, rtol=0.01)
    ids = np.concatenate([row['tokens'][row['segments'] > 0] for row in rows])
    counts = np.bincount(ids, minlength=run.model.vocab_size)
    np.testing.assert_array_equal(found['embeddings']['token']['embedding'], counts)


def test_what_has_no_rows_is_one_line(drawn: Pretrained):
    bare = Pretrained(**vars(drawn) | {'run': None, 'head': HeadConfig()})
    with pytest.raises(InputError, match='--weigh reads the training rows of a fine-tuning run; --model is not a run'):
        input_importance(bare, 'inputs', 4)
    with pytest.raises(InputError, match="unknown weights 'sums'; known: gradients, inputs"):
        input_importance(drawn, 'sums', 4)
