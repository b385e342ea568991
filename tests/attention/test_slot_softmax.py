"""Tests softmax within groups that recomputes its weights: values and gradients equal the plain formula's."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.slot_softmax import NO_PAIRS, PairMasks, attend_slots, attend_tokens_to_slots
from tests.attention.cells import quick
from tests.tolerances import assert_close

RATE = 0.3
SHAPE = (2, 3, 4, 5, 7)  # The shape has two axes of groups, one more axis, s and m.


def operands(dtype=jnp.float32) -> tuple[np.ndarray, ...]:
    return tuple(normal(seed, 2, 3, 4, *shape).astype(dtype) for seed, shape in enumerate([(5, 6), (7, 6), (7, 2)]))


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def masks() -> dict[str, PairMasks]:
    rng = np.random.default_rng(0)
    is_there, is_kept = rng.random(SHAPE) < 0.6, rng.random(SHAPE) < 0.7
    is_there[0, 0, 0, 1] = False  # This query has no slots.
    found = {'all': (), 'some': (is_there,), 'alike': (is_there[:1, :1],), 'both': (is_there, is_kept)}
    return {name: PairMasks(*map(jax.device_put, pairs)) if pairs else NO_PAIRS for name, pairs in found.items()}


def plain(query_GsK: jax.Array, key_GmK: jax.Array, value_GmX: jax.Array, pairs: PairMasks) -> jax.Array:
    logits = jnp.einsum('...sk,...mk->...sm', query_GsK, key_GmK, precision='highest')
    there = jnp.broadcast_to(True if pairs.is_there_Gsm is None else pairs.is_there_Gsm, SHAPE)
    weights = jnp.where(there, jax.nn.softmax(jnp.where(there, logits, -1e30), axis=-1), 0.0)
    weights = weights if pairs.is_kept_Gsm is None else jnp.where(pairs.is_kept_Gsm, weights / (1.0 - RATE), 0.0)
    return jnp.einsum('...sm,...mx->...sx', weights, value_GmX, precision='highest')


@pytest.mark.parametrize('name', ['all', 'some', 'alike', 'both'])
def test_values_and_gradients_are_those_of_the_formula(name: str):
    pairs, found = masks()[name], operands()
    rate = 0.0 if pairs.is_kept_Gsm is None else RATE
    cotangent = normal(3, *SHAPE[:-1], 2)
    read = both_ways(lambda *vectors: attend_slots(*vectors, pairs, rate))
    formula = both_ways(lambda *vectors: plain(*vectors, pairs))

    @quick
    def both(*vectors: jax.Array) -> tuple:
        return read(vectors, cotangent), formula(vectors, cotangent)

    (out, gradients), (expected, of_formula) = jax.device_get(both(*found))
    assert_close(out, expected)
    assert_close(gradients, of_formula, gradient=True)
    if name != 'all':
        assert not out[0, 0, 0, 1].any() and not gradients[0][0, 0, 0, 1].any()


def both_ways(compute: Callable) -> Callable:
    """Returns a function from vectors and a cotangent to the outputs and the gradients of the vectors."""

    def run(vectors: tuple[jax.Array, ...], cotangent: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        out, pull = jax.vjp(compute, *vectors)
        return out, pull(jnp.asarray(cotangent))

    return run


def test_tokens_of_whole_rows_read_the_slots_of_their_head():
    query_BLHK, key_BHRK, value_BHRK = normal(0, 2, 5, 3, 4), normal(1, 2, 3, 7, 4), normal(2, 2, 3, 7, 4)
    is_there_B11m = jax.device_put(np.array([1, 0, 1, 1, 0, 1, 1], bool)[None, None, None])

    @quick
    def both(query_BLHK: jax.Array, key_BHRK: jax.Array, value_BHRK: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = attend_tokens_to_slots(query_BLHK, key_BHRK, value_BHRK, PairMasks(is_there_B11m))
        logits = jnp.einsum('blhk,bhrk->bhlr', query_BLHK, key_BHRK, precision='highest') / 2.0
        weights = jax.nn.softmax(jnp.where(is_there_B11m, logits, -jnp.inf), axis=-1)
        return found, jnp.einsum('bhlr,bhrk->blhk', weights, value_BHRK, precision='highest')

    assert_close(*both(query_BLHK, key_BHRK, value_BHRK))


def test_no_weight_is_kept_for_the_backward_pass():
    pull = jax.eval_shape(lambda *vectors: jax.vjp(attend_slots, *vectors)[1], *operands())
    kept = {array.shape for array in jax.tree.leaves(pull)}
    assert kept and SHAPE not in kept


@pytest.mark.parametrize('name', ['all', 'both'])
def test_products_are_of_the_operands_dtype(name: str):
    pairs = masks()[name]

    def read(*vectors: jax.Array) -> jax.Array:
        return attend_slots(*vectors, pairs, 0.0 if name == 'all' else RATE)

    @quick
    def both(*vectors: jax.Array) -> tuple:
        exact, pull_exact = jax.vjp(read, *(x.astype(jnp.float32) for x in vectors))
        return both_ways(read)(vectors, exact), (exact, pull_exact(exact))

    (out, gradients), (exact, of_floats) = both(*operands(jnp.bfloat16))
    assert out.dtype == jnp.float32 and {gradient.dtype for gradient in gradients} == {jnp.dtype(jnp.bfloat16)}
    assert_close(out, exact, dtype=jnp.bfloat16)
    assert_close(gradients, of_floats, dtype=jnp.bfloat16, gradient=True)


@pytest.mark.parametrize('rate', [0.0, RATE])
def test_gradients_of_weights_near_1_cancel_in_16_bits(rate: str):
    """Both terms of a logit's gradient are rounded alike, so that bfloat16 is as accurate here as in a plain
    softmax.
    """
    query, key, value = (normal(seed, 4, n, 16) for seed, n in ((0, 32), (1, 24), (2, 24)))
    vectors = [x.astype(jnp.bfloat16) for x in (30 * query, key, value)]
    is_kept = jax.device_put(np.random.default_rng(3).random((4, 32, 24)) < 1.0 - rate) if rate else None

    def read(*vectors: jax.Array) -> jax.Array:
        return attend_slots(*vectors, PairMasks(None, is_kept), rate)

    cotangent = normal(4, 4, 32, 16)

    @quick
    def both(*vectors: jax.Array) -> tuple:
        exactly = tuple(x.astype(jnp.float32) for x in vectors)
        return both_ways(read)(vectors, cotangent)[1], both_ways(read)(exactly, cotangent)[1]

    for gradient, of_floats in zip(*jax.device_get(both(*vectors)), strict=True):
        error = np.linalg.norm(gradient.astype(np.float32) - of_floats) / np.linalg.norm(of_floats)
        assert error < 0.01  # The error is 0.05 or more where only one term is rounded.


def test_huge_logits_stay_finite():
    query = np.full((1, 1, 2), 1e18, np.float32)
    key, value = np.array([[[1e18, 0.0], [-1e18, 0.0]]], np.float32), np.array([[[1.0], [2.0]]], np.float32)

    @quick
    def run(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, tuple[jax.Array]]:
        out, pull = jax.vjp(lambda query: attend_slots(query, key, value), query)
        return out, pull(out)

    out, (gradient,) = jax.device_get(run(query, key, value))
    assert out.tolist() == [[[1.0]]] and np.isfinite(gradient).all()
