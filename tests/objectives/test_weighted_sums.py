"""Sums of cross-entropy and of correct predictions against a loop in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optax.losses import softmax_cross_entropy_with_integer_labels as cross_entropy

from efficient_attention.objectives.weighted_sums import is_best, weighted_sums
from tests.tolerances import assert_close


def cross_entropy_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> dict[str, jax.Array]:
    return weighted_sums(cross_entropy(logits, labels), is_best(logits, labels), weights)


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
    sums = cross_entropy_sums(jnp.asarray(logits), jnp.asarray(labels), jnp.asarray(weights))
    assert_close(sums, by_hand(logits, labels, weights))


def test_an_example_of_weight_0_counts_for_nothing():
    logits = jnp.asarray([[2.0, 1.0, 0.0], [50.0, -50.0, 0.0]])
    weights = jnp.asarray([1.0, 0.0])
    with_it = cross_entropy_sums(logits, jnp.asarray([0, 1]), weights)
    without = cross_entropy_sums(logits[:1], jnp.asarray([0]), weights[:1])
    assert_close(with_it, without)
    gradient = jax.grad(lambda logits: cross_entropy_sums(logits, jnp.asarray([0, 1]), weights)['loss'])(logits)
    assert not gradient[1].any() and gradient[0].any()


def test_huge_logits_stay_finite():
    logits = jnp.asarray([[1000.0, -1000.0], [-1000.0, -1000.0]])
    sums = cross_entropy_sums(logits, jnp.asarray([0, 1]), jnp.ones(2))
    np.testing.assert_allclose(sums['loss'], np.log(2), rtol=1e-4)


def test_equal_logits_lose_the_logarithm_of_the_classes():
    sums = cross_entropy_sums(jnp.zeros((4, 30)), jnp.arange(4), jnp.ones(4))
    np.testing.assert_allclose(sums['loss'], 4 * np.log(30), rtol=1e-6)
