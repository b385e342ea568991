"""Tests the losses of fine-tuning against their formulas row by row, and which rows do not count."""

import types

import jax
import numpy as np
import pytest

from efficient_attention.config.head import HeadConfig
from efficient_attention.objectives.fine_tuning import TERM, FineTuning, support_loss
from tests.tolerances import assert_close

WEIGHTS = np.float32([1.0, 1.0, 0.0])


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def sums_of(head: HeadConfig, outputs: dict, **batch: np.ndarray) -> dict:
    return jax.jit(FineTuning(head).sums_of)(outputs, {'weights': WEIGHTS, **batch})[TERM]


def cross_entropy(logits: np.ndarray, label: int) -> float:
    logits = np.float64(logits)
    return float(np.log(np.exp(logits).sum()) - logits[label])


def test_classes():
    logits, labels = random(3, 4), np.int32([1, 3, 0])
    sums = sums_of(HeadConfig(kind='sequence', outputs=4), {'logits': logits}, label=labels)
    assert_close(sums['loss'], sum(cross_entropy(logits[i], int(labels[i])) for i in range(2)))
    assert_close(sums['accuracy'], sum(float(logits[i].argmax() == labels[i]) for i in range(2)))


def test_an_objective_asks_the_model_or_reads_what_it_has_said():
    objective = FineTuning(HeadConfig(kind='sequence', outputs=1))
    batch, outputs = {'weights': WEIGHTS, 'label': np.zeros(3, np.float32)}, {'logits': np.float32([[1], [3], [9]])}
    model = types.SimpleNamespace(outputs=lambda _, **options: {'logits': outputs['logits'] + options['step']})
    assert objective.sums_of(outputs, batch)[TERM]['loss'] == 1 + 9
    sums, carry = objective.sums(model, batch, None, None, step=2)
    assert sums[TERM]['loss'] == 9 + 25 and carry is None


def test_one_output_is_a_number():
    logits, labels = random(3, 1), np.float32([0.5, -2.0, 9.0])
    sums = sums_of(HeadConfig(kind='sequence', outputs=1), {'logits': logits}, label=labels)
    assert_close(sums, {'loss': float((logits[0, 0] - 0.5) ** 2 + (logits[1, 0] + 2.0) ** 2)})


def test_tags_count_where_there_are_any():
    logits, labels = random(3, 5, 2), np.int32([[-1, 0, -1, 1, -1], [1, -1, -1, -1, -1], [0, 0, 0, 0, 0]])
    objective = FineTuning(HeadConfig(kind='token', outputs=2))
    batch = {'weights': WEIGHTS, 'labels': labels}
    expected = cross_entropy(logits[0, 1], 0) + cross_entropy(logits[0, 3], 1) + cross_entropy(logits[1, 0], 1)
    assert_close(jax.jit(objective.sums_of)({'logits': logits}, batch)[TERM]['loss'], expected)
    assert float(objective.weights(batch)[TERM]) == 3.0


def test_spans_are_two_softmaxes_over_positions():
    logits, start, end = random(3, 6, 2), np.int32([1, 0, 5]), np.int32([2, 0, 5])
    sums = sums_of(HeadConfig(kind='span'), {'logits': logits}, start=start, end=end)
    expected = [
        (cross_entropy(logits[i, :, 0], int(start[i])) + cross_entropy(logits[i, :, 1], int(end[i]))) / 2
        for i in range(2)
    ]
    assert_close(sums['loss'], sum(expected))


def test_multi_hop_adds_the_type_and_the_sentences_and_takes_spans_where_they_are_the_answer():
    outputs = {'logits': random(3, 6, 2), 'type': random(3, 3) * 2.0, 'support': random(3, 6) * 3.0}
    support = np.float32([[-1, 1, -1, 0, -1, -1], [-1, -1, -1, -1, -1, -1], [1, 1, 1, 1, 1, 1]])
    zeros = np.zeros(3, np.int32)
    kind = np.int32([0, 2, 0])
    sums = sums_of(HeadConfig(kind='multi_hop'), outputs, start=zeros, end=zeros, type=kind, support=support)
    span = (cross_entropy(outputs['logits'][0, :, 0], 0) + cross_entropy(outputs['logits'][0, :, 1], 0)) / 2
    types = cross_entropy(outputs['type'][0], 0) + cross_entropy(outputs['type'][1], 2)
    sentence = np.log1p(np.exp(-outputs['support'][0, 1])) + np.log1p(np.exp(outputs['support'][0, 3]))
    assert_close(sums['loss'], span + types + float(sentence) / 2)


@pytest.mark.parametrize('count', [0, 1, 3])
def test_the_loss_of_sentences_is_a_mean_over_as_many_as_the_row_has(count: int):
    logits, rng = random(1, 6) * 3.0, np.random.default_rng(count)
    labels = np.full((1, 6), -1.0, np.float32)
    labels[0, :count] = rng.integers(0, 2, count)
    p = 1.0 / (1.0 + np.exp(-np.asarray(logits, np.float64)))
    losses = [-np.log(p[0, i] if labels[0, i] else 1.0 - p[0, i]) for i in range(count)]
    found = jax.jit(support_loss)(logits, labels, np.ones(1, np.float32))
    assert_close(found, np.mean(losses) if losses else 0.0)


def test_rows_without_labels_have_no_loss():
    objective, batch = FineTuning(HeadConfig(kind='span')), {'weights': WEIGHTS}
    assert objective.sums_of({'logits': random(3, 6, 2)}, batch) == objective.weights(batch) == {}
