"""Tests the loss of a target text: label smoothing by its definition, the z-loss, and padding without weight."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from efficient_attention.objectives.text_to_text import TextToText

LOGITS = jax.random.normal(jax.random.key(0), (2, 3, 7)) * 3
TARGETS = jnp.array([[1, 2, 6], [0, 3, 3]])


def test_without_smoothing_it_is_the_cross_entropy():
    loss, cross_entropy = TextToText().losses(LOGITS, TARGETS)
    expected = optax.softmax_cross_entropy_with_integer_labels(LOGITS, TARGETS)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    assert np.array_equal(loss, cross_entropy)


@pytest.mark.parametrize('share', [0.1, 0.5])
def test_smoothed_labels(share: float):
    loss, cross_entropy = TextToText(label_smoothing=share).losses(LOGITS, TARGETS)
    labels = optax.smooth_labels(jax.nn.one_hot(TARGETS, 7), share)
    np.testing.assert_allclose(loss, optax.softmax_cross_entropy(LOGITS, labels), rtol=1e-5)
    np.testing.assert_allclose(cross_entropy, TextToText().losses(LOGITS, TARGETS)[0], rtol=1e-6)


def test_the_z_loss_draws_normalisers_to_1():
    loss, cross_entropy = TextToText(z_loss=0.5).losses(LOGITS, TARGETS)
    normaliser = np.log(np.exp(np.asarray(LOGITS, np.float64)).sum(-1))
    np.testing.assert_allclose(loss - cross_entropy, 0.5 * normaliser**2, rtol=1e-5)


class Model:
    """A stand-in model that returns the same logits for every batch and records its arguments."""

    class config:
        loss_chunk = 0

    def hidden_and_draws(self, *arrays: jax.Array, **options: object) -> tuple[jax.Array, None]:
        self.arrays, self.options = arrays, options
        return LOGITS, None

    def logits(self, hidden_BLD: jax.Array) -> jax.Array:
        return hidden_BLD


def test_sums_are_of_the_tokens_that_weigh_something():
    weights = jnp.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    names = ('source', 'source_segments', 'tokens', 'segments')
    batch = {name: jnp.full((2, 3), number) for number, name in enumerate(names)}
    batch |= {'targets': TARGETS, 'weights': weights}
    model, objective = Model(), TextToText(label_smoothing=0.1)
    sums, carry = objective.sums(model, batch, None, None)
    loss, cross_entropy = objective.losses(LOGITS, TARGETS)
    assert carry is None and objective.weights(batch)['target'] == 3.0
    np.testing.assert_allclose(sums['target']['loss'], (loss * weights).sum(), rtol=1e-6)
    np.testing.assert_allclose(sums['target']['cross_entropy'], (cross_entropy * weights).sum(), rtol=1e-6)
    assert [int(array[0, 0]) for array in model.arrays] == [0, 1, 2, 3]


def test_a_loss_in_chunks_is_the_whole_one():
    """All metrics are equal too, in rows that the chunks do not divide."""
    weights = jnp.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    names = ('source', 'source_segments', 'tokens', 'segments')
    batch = {name: jnp.full((2, 3), number) for number, name in enumerate(names)} | {'targets': TARGETS}
    model, found = Model(), []
    for chunk in (0, 2):
        model.config = type('config', (), {'loss_chunk': chunk})
        found.append(TextToText().sums(model, batch | {'weights': weights}, None, None)[0]['target'])
    assert set(found[0]) == set(found[1]) == {'loss', 'cross_entropy', 'accuracy'}
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-6)
