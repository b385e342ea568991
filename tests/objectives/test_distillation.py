"""Tests the terms of distillation: compared layers and rows, the weights of their means, and what they do not
change.
"""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.distill import INSIDE, DistillConfig
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.models.pretraining import PretrainingModel
from efficient_attention.objectives.bert_pretraining import Pretraining
from efficient_attention.objectives.distillation import Distillation
from efficient_attention.objectives.fine_tuning import FineTuning
from efficient_attention.objectives.teacher_student_states import compared_states, teacher_states_for_batch
from tests.models.drawn import drawn
from tests.tolerances import assert_close
from tests.training.tiny_batch import random_batch

CONFIG = ModelConfig(width=16, heads=2, vocab_size=20, layers=2, max_length=12, init_std=0.3)
TEACHER = dataclasses.replace(CONFIG, layers=4, width=24)
RAW = jax.device_get(random_batch(rows=4, length=12, vocabulary=20, predictions=3))
BATCH = {name: RAW[name] for name in ('tokens', 'segments', 'token_types')}
BATCH |= {'index': np.int32([0, 1, 2, -1]), 'weights': np.float32([1.0, 1.0, 0.0, 0.0])}
IS_ROW = np.arange(4)[:, None] < 3  # The last row only fills up the batch.
BATCH['segments'] = np.where(IS_ROW, BATCH['segments'], 0)
IS_LABELLED = (BATCH['segments'] > 0) & (np.arange(12) % 2 == 1)
LABELS: dict[str, dict[str, Any]] = {
    'sequence': {'label': np.int32([0, 2, 0, 0])},
    'token': {'labels': np.where(IS_LABELLED, BATCH['tokens'] % 3, -1)},
    'span': {'start': np.int32([1, 2, 0, 0]), 'end': np.int32([3, 2, 0, 0])},
    'choice': {'label': np.int32([0, 1, 0, 0])},
}
LAYERS = {1: 2, 2: 4}


@functools.cache
def model_of(config: ModelConfig, head: HeadConfig) -> FineTuningModel:
    return nnx.merge(*drawn(lambda: FineTuningModel(config, head, rngs=nnx.Rngs(0))))


def batch_of(kind: str) -> dict[str, Any]:
    """Returns the rows with their labels; for multiple choice each example has two rows."""
    batch = BATCH | LABELS[kind]
    if kind == 'choice':
        for name in ('tokens', 'segments', 'token_types'):
            batch[name] = np.stack([batch[name], np.roll(batch[name], 1, axis=1)], axis=1)
    return batch


def joined(batch: dict[str, Any], teacher: FineTuningModel, layers: tuple[int, ...] = (2, 4)) -> dict[str, Any]:
    outputs, inside = teacher.with_hidden_states(batch)
    arrays = teacher_states_for_batch(compared_states(inside, INSIDE, layers), len(batch['tokens']))
    return batch | arrays | {'teacher_logits': outputs['logits']}


def distillation(head: HeadConfig, widths: tuple[int, int] = (16, 24), **fields: Any) -> Distillation:
    config = DistillConfig(**({'teacher': 'a'} | fields))
    return Distillation(FineTuning(head), config, tuple(LAYERS), widths)


@pytest.mark.parametrize('kind', LABELS)
def test_soft_losses_are_those_of_the_kind_s_own_softmax(kind: str):
    head = HeadConfig(kind=kind, outputs=3)
    objective = distillation(head, temperature=2.0)

    @nnx.jit
    def run(student: FineTuningModel, teacher: FineTuningModel) -> tuple[Any, ...]:
        batch = joined(batch_of(kind), teacher)
        outputs, (sums, _) = student.outputs(batch), objective.sums(student, batch, None, None)
        of_labels = FineTuning(head).sums_of(outputs, batch)['fine_tuning']
        return outputs['logits'], batch['teacher_logits'], sums, of_labels, objective.weights(batch)

    outputs, theirs, sums, of_labels, weights = jax.device_get(run(model_of(CONFIG, head), model_of(TEACHER, head)))
    if kind == 'token':
        is_tagged = (LABELS[kind]['labels'] >= 0) * BATCH['weights'][:, None]
        expected, weight = (soft_losses(outputs, theirs) * is_tagged).sum(), is_tagged.sum()
    elif kind == 'span':
        ends = [soft_losses(outputs[:3, :, end], theirs[:3, :, end]) for end in (0, 1)]
        expected, weight = (ends[0] + ends[1]).sum() / 2, 3.0
    else:
        expected, weight = soft_losses(outputs[:3], theirs[:3]).sum(), 3.0  # The row without a label counts.
    assert_close(sums['soft']['loss'], expected)
    assert weights['soft'] == weight and set(weights) == {'fine_tuning', 'soft'}
    assert_close(sums['fine_tuning'], of_labels)


def soft_losses(mine: np.ndarray, theirs: np.ndarray, temperature: float = 2.0) -> np.ndarray:
    """Computes T^2 KL(softmax(theirs / T) || softmax(mine / T)) in float64."""

    def log_softmax(x: np.ndarray) -> np.ndarray:
        x = np.float64(x) / temperature
        x = x - x.max(axis=-1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))

    log_p, log_q = log_softmax(theirs), log_softmax(mine)
    return temperature**2 * (np.exp(log_p) * (log_p - log_q)).sum(axis=-1)


def test_a_number_is_learned_by_its_squared_difference():
    head = HeadConfig(kind='sequence', outputs=1)

    @nnx.jit
    def run(student: FineTuningModel, teacher: FineTuningModel) -> tuple[Any, ...]:
        batch = joined(BATCH | {'label': np.zeros(4, np.float32)}, teacher)
        outputs = student.outputs(batch)
        return distillation(head, labels=0.0).sums_of(outputs, batch), outputs['logits'], batch['teacher_logits']

    found, mine, theirs = jax.device_get(run(model_of(CONFIG, head), model_of(TEACHER, head)))
    assert_close(found, {'soft': {'loss': np.square(mine[:3, 0] - theirs[:3, 0]).sum()}})


def test_masked_words_are_learned_where_they_are_masked():
    student, teacher = (
        nnx.merge(*drawn(lambda config=config: PretrainingModel(config, has_pairs=False, rngs=nnx.Rngs(0))))
        for config in (CONFIG, TEACHER)
    )
    inner = Pretraining(has_pairs=False)
    objective = Distillation(inner, DistillConfig('a', temperature=2.0), (), (16, 24))

    @nnx.jit
    def run(student: PretrainingModel, teacher: PretrainingModel) -> tuple[Any, ...]:
        batch = RAW | {'teacher_masked_lm': teacher.outputs(RAW)['masked_lm']}
        sums, _ = objective.sums(student, batch, None, None)
        of_labels = inner.sums(student, RAW, None, None)[0]['masked_lm']
        logits = student.outputs(RAW)['masked_lm'], batch['teacher_masked_lm']
        return sums, of_labels, objective.weights(batch)['soft'], logits

    sums, of_labels, weight, logits = jax.device_get(run(student, teacher))
    assert_close(sums['soft']['loss'], (soft_losses(*logits) * RAW['masked_weights']).sum())
    assert_close(weight, RAW['masked_weights'].sum())
    assert_close(sums['masked_lm'], of_labels)


EVERY = {name: 1.0 for name in INSIDE} | {'projection': 'none'}


@pytest.mark.parametrize('kind', ['sequence', 'choice'])
def test_a_student_that_is_its_teacher_loses_nothing_and_learns_nothing(kind: str):
    head = HeadConfig(kind=kind, outputs=3)
    graph, params = nnx.split(model_of(CONFIG, head))
    objective = distillation(head, labels=0.0, **EVERY)

    def losses(params: Any, batch: dict[str, Any]) -> tuple[Any, Any]:
        sums, _ = objective.sums(nnx.merge(graph, params), batch, None, None)
        found = {name: term['loss'] for name, term in sums.items()}
        return sum(found.values()), found

    @jax.jit
    def run(params: Any) -> tuple[Any, Any]:
        return jax.grad(losses, has_aux=True)(params, joined(batch_of(kind), nnx.merge(graph, params), (1, 2)))

    gradients, found = jax.device_get(run(params))
    assert set(found) == {'soft', *INSIDE}
    assert all(abs(loss) < 1e-4 for loss in found.values()), found
    assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(gradients)) < 1e-3


def test_mapped_layers_are_compared_in_the_teacher_s_width():
    head = HeadConfig(kind='sequence', outputs=3)
    objective = distillation(head, labels=0.0, soft=0.0, hidden=1.0, embeddings=1.0)

    @nnx.jit
    def run(student: FineTuningModel, teacher: FineTuningModel) -> tuple[Any, ...]:
        batch, beside = (
            joined(BATCH, teacher, tuple(LAYERS.values())),
            objective.initial_auxiliary_params(jax.random.key(0)),
        )
        sums, _ = objective.with_auxiliary_params(beside).sums(student, batch, None, None)
        return sums, beside, *(model.with_hidden_states(batch)[1].states_NBLD for model in (student, teacher))

    sums, beside, mine, theirs = jax.device_get(run(model_of(CONFIG, head), model_of(TEACHER, head)))
    assert jax.tree.map(np.shape, beside) == {
        'hidden': {'kernel': (2, 16, 24)},
        'embeddings': {'kernel': (16, 24)},
    }
    is_token = BATCH['segments'] > 0
    expected = {'hidden': 0.0, 'embeddings': 0.0}
    for number, other in LAYERS.items():
        projected = mine[number] @ beside['hidden']['kernel'][number - 1]
        expected['hidden'] += np.square(projected - theirs[other]).mean(axis=-1)[is_token].sum()
    projected = mine[0] @ beside['embeddings']['kernel']
    expected['embeddings'] = np.square(projected - theirs[0]).mean(axis=-1)[is_token].sum()
    assert_close({name: term['loss'] for name, term in sums.items()}, expected)


def test_one_projection_serves_all_layers():
    objective = distillation(HeadConfig(kind='sequence'), hidden=1.0, embeddings=1.0, projection='one')
    beside = jax.eval_shape(objective.initial_auxiliary_params, jax.random.key(0))
    assert jax.tree.map(lambda leaf: leaf.shape, beside) == {'all': {'kernel': (16, 24)}}
    rng = np.random.default_rng(0)
    x, kernel = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 1, 3, 16), (16, 24)))
    given = objective.with_auxiliary_params({'all': {'kernel': kernel}})
    for name in ('hidden', 'embeddings'):
        assert_close(jax.jit(given.project_to_teacher_width, static_argnums=0)(name, x), x @ kernel)


def test_terms_are_means_over_tokens_pairs_or_rows_and_padding_counts_for_nothing():
    head = HeadConfig(kind='sequence', outputs=3)
    objective = distillation(head, **EVERY)
    weights = jax.jit(objective.weights)(BATCH | LABELS['sequence'])
    lengths = np.asarray((BATCH['segments'] > 0).sum(axis=1))
    tokens = lengths.sum()
    found = {name: float(weight) for name, weight in weights.items()}
    expected = dict.fromkeys(INSIDE, float(tokens)) | {'attention': float((lengths**2).sum())}
    assert found == expected | {'soft': 3.0, 'fine_tuning': 2.0}


def test_factors_are_the_weights_of_the_config():
    objective = distillation(HeadConfig(kind='sequence'), labels=0.3, soft=0.7, hidden=2.0)
    terms = ('fine_tuning', 'soft', 'hidden', 'masked_lm')
    assert [objective.loss_factor(term) for term in terms] == [0.3, 0.7, 2.0, 0.3]


def test_metrics_by_labels_that_do_not_count_are_not_promised():
    names = frozenset({'accuracy', 'fine_tuning_loss', 'fine_tuning_accuracy'})
    head = HeadConfig(kind='sequence')
    assert distillation(head, labels=0.0, hidden=1.0).metric_names(names) == {'accuracy', 'soft_loss', 'hidden_loss'}
    assert distillation(head).metric_names(names) == names | {'soft_loss'}
