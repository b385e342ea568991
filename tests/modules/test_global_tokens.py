"""Tests run-time global tokens against one dense softmax over the same pairs."""

import functools
from collections.abc import Callable

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
from tests.attention.cells import quick
from tests.tolerances import assert_close

LENGTH = 70


ARRAYS = list(np.random.default_rng(0).normal(size=(6, 2, LENGTH, 2, 8)).astype(np.float32))


def marks(*rows: list[int]) -> np.ndarray:
    is_global = np.zeros((2, LENGTH), bool)
    for row, numbers in enumerate(rows):
        is_global[row, numbers] = True
    return is_global


PLACES = np.arange(LENGTH)
SEGMENTS = np.stack([np.ones(LENGTH), 1 + (PLACES >= 30) - 2 * (PLACES >= 65)]).astype(np.int32)
IS_GLOBAL = marks([0, 33, 34], [2, 40, 69])  # The last one is padding, so it is not global.


def dense(q, k, v, own_q, own_k, own_v, is_global: jax.Array, segments: jax.Array) -> jax.Array:
    """Computes global attention by one [L, L] mask.

    Ordinary queries read the window and the global keys; global queries have their own projections.
    """
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


def with_gradients(function: Callable) -> Callable:
    """Returns a program that computes gradients of a sum of the outputs, and the outputs, from arrays and
    global marks.
    """

    def total(arrays: list[jax.Array], is_global: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = function(*arrays, is_global, jnp.asarray(SEGMENTS))
        return jnp.sin(out).sum(), out

    return quick(jax.grad(total, has_aux=True))


by_pattern, by_definition = with_gradients(sparse), with_gradients(dense)


def test_equals_the_dense_definition_forward_and_backward():
    (gradients, out), (expected_gradients, expected) = (run(ARRAYS, IS_GLOBAL) for run in (by_pattern, by_definition))
    with using_mesh(make_mesh(MeshConfig(sequence=2), jax.devices()[:2])):
        split = with_gradients(sparse)(ARRAYS, IS_GLOBAL)
    assert_close(split, (gradients, out))
    assert_close(out, expected)
    assert_close(gradients, expected_gradients, gradient=True)


def test_without_global_tokens_it_is_the_pattern_alone():
    out, expected = (np.asarray(run(ARRAYS, marks())[1]) for run in (by_pattern, by_definition))
    assert_close(out, expected)
    assert not out[1, 65:].any()


def test_more_global_tokens_than_allowed_are_loud():
    out = quick(functools.partial(sparse, at_most=2))(*ARRAYS, IS_GLOBAL, SEGMENTS)
    assert np.isnan(out[0]).all() and np.isfinite(out[1]).all()


def test_other_mechanisms_are_refused():
    q = jnp.asarray(ARRAYS[0])
    tokens = GlobalTokens(jnp.asarray(IS_GLOBAL), q, q, q, at_most=4)
    with pytest.raises(NotImplementedError, match='global tokens need softmax attention over a pattern'):
        attend_with_global(q, q, q, tokens, LSH(), jnp.asarray(SEGMENTS), CallOptions())
