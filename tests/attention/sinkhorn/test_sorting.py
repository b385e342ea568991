"""Tests the sort of blocks: its logits, noise that stays with its row, and how well iterations balance the shares."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.sinkhorn.sorting import (
    block_vectors,
    gumbel_noise,
    sinkhorn_balance,
    sort_logits,
    split_into_blocks,
)
from tests.attention.cells import quick
from tests.tolerances import assert_close

LOGITS = 2.0 * np.random.default_rng(0).normal(size=(2, 3, 7, 7)).astype(np.float32)
ALL = np.ones((1, 7), bool)
balanced = jax.jit(sinkhorn_balance, static_argnums=2)
noise_of = jax.jit(gumbel_noise, static_argnums=(1, 3))


def shares(iterations: int, is_there: np.ndarray = ALL) -> np.ndarray:
    return np.exp(np.asarray(balanced(LOGITS, is_there, iterations), np.float64))


def test_rows_and_columns_sum_to_one_the_nearer_the_more_iterations():
    far = []
    for iterations in (1, 2, 4, 8, 16, 64):
        found = shares(iterations)
        np.testing.assert_allclose(found.sum(-2), 1.0, atol=1e-5)  # Columns are divided last.
        far.append(np.abs(found.sum(-1) - 1.0).max())
    assert far == sorted(far, reverse=True) and far[0] > 0.1 and far[-1] < 1e-4


def test_blocks_that_are_not_there_change_nothing():
    is_there = np.asarray([[True] * 4 + [False] * 3])
    found = shares(3, is_there)
    np.testing.assert_allclose(found[..., :4, :4], np.exp(balanced(LOGITS[..., :4, :4], ALL[:, :4], 3)), rtol=1e-5)
    assert not found[..., 4:].any() and not found[..., 4:, :4].any()
    assert np.isfinite(balanced(LOGITS, np.zeros((1, 7), bool), 3)).all()


@pytest.mark.parametrize('is_there', [ALL, np.asarray([[True] * 4 + [False] * 3])], ids=['all', 'some'])
def test_the_gradient_is_that_of_dividing_by_sums(is_there: np.ndarray):
    """Compares with the gradient of S = exp(R), divided by its sums row by row and then column by column."""
    number = np.sin(np.arange(LOGITS.size, dtype=np.float32)).reshape(LOGITS.shape)
    both = is_there[:, None, :, None] & is_there[:, None, None, :]

    def divided(logits: jax.Array) -> jax.Array:
        found = jnp.where(both, jnp.exp(logits), 0.0)
        for _ in range(3):
            for axis in (-1, -2):
                total = found.sum(axis, keepdims=True)
                found = found / jnp.where(total > 0.0, total, 1.0)
        return (found * number).sum()

    def by_logarithms(logits: jax.Array) -> jax.Array:
        return (jnp.where(both, jnp.exp(sinkhorn_balance(logits, jnp.asarray(is_there), 3)), 0.0) * number).sum()

    both_ways = quick(lambda x: [jax.value_and_grad(fn)(x) for fn in (by_logarithms, divided)])
    (found, gradient), (expected, its) = both_ways(LOGITS)
    assert_close(found, expected)
    assert_close(gradient, its, gradient=True)


def test_logits_far_apart_stay_finite():
    total = lambda x: (sinkhorn_balance(x, jnp.asarray(ALL), 8).sum(), sinkhorn_balance(x, jnp.asarray(ALL), 8))  # noqa: E731
    gradient, found = quick(jax.grad(total, has_aux=True))(np.float32(1e4) * LOGITS)
    assert np.isfinite(found).all() and np.isfinite(gradient).all()


def test_block_vectors_are_sums_and_in_the_causal_form_of_tokens_up_to_a_blocks_first():
    x = np.random.default_rng(1).normal(size=(2, 12, 3, 4)).astype(np.float32)
    sort = np.ones((3, 4, 5), np.float32)
    sort[:, :, 1] = 0.0

    @quick
    def all_of(x: jax.Array) -> tuple:
        blocks = split_into_blocks(x, 4)
        sums = block_vectors(blocks, causal=False)
        return blocks, sums, block_vectors(blocks, causal=True), sort_logits(sums, jnp.asarray(sort))

    blocks, sums, causal_sums, logits = jax.device_get(all_of(x))
    assert_close(blocks[:, 1, 2], x[:, 8:, 1])
    assert_close(sums[:, 1, 2], x[:, 8:, 1].sum(1))
    for i in range(3):
        assert_close(causal_sums[:, :, i], x[:, : 4 * i + 1].sum(1))
    assert logits.shape == (2, 3, 3, 3) and not logits[..., 1].any() and logits[..., 2].all()


def test_noise_goes_with_key_row_and_head_and_not_with_the_length():
    heads, rng = np.arange(3), jax.random.key(4)
    noise = np.asarray(noise_of(rng, 2, heads, 7))
    np.testing.assert_array_equal(noise, quick(lambda rng: gumbel_noise(rng, 2, jnp.arange(3), 7))(rng))
    np.testing.assert_array_equal(noise[:, :, :4, :4], noise_of(rng, 2, heads, 4))
    np.testing.assert_array_equal(noise[:, 1:], np.asarray(noise_of(rng, 2, heads + 1, 7))[:, :2])
    rows = jax.vmap(lambda row: jax.random.fold_in(rng, row))(np.arange(2))
    np.testing.assert_array_equal(noise, noise_of(rows, 2, heads, 7))
    np.testing.assert_array_equal(noise[1:], noise_of(rows[1:], 1, heads, 7))
    assert len(np.unique(noise)) == noise.size
    assert np.abs(noise - noise_of(jax.random.key(5), 2, heads, 7)).min() > 0
    many = np.asarray(noise_of(rng, 4, heads, 64), np.float64)
    np.testing.assert_allclose([many.mean(), many.var()], [0.5772, np.pi**2 / 6], rtol=3e-2)
