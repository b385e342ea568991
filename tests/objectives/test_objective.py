"""Tests that sums become means once, divided by all their weights, and that all trained parameters form one tree."""

import jax
import numpy as np
import pytest
from optax.losses import softmax_cross_entropy_with_integer_labels as cross_entropy

from efficient_attention.objectives.objective import (
    Objective,
    combine_trainable_parts,
    is_top_prediction,
    mean_metrics,
    split_trainable_parts,
    total_loss,
    weighted_sums,
)
from tests.tolerances import assert_close

SUMS = {
    'masked_lm': {'loss': np.float32(12.0), 'accuracy': np.float32(3.0)},
    'pair': {'loss': np.float32(5.0), 'accuracy': np.float32(1.0)},
}
WEIGHTS = {'masked_lm': np.float32(6.0), 'pair': np.float32(2.0)}


def test_the_terms_means_are_added():
    assert total_loss(SUMS, WEIGHTS) == 12 / 6 + 5 / 2


def test_every_metric_has_its_terms_name_and_mean():
    expected = {'masked_lm_loss': 2.0, 'masked_lm_accuracy': 0.5, 'pair_loss': 2.5, 'pair_accuracy': 0.5}
    assert {name: float(value) for name, value in mean_metrics(SUMS, WEIGHTS).items()} == expected


def test_a_term_without_weight_counts_0_and_not_nan():
    nothing = {'loss': np.float32(0.0), 'accuracy': np.float32(0.0)}
    sums, weights = SUMS | {'pair': nothing}, WEIGHTS | {'pair': np.float32(0.0)}
    assert total_loss(sums, weights) == 2.0
    assert mean_metrics(sums, weights)['pair_loss'] == 0.0


@pytest.mark.parametrize('weight', [0.125, 1.0, 1.5, 40.0])
def test_a_term_of_any_weight_is_divided_by_it(weight: float):
    """Weights are fractions of each other, so that their sum may be below 1."""
    sums, weights = SUMS, WEIGHTS | {'pair': np.float32(weight)}
    np.testing.assert_allclose(total_loss(sums, weights), 12 / 6 + 5 / weight, rtol=1e-6)
    np.testing.assert_allclose(mean_metrics(sums, weights)['pair_accuracy'], 1 / weight, rtol=1e-6)


def test_the_mean_over_parts_by_all_weights_is_the_mean_over_the_whole():
    losses, weights = np.random.default_rng(0).random((2, 12))
    total = {'term': np.float32(weights.sum())}
    parts = [{'term': {'loss': np.float32((losses * weights)[part].sum())}} for part in (slice(2), slice(2, None))]
    together = sum(total_loss(part, total) for part in parts)
    np.testing.assert_allclose(together, (losses * weights).sum() / weights.sum(), rtol=1e-6)


def test_an_objective_must_say_weights_and_sums():
    with pytest.raises(TypeError, match='abstract'):
        Objective()


# ---- sums of cross-entropy and of correct predictions against a loop in float64 ----


@jax.jit
def cross_entropy_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> dict[str, jax.Array]:
    return weighted_sums(cross_entropy(logits, labels), is_top_prediction(logits, labels), weights)


def by_hand(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    loss = accuracy = 0.0
    for index in np.ndindex(labels.shape):
        scores = logits[index].astype(np.float64)
        loss += weights[index] * (np.log(np.exp(scores).sum()) - scores[labels[index]])
        accuracy += weights[index] * (scores.argmax() == labels[index])
    return {'loss': loss, 'accuracy': accuracy}


@pytest.mark.parametrize('shape', [(5,), (2, 3), (2, 3, 2)])
def test_sums_equal_a_loop(shape: tuple[int, ...]):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (*shape, 7)).astype(np.float32)
    labels, weights = rng.integers(0, 7, shape, np.int32), rng.random(shape, np.float32)
    sums = cross_entropy_sums(logits, labels, weights)
    assert_close(sums, by_hand(logits, labels, weights))


def test_an_example_of_weight_0_counts_for_nothing():
    logits, labels, weights = np.float32([[2, 1, 0], [50, -50, 0]]), np.int32([0, 1]), np.float32([1, 0])
    with_it = cross_entropy_sums(logits, labels, weights)
    without = cross_entropy_sums(logits[:1], labels[:1], weights[:1])
    assert_close(with_it, without)
    gradient = jax.jit(jax.grad(lambda logits: cross_entropy_sums(logits, labels, weights)['loss']))(logits)
    assert not np.asarray(gradient)[1].any() and np.asarray(gradient)[0].any()


def test_huge_logits_stay_finite():
    logits = np.float32([[1000.0, -1000.0, -1000.0], [-1000.0, -1000.0, -2000.0]])
    sums = cross_entropy_sums(logits, np.int32([0, 1]), np.ones(2, np.float32))
    np.testing.assert_allclose(sums['loss'], np.log(2), rtol=1e-4)


def test_equal_logits_lose_the_logarithm_of_the_classes():
    sums = cross_entropy_sums(np.zeros((4, 30), np.float32), np.arange(4, dtype=np.int32), np.ones(4, np.float32))
    np.testing.assert_allclose(sums['loss'], 4 * np.log(30), rtol=1e-6)


# ---- trained arrays outside the model join its parameters in one tree, and are separated again ----


def test_joined_and_separate_are_inverse():
    params, beside = {'encoder': 1, 'head': 2}, {'hidden': 3}
    assert combine_trainable_parts(params, beside) == {'encoder': 1, 'head': 2, 'beside': {'hidden': 3}}
    assert split_trainable_parts(combine_trainable_parts(params, beside)) == (params, beside, None)
    scores = {'encoder': 4}
    assert split_trainable_parts(combine_trainable_parts(params, None, scores)) == (params, None, scores)
    assert split_trainable_parts(combine_trainable_parts(params, beside, scores)) == (params, beside, scores)


def test_without_anything_beside_the_parameters_are_as_they_were():
    params = {'encoder': 1}
    assert combine_trainable_parts(params, None) is params and split_trainable_parts(params) == (params, None, None)
    assert split_trainable_parts(3.0) == (3.0, None, None)
