"""The sort of blocks: what its logits come from, noise that goes with the row, and how near balancing comes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.sinkhorn.sorting import balance, block_vectors, gumbel_noise, in_blocks, sort_logits
from tests.attention.cells import quick
from tests.tolerances import assert_close

LOGITS = 2.0 * jax.random.normal(jax.random.key(0), (2, 3, 7, 7))
ALL = jnp.ones((1, 7), bool)


def shares(iterations: int, is_there: jax.Array = ALL) -> np.ndarray:
    return np.exp(np.asarray(balance(LOGITS, is_there, iterations), np.float64))


def test_rows_and_columns_sum_to_one_the_nearer_the_more_iterations():
    far = []
    for iterations in (1, 2, 4, 8, 16, 64):
        found = shares(iterations)
        np.testing.assert_allclose(found.sum(-2), 1.0, atol=1e-5)  # columns come last
        far.append(np.abs(found.sum(-1) - 1.0).max())
    assert far == sorted(far, reverse=True) and far[0] > 0.1 and far[-1] < 1e-4


def test_blocks_that_are_not_there_change_nothing():
    is_there = jnp.asarray([[True] * 4 + [False] * 3])
    found = shares(3, is_there)
    np.testing.assert_allclose(found[..., :4, :4], np.exp(balance(LOGITS[..., :4, :4], ALL[:, :4], 3)), rtol=1e-5)
    assert not found[..., 4:].any() and not found[..., 4:, :4].any()
    assert np.isfinite(balance(LOGITS, jnp.zeros((1, 7), bool), 3)).all()


@pytest.mark.parametrize('is_there', [ALL, jnp.asarray([[True] * 4 + [False] * 3])], ids=['all', 'some'])
def test_the_gradient_is_that_of_dividing_by_sums(is_there: jax.Array):
    """Against S = exp(R) divided by its sums, row by row and then column by column."""
    number = jnp.sin(jnp.arange(LOGITS.size, dtype=jnp.float32)).reshape(LOGITS.shape)
    both = is_there[:, None, :, None] & is_there[:, None, None, :]

    def divided(logits: jax.Array) -> jax.Array:
        found = jnp.where(both, jnp.exp(logits), 0.0)
        for _ in range(3):
            for axis in (-1, -2):
                total = found.sum(axis, keepdims=True)
                found = found / jnp.where(total > 0.0, total, 1.0)
        return (found * number).sum()

    def balanced(logits: jax.Array) -> jax.Array:
        return (jnp.where(both, jnp.exp(balance(logits, is_there, 3)), 0.0) * number).sum()

    (found, gradient), (expected, its) = (quick(jax.value_and_grad(fn))(LOGITS) for fn in (balanced, divided))
    assert_close(found, expected)
    assert_close(gradient, its, gradient=True)


def test_logits_far_apart_stay_finite():
    found = balance(1e4 * LOGITS, ALL, 8)
    assert np.isfinite(found).all() and np.isfinite(jax.grad(lambda x: balance(x, ALL, 8).sum())(1e4 * LOGITS)).all()


def test_block_vectors_are_sums_and_in_the_causal_form_of_tokens_up_to_a_blocks_first():
    x = jax.random.normal(jax.random.key(1), (2, 12, 3, 4))
    blocks = in_blocks(x, 4)
    assert_close(blocks[:, 1, 2], x[:, 8:, 1])
    assert_close(block_vectors(blocks, causal=False)[:, 1, 2], x[:, 8:, 1].sum(1))
    for i in range(3):
        assert_close(block_vectors(blocks, causal=True)[:, :, i], x[:, : 4 * i + 1].sum(1))
    logits = sort_logits(block_vectors(blocks, causal=False), jnp.ones((3, 4, 5)).at[:, :, 1].set(0.0))
    assert logits.shape == (2, 3, 3, 3) and not logits[..., 1].any() and logits[..., 2].all()


def test_noise_goes_with_key_row_and_head_and_not_with_the_length():
    heads, rng = jnp.arange(3), jax.random.key(4)
    noise = gumbel_noise(rng, 2, heads, 7)
    np.testing.assert_array_equal(noise, gumbel_noise(rng, 2, heads, 7))
    np.testing.assert_array_equal(noise[:, :, :4, :4], gumbel_noise(rng, 2, heads, 4))
    np.testing.assert_array_equal(noise[:, 1:], gumbel_noise(rng, 2, heads + 1, 7)[:, :2])
    rows = jax.vmap(lambda row: jax.random.fold_in(rng, row))(jnp.arange(2))
    np.testing.assert_array_equal(noise, gumbel_noise(rows, 2, heads, 7))
    np.testing.assert_array_equal(noise[1:], gumbel_noise(rows[1:], 1, heads, 7))
    assert (
        len(np.unique(noise)) == noise.size and jnp.abs(noise - gumbel_noise(jax.random.key(5), 2, heads, 7)).min() > 0
    )
    many = np.asarray(gumbel_noise(rng, 4, heads, 64), np.float64)
    np.testing.assert_allclose([many.mean(), many.var()], [0.5772, np.pi**2 / 6], rtol=3e-2)
