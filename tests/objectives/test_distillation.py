"""The terms of distillation: which layers and rows they compare, what they are means of, and what they leave alone."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.distill import INSIDE, DistillConfig
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.models.pretraining import PretrainingModel
from efficient_attention.objectives.compared import as_batch_arrays, compared
from efficient_attention.objectives.distillation import Distillation, soft_targets, squared_sum
from efficient_attention.objectives.fine_tuning import FineTuning
from efficient_attention.objectives.pretraining import Pretraining
from tests.tolerances import assert_close
from tests.training.tiny_batch import random_batch

CONFIG = ModelConfig(width=16, heads=2, vocab_size=20, layers=2, max_length=12, init_std=0.3)
TEACHER = dataclasses.replace(CONFIG, layers=4, width=24)
RAW = random_batch(rows=4, length=12, vocabulary=20, predictions=3)
BATCH = {name: RAW[name] for name in ('tokens', 'segments', 'token_types')}
BATCH |= {'index': jnp.asarray([0, 1, 2, -1]), 'weights': jnp.asarray([1.0, 1.0, 0.0, 0.0])}
IS_ROW = np.arange(4)[:, None] < 3  # the last one fills up the batch
BATCH['segments'] = jnp.asarray(np.where(IS_ROW, np.asarray(BATCH['segments']), 0))
IS_LABELLED = (np.asarray(BATCH['segments']) > 0) & (np.arange(12) % 2 == 1)
LABELS: dict[str, dict[str, Any]] = {
    'sequence': {'label': jnp.array([0, 2, 0, 0])},
    'token': {'labels': jnp.asarray(np.where(IS_LABELLED, np.asarray(BATCH['tokens']) % 3, -1))},
    'span': {'start': jnp.array([1, 2, 0, 0]), 'end': jnp.array([3, 2, 0, 0])},
    'choice': {'label': jnp.array([0, 1, 0, 0])},
}
LAYERS = {1: 2, 2: 4}


def model_of(config: ModelConfig, head: HeadConfig, seed: int = 0) -> FineTuningModel:
    return FineTuningModel(config, head, rngs=nnx.Rngs(seed))


def batch_of(kind: str) -> dict[str, Any]:
    """The rows with their labels; as choices each is two rows."""
    batch = BATCH | LABELS[kind]
    if kind == 'choice':
        for name in ('tokens', 'segments', 'token_types'):
            batch[name] = jnp.stack([batch[name], jnp.roll(batch[name], 1, axis=1)], axis=1)
    return batch


def joined(batch: dict[str, Any], teacher: FineTuningModel, layers: tuple[int, ...] = (2, 4)) -> dict[str, Any]:
    outputs, inside = teacher.with_inside(batch)
    arrays = as_batch_arrays(compared(inside, INSIDE, layers), len(batch['tokens']))
    return batch | arrays | {'teacher_logits': outputs['logits']}


def distillation(head: HeadConfig, widths: tuple[int, int] = (16, 24), **fields: Any) -> Distillation:
    config = DistillConfig(**({'teacher': 'a'} | fields))
    return Distillation(FineTuning(head), config, tuple(LAYERS), widths)


@pytest.mark.parametrize('kind', LABELS)
def test_soft_losses_are_those_of_the_kind_s_own_softmax(kind: str):
    head = HeadConfig(kind=kind, outputs=3)
    student, teacher = model_of(CONFIG, head), model_of(TEACHER, head, 1)
    batch = joined(batch_of(kind), teacher)
    objective = distillation(head, temperature=2.0)
    outputs, theirs = student.outputs(batch)['logits'], batch['teacher_logits']
    if kind == 'token':
        is_tagged = (batch['labels'] >= 0).astype(jnp.float32) * batch['weights'][:, None]
        expected, weight = (soft_targets(outputs, theirs, 2.0) * is_tagged).sum(), is_tagged.sum()
    elif kind == 'span':
        ends = [soft_targets(outputs[:3, :, end], theirs[:3, :, end], 2.0) for end in (0, 1)]
        expected, weight = (ends[0] + ends[1]).sum() / 2, 3.0
    else:
        expected, weight = soft_targets(outputs[:3], theirs[:3], 2.0).sum(), 3.0  # the row without a label counts
    sums, _ = nnx.jit(objective.sums)(student, batch, None, None)
    assert_close(sums['soft']['loss'], expected)
    weights = objective.weights(batch)
    assert weights['soft'] == weight and set(weights) == {'fine_tuning', 'soft'}
    assert_close(sums['fine_tuning'], FineTuning(head).sums_of(student.outputs(batch), batch)['fine_tuning'])


def test_a_number_is_learned_by_its_squared_difference():
    head = HeadConfig(kind='sequence', outputs=1)
    student = model_of(CONFIG, head)
    batch = joined(BATCH | {'label': jnp.zeros(4)}, model_of(TEACHER, head, 1))
    found = distillation(head, labels=0.0).sums_of(student.outputs(batch), batch)
    difference = student.outputs(batch)['logits'][:3, 0] - batch['teacher_logits'][:3, 0]
    assert_close(found, {'soft': {'loss': jnp.square(difference).sum()}})


def test_masked_words_are_learned_where_they_are_masked():
    student = PretrainingModel(CONFIG, has_pairs=False, rngs=nnx.Rngs(0))
    teacher = PretrainingModel(TEACHER, has_pairs=False, rngs=nnx.Rngs(1))
    batch = RAW | {'teacher_masked_lm': teacher.outputs(RAW)['masked_lm']}
    objective = Distillation(Pretraining(has_pairs=False), DistillConfig('a', temperature=2.0), (), (16, 24))
    sums, _ = objective.sums(student, batch, None, None)
    losses = soft_targets(student.outputs(RAW)['masked_lm'], batch['teacher_masked_lm'], 2.0)
    assert_close(sums['soft']['loss'], (losses * RAW['masked_weights']).sum())
    assert_close(objective.weights(batch)['soft'], RAW['masked_weights'].sum())
    assert_close(sums['masked_lm'], Pretraining(has_pairs=False).sums(student, RAW, None, None)[0]['masked_lm'])


EVERY = {name: 1.0 for name in INSIDE} | {'projection': 'none'}


@pytest.mark.parametrize('kind', ['sequence', 'choice'])
def test_a_student_that_is_its_teacher_loses_nothing_and_learns_nothing(kind: str):
    head = HeadConfig(kind=kind, outputs=3)
    graph, params = nnx.split(model_of(CONFIG, head))
    batch = joined(batch_of(kind), nnx.merge(graph, params), (1, 2))
    objective = distillation(head, labels=0.0, **EVERY)

    def losses(params: Any) -> tuple[Any, Any]:
        sums, _ = objective.sums(nnx.merge(graph, params), batch, None, None)
        found = {name: term['loss'] for name, term in sums.items()}
        return sum(found.values()), found

    gradients, found = jax.jit(jax.grad(losses, has_aux=True))(params)
    assert set(found) == {'soft', *INSIDE}
    assert all(abs(loss) < 1e-4 for loss in found.values()), found
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradients)) < 1e-3


def test_mapped_layers_are_compared_in_the_teacher_s_width():
    head = HeadConfig(kind='sequence', outputs=3)
    student, teacher = model_of(CONFIG, head), model_of(TEACHER, head, 1)
    batch = joined(BATCH, teacher, tuple(LAYERS.values()))
    objective = distillation(head, labels=0.0, soft=0.0, hidden=1.0, embeddings=1.0)
    beside = objective.initial_beside(jax.random.key(0))
    assert jax.tree.map(jnp.shape, beside) == {
        'hidden': {'kernel': (2, 16, 24)},
        'embeddings': {'kernel': (16, 24)},
    }
    sums, _ = objective.with_beside(beside).sums(student, batch, None, None)
    mine, theirs = (model.with_inside(batch)[1].states_NBLD for model in (student, teacher))
    is_token = BATCH['segments'] > 0
    expected = {'hidden': 0.0, 'embeddings': 0.0}
    for number, other in LAYERS.items():
        projected = mine[number] @ beside['hidden']['kernel'][number - 1]
        expected['hidden'] += squared_sum(projected[None], theirs[other][None], is_token)
    projected = mine[0] @ beside['embeddings']['kernel']
    expected['embeddings'] = squared_sum(projected[None], theirs[0][None], is_token)
    assert_close({name: term['loss'] for name, term in sums.items()}, expected)


def test_one_projection_serves_all_layers():
    objective = distillation(HeadConfig(kind='sequence'), hidden=1.0, embeddings=1.0, projection='one')
    assert jax.tree.map(jnp.shape, objective.initial_beside(jax.random.key(0))) == {'all': {'kernel': (16, 24)}}
    kernel = jnp.ones((16, 24))
    given = objective.with_beside({'all': {'kernel': kernel}})
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 1, 3, 16)), jnp.float32)
    assert_close(given.projected('hidden', x), x @ kernel)
    assert_close(given.projected('embeddings', x), x @ kernel)


def test_terms_are_means_over_tokens_pairs_or_rows_and_padding_counts_for_nothing():
    head = HeadConfig(kind='sequence', outputs=3)
    objective = distillation(head, **EVERY)
    weights = objective.weights(BATCH | LABELS['sequence'])
    lengths = np.asarray((BATCH['segments'] > 0).sum(axis=1))
    tokens = lengths.sum()
    found = {name: float(weight) for name, weight in weights.items()}
    expected = dict.fromkeys(INSIDE, float(tokens)) | {'attention': float((lengths**2).sum())}
    assert found == expected | {'soft': 3.0, 'fine_tuning': 2.0}


def test_factors_are_the_weights_of_the_config():
    objective = distillation(HeadConfig(kind='sequence'), labels=0.3, soft=0.7, hidden=2.0)
    terms = ('fine_tuning', 'soft', 'hidden', 'masked_lm')
    assert [objective.factor(term) for term in terms] == [0.3, 0.7, 2.0, 0.3]


def test_metrics_by_labels_that_do_not_count_are_not_promised():
    names = frozenset({'accuracy', 'fine_tuning_loss', 'fine_tuning_accuracy'})
    head = HeadConfig(kind='sequence')
    assert distillation(head, labels=0.0, hidden=1.0).metric_names(names) == {'accuracy', 'soft_loss', 'hidden_loss'}
    assert distillation(head).metric_names(names) == names | {'soft_loss'}
