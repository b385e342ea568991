"""Tests of sampling: filtered tokens have probability 0, temperature 0 is greedy, draws follow the probabilities."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.errors import InputError
from efficient_attention.inference.sampling import Sampling, filter_logits, sample

LOGITS = (np.random.default_rng(0).normal(size=(3, 12)) * 2.0).astype(np.float32)


def probabilities(sampling: Sampling, logits: np.ndarray = LOGITS) -> np.ndarray:
    found = jax.jit(lambda logits: jax.nn.softmax(filter_logits(logits, sampling), axis=1))(logits)
    return np.asarray(found, np.float64)


PLAIN = probabilities(Sampling())


@pytest.mark.parametrize('top_k', [1, 3, 12, 99])
def test_only_the_k_most_probable_are_left(top_k: int):
    found = probabilities(Sampling(top_k=top_k))
    kept = np.argsort(-PLAIN, axis=1)[:, :top_k]
    assert ((found > 0).sum(axis=1) == min(top_k, 12)).all()
    for row, best in enumerate(kept):
        np.testing.assert_allclose(found[row, best], PLAIN[row, best] / PLAIN[row, best].sum(), rtol=1e-5)


def test_equals_at_the_border_do_not_slip_in():
    found = probabilities(Sampling(top_k=2), np.zeros((1, 5), np.float32))
    np.testing.assert_array_equal(found, [[0.5, 0.5, 0, 0, 0]])


@pytest.mark.parametrize('top_p', [1e-9, 0.3, 0.8, 0.999])
def test_only_the_nucleus_is_left(top_p: float):
    """Only the nucleus is left: its total reaches `top_p`, and without its last token it would not."""
    found = probabilities(Sampling(top_p=top_p))
    for row in range(3):
        nucleus = found[row] > 0
        assert nucleus.any() and PLAIN[row, nucleus].min() > PLAIN[row, ~nucleus].max(initial=0.0)
        total = PLAIN[row, nucleus].sum()
        assert total >= top_p - 1e-6 and total - PLAIN[row, nucleus].min() < top_p
        np.testing.assert_allclose(found[row, nucleus], PLAIN[row, nucleus] / total, rtol=1e-5)


def test_the_nucleus_is_taken_of_the_k_most_probable():
    logits = np.log(np.array([[0.4, 0.3, 0.2, 0.1]], np.float32))
    np.testing.assert_allclose(probabilities(Sampling(top_k=2, top_p=0.55), logits), [[1, 0, 0, 0]])
    np.testing.assert_allclose(probabilities(Sampling(top_p=0.55), logits), [[4 / 7, 3 / 7, 0, 0]], rtol=1e-6)


def test_a_low_temperature_becomes_greedy():
    best = np.eye(12)[PLAIN.argmax(axis=1)]
    np.testing.assert_array_equal(probabilities(Sampling(temperature=0.0)), best)
    np.testing.assert_allclose(probabilities(Sampling(temperature=1e-3)), best, atol=1e-6)
    flat = probabilities(Sampling(temperature=2.0))
    np.testing.assert_allclose(flat, np.sqrt(PLAIN) / np.sqrt(PLAIN).sum(axis=1, keepdims=True), rtol=1e-5)
    greedy = jax.jit(lambda logits: sample(logits, Sampling(temperature=0.0), 5, 6))(LOGITS)
    np.testing.assert_array_equal(greedy, PLAIN.argmax(axis=1))


def test_frequencies_follow_the_probabilities():
    """In 4,000 draws, each token's share is within 5 standard deviations of its probability."""
    count = 4000
    sampling = Sampling(temperature=0.7, top_k=6, top_p=0.95)
    draws = np.asarray(jax.jit(jax.vmap(functools.partial(sample, jnp.asarray(LOGITS), sampling, 3)))(np.arange(count)))
    expected = probabilities(sampling)
    for row in range(3):
        shares = np.bincount(draws[:, row], minlength=12) / count
        assert (abs(shares - expected[row]) <= 5 * np.sqrt(expected[row] * (1 - expected[row]) / count) + 1e-9).all()


def test_a_draw_follows_from_seed_step_and_row():
    of_steps = jax.jit(jax.vmap(lambda logits, seed, step: sample(logits, Sampling(), seed, step), (None, None, 0)))

    def draws(seed: int, logits: np.ndarray = LOGITS) -> np.ndarray:
        return np.asarray(of_steps(logits, seed, np.arange(50)))

    np.testing.assert_array_equal(draws(1), draws(1))
    np.testing.assert_array_equal(draws(1)[:, :2], draws(1, LOGITS[:2]))
    assert (draws(1) != draws(2)).any() and (draws(1, LOGITS[:1].repeat(2, 0)) != draws(1)[:, :1]).any()


@pytest.mark.parametrize(
    'fields, line',
    [
        ({'temperature': -0.5}, r'temperature is -0.5; it must be at least 0'),
        ({'temperature': float('nan')}, 'temperature is nan'),
        ({'temperature': float('inf')}, 'temperature is inf'),
        ({'top_k': -1}, r'top_k is -1; it must be at least 0'),
        ({'top_p': 0.0}, r'top_p is 0.0; it must be above 0 and at most 1'),
        ({'top_p': 1.5}, r'top_p is 1.5; it must be above 0 and at most 1'),
    ],
)
def test_values_out_of_range_are_named(fields: dict, line: str):
    with pytest.raises(InputError, match=line):
        Sampling(**fields)
