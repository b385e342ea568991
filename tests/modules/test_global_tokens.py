"""Run-time global tokens against one dense softmax over the same pairs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.device_mesh import using_mesh
from efficient_attention.attention.lsh.definition import LSH
from efficient_attention.attention.patterns import Window
from efficient_attention.attention.request import CallOptions
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.models.sharding import make_mesh
from efficient_attention.modules.global_tokens import GlobalTokens, attend_with_global
from tests.tolerances import assert_close

LENGTH = 70


def arrays() -> list[jax.Array]:
    return [jax.random.normal(key, (2, LENGTH, 2, 8)) for key in jax.random.split(jax.random.key(0), 6)]


def marks(*rows: list[int]) -> jax.Array:
    is_global = np.zeros((2, LENGTH), bool)
    for row, numbers in enumerate(rows):
        is_global[row, numbers] = True
    return jnp.asarray(is_global)


SEGMENTS = jnp.asarray(
    np.stack([np.ones(LENGTH), 1 + (np.arange(LENGTH) >= 30) - 2 * (np.arange(LENGTH) >= 65)]), jnp.int32
)
IS_GLOBAL = marks([0, 33, 34], [2, 40, 69])  # the last one is padding, so it is not global


def dense(q, k, v, own_q, own_k, own_v, is_global: jax.Array, segments: jax.Array) -> jax.Array:
    """Ordinary rows over window and global keys, global rows with their own projections, by one [L, L] mask."""
    near = abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH)) <= 3
    same = (segments[:, :, None] == segments[:, None]) & (segments[:, None] != 0)
    is_global = is_global & (segments != 0)

    def softmax(q, k, v, mask):
        logits = jnp.einsum('BLHK,BMHK->BHLM', q, k) / jnp.sqrt(8.0)
        weights = jax.nn.softmax(jnp.where(mask[:, None], logits, -1e30), axis=-1)
        return jnp.einsum('BHLM,BMHK->BLHK', jnp.where(mask[:, None], weights, 0.0), v)

    ordinary = softmax(q, k, v, same & (jnp.asarray(near)[None] | is_global[:, None]))
    return jnp.where(is_global[:, :, None, None], softmax(own_q, own_k, own_v, same), ordinary)


def sparse(q, k, v, own_q, own_k, own_v, is_global: jax.Array, segments: jax.Array, at_most: int = 4) -> jax.Array:
    tokens = GlobalTokens(is_global, own_q, own_k, own_v, at_most=at_most)
    return attend_with_global(q, k, v, tokens, Softmax(Window(3)), segments, CallOptions(backend='blocked'))


def test_equals_the_dense_definition_forward_and_backward():
    def run(function):
        loss = jax.value_and_grad(lambda *x: jnp.sin(function(*x, IS_GLOBAL, SEGMENTS)).sum(), argnums=tuple(range(6)))
        return jax.jit(loss)(*arrays())

    (value, gradients), (expected, expected_gradients) = run(sparse), run(dense)
    with using_mesh(make_mesh(MeshConfig(sequence=2), jax.devices()[:2])):
        split = run(sparse)
    assert_close(split, (value, gradients))
    assert_close(value, expected)
    assert_close(gradients, expected_gradients, gradient=True)


def test_without_global_tokens_it_is_the_pattern_alone():
    out, expected = (jax.jit(function)(*arrays(), marks(), SEGMENTS) for function in (sparse, dense))
    assert_close(out, expected)
    assert not out[1, 65:].any()


def test_more_global_tokens_than_allowed_are_loud():
    out = jax.jit(sparse, static_argnames='at_most')(*arrays(), IS_GLOBAL, SEGMENTS, at_most=2)
    assert jnp.isnan(out[0]).all() and jnp.isfinite(out[1]).all()


def test_other_mechanisms_are_refused():
    q = arrays()[0]
    tokens = GlobalTokens(IS_GLOBAL, q, q, q, at_most=4)
    with pytest.raises(NotImplementedError, match='global tokens need softmax attention over a pattern'):
        attend_with_global(q, q, q, tokens, LSH(), SEGMENTS, CallOptions())
