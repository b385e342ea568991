"""Softmax within groups whose weights are computed again: values and gradients are those of the plain formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.slot_softmax import NO_PAIRS, Pairs, read_by_tokens, read_slots
from tests.tolerances import assert_close

RATE = 0.3
SHAPE = (2, 3, 4, 5, 7)  # two axes of groups and another, s, m


def operands(dtype=jnp.float32) -> tuple[jax.Array, jax.Array, jax.Array]:
    query, key, value = (
        jax.random.normal(jax.random.key(seed), (2, 3, 4, n, 6)) for seed, n in ((0, 5), (1, 7), (2, 7))
    )
    return query.astype(dtype), key.astype(dtype), value[..., :7, :2].astype(dtype)


def masks() -> dict[str, Pairs]:
    rng = np.random.default_rng(0)
    is_there = jnp.asarray(rng.random(SHAPE) < 0.6).at[0, 0, 0, 1].set(False)  # a query without slots
    is_kept = jnp.asarray(rng.random(SHAPE) < 0.7)
    return {
        'all': NO_PAIRS,
        'some': Pairs(is_there),
        'alike': Pairs(is_there[:1, :1]),
        'both': Pairs(is_there, is_kept),
    }


def plain(query_GsK: jax.Array, key_GmK: jax.Array, value_GmX: jax.Array, pairs: Pairs) -> jax.Array:
    logits = jnp.einsum('...sk,...mk->...sm', query_GsK, key_GmK, precision='highest')
    there = jnp.broadcast_to(True if pairs.is_there_Gsm is None else pairs.is_there_Gsm, SHAPE)
    weights = jnp.where(there, jax.nn.softmax(jnp.where(there, logits, -1e30), axis=-1), 0.0)
    weights = weights if pairs.is_kept_Gsm is None else jnp.where(pairs.is_kept_Gsm, weights / (1.0 - RATE), 0.0)
    return jnp.einsum('...sm,...mx->...sx', weights, value_GmX, precision='highest')


@pytest.mark.parametrize('name', ['all', 'some', 'alike', 'both'])
def test_values_and_gradients_are_those_of_the_formula(name: str):
    pairs, found = masks()[name], operands()
    rate = 0.0 if pairs.is_kept_Gsm is None else RATE
    out, pull = jax.vjp(lambda *vectors: read_slots(*vectors, pairs, rate), *found)
    expected, pull_expected = jax.vjp(lambda *vectors: plain(*vectors, pairs), *found)
    assert_close(out, expected)
    cotangent = jax.random.normal(jax.random.key(3), out.shape)
    for gradient, of_formula in zip(pull(cotangent), pull_expected(cotangent), strict=True):
        assert_close(gradient, of_formula, gradient=True)
    if name != 'all':
        assert not out[0, 0, 0, 1].any() and not pull(cotangent)[0][0, 0, 0, 1].any()


def test_tokens_of_whole_rows_read_the_slots_of_their_head():
    query_BLHK, slots = jax.random.normal(jax.random.key(0), (2, 5, 3, 4)), (2, 3, 7, 4)
    key_BHRK, value_BHRK = (jax.random.normal(jax.random.key(seed), slots) for seed in (1, 2))
    is_there_B11m = jnp.asarray([1, 0, 1, 1, 0, 1, 1], bool)[None, None, None]
    found = read_by_tokens(query_BLHK, key_BHRK, value_BHRK, Pairs(is_there_B11m))
    logits = jnp.einsum('blhk,bhrk->bhlr', query_BLHK, key_BHRK, precision='highest') / 2.0
    weights = jax.nn.softmax(jnp.where(is_there_B11m, logits, -jnp.inf), axis=-1)
    assert_close(found, jnp.einsum('bhlr,bhrk->blhk', weights, value_BHRK, precision='highest'))


def test_no_weight_is_kept_for_the_backward_pass():
    _, pull = jax.vjp(read_slots, *operands())
    assert SHAPE not in {array.shape for array in jax.tree.leaves(pull)}


@pytest.mark.parametrize('name', ['all', 'both'])
def test_products_are_of_the_operands_dtype(name: str):
    pairs = masks()[name]

    def read(*vectors: jax.Array) -> jax.Array:
        return read_slots(*vectors, pairs, 0.0 if name == 'all' else RATE)

    out, pull = jax.vjp(read, *operands(jnp.bfloat16))
    assert out.dtype == jnp.float32 and {gradient.dtype for gradient in pull(out)} == {jnp.dtype(jnp.bfloat16)}
    exact, pull_exact = jax.vjp(read, *(x.astype(jnp.float32) for x in operands(jnp.bfloat16)))
    assert_close(out, exact, dtype=jnp.bfloat16)
    for gradient, of_floats in zip(pull(exact), pull_exact(exact), strict=True):
        assert_close(gradient.astype(jnp.float32), of_floats, dtype=jnp.bfloat16, gradient=True)


@pytest.mark.parametrize('rate', [0.0, RATE])
def test_gradients_of_weights_near_1_cancel_in_16_bits(rate: str):
    """Both terms of a logit's gradient are of one rounding: products of bfloat16 are as near as a softmax's own."""
    query, key, value = (jax.random.normal(jax.random.key(seed), (4, n, 16)) for seed, n in ((0, 32), (1, 24), (2, 24)))
    vectors = [x.astype(jnp.bfloat16) for x in (30.0 * query, key, value)]
    is_kept = jax.random.bernoulli(jax.random.key(3), 1.0 - rate, (4, 32, 24)) if rate else None

    def read(*vectors: jax.Array) -> jax.Array:
        return read_slots(*vectors, Pairs(None, is_kept), rate)

    out, pull = jax.vjp(read, *vectors)
    _, pull_exact = jax.vjp(read, *(x.astype(jnp.float32) for x in vectors))
    cotangent = jax.random.normal(jax.random.key(4), out.shape)
    for gradient, of_floats in zip(pull(cotangent), pull_exact(cotangent), strict=True):
        error = jnp.linalg.norm(gradient.astype(jnp.float32) - of_floats) / jnp.linalg.norm(of_floats)
        assert error < 0.01  # 0.05 and more where one term alone is rounded


def test_huge_logits_stay_finite():
    query = jnp.full((1, 1, 2), 1e18)
    key = jnp.asarray([[[1e18, 0.0], [-1e18, 0.0]]])
    out, pull = jax.vjp(lambda query: read_slots(query, key, jnp.asarray([[[1.0], [2.0]]])), query)
    assert out.tolist() == [[[1.0]]] and np.isfinite(pull(out)[0]).all()
