"""Tests that padding changes no result even where it holds NaN: with every option, in decoding, and in cached keys.

test_registry.py tests every mechanism without options.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend, attention_weights
from efficient_attention.attention.cache import CacheSpec, NewTokens, decode, init_cache
from efficient_attention.attention.cross_attention_cache import (
    KeySequence,
    NewQueries,
    attend_cross_cached,
    cache_cross_keys,
)
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.relative import Relative
from efficient_attention.attention.request import without_padding
from tests.attention.cells import drawn_operands, quick

B, L, H, K = 2, 12, 2, 8
SEGMENTS = np.array([[1] * 5 + [2] * 5 + [0] * 2, [0] * 3 + [1] * 9], np.int32)
ONE_TEXT = np.minimum(SEGMENTS, 1)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def spoiled(x: np.ndarray, segments: np.ndarray = SEGMENTS) -> np.ndarray:
    """Returns the array with NaN at the places of padding; the first two axes are row and position."""
    return np.where((segments == 0).reshape(B, L, *(1,) * (x.ndim - 2)), np.float32(np.nan), x)


def vectors() -> tuple[np.ndarray, ...]:
    return tuple(normal(seed, B, L, H, K) for seed in range(3))


def assert_same(left: Any, right: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, left, right)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(left))


def test_padding_becomes_zeros_with_a_gradient_of_zero():
    x = normal(0, B, L, H)

    @quick
    def run(x: jax.Array) -> tuple[jax.Array, tuple[jax.Array]]:
        out, pull = jax.vjp(lambda x: without_padding(x, jnp.asarray(SEGMENTS)), x)
        return out, pull(jnp.ones_like(out))

    out, (gradient,) = run(spoiled(x))
    np.testing.assert_array_equal(out, np.where(SEGMENTS[..., None] == 0, 0.0, x))
    np.testing.assert_array_equal(gradient, np.broadcast_to(SEGMENTS[..., None] != 0, x.shape))


@pytest.mark.parametrize(
    ('text', 'backend', 'words'),
    [
        ('causal', 'dense', 'relative bias lse'),
        ('full', 'blocked', 'relative bias lse'),
        ('full', 'reference', 'relative bias lse'),
        ('local_p(3)', 'auto', 'centres'),
    ],
)
def test_options_that_differ_by_token(text: str, backend: str, words: str):
    """The second query of a relative term, a bias and the centres also hold NaN at padding."""
    mechanism, named = parse_mechanism(text), words.split()

    @quick
    def run(arrays: tuple, second: jax.Array, table: jax.Array, bias: jax.Array, centres: jax.Array) -> Any:
        def call(arrays: tuple, second: jax.Array, table: jax.Array, bias: jax.Array, centres: jax.Array) -> Any:
            options = {'relative': Relative(second, table, first=-3), 'bias': bias, 'centres': centres}
            options = {name: option for name, option in options.items() if name in named}
            options |= {'query_segments': SEGMENTS, 'key_segments': SEGMENTS, 'return_lse': 'lse' in named}
            return attend(*arrays, mechanism, backend=backend, **options)

        out, pull = jax.vjp(call, arrays, second, table, bias, centres)
        return out, pull(jax.tree.map(jnp.cos, out))

    arrays, second, table = vectors(), normal(3, B, L, H, K), normal(4, 7, H, K)
    bias, centres = normal(5, B, H, L, L), 1 / (1 + np.exp(-normal(6, B, L, H)))
    is_masked = (SEGMENTS[:, None, :, None] == 0) | (SEGMENTS[:, None, None, :] == 0)
    bad = (
        jax.tree.map(spoiled, (arrays, second)),
        table,
        np.where(is_masked, np.float32(np.nan), bias),
        spoiled(centres),
    )
    assert_same(run(*bad[0], *bad[1:]), run(arrays, second, table, bias, centres))


@pytest.mark.parametrize('text', ['nystrom(4)', 'induced(3)', 'linformer(3, 12)'])
def test_weights(text: str):
    mechanism, (q, k, _) = parse_mechanism(text), vectors()
    options = {'query_segments': ONE_TEXT, 'key_segments': ONE_TEXT, 'learned': drawn_operands(mechanism, H, K)}
    run = quick(lambda q, k: attention_weights(q, k, mechanism, **options))
    assert_same(run(spoiled(q), spoiled(k)), run(q, k))


@pytest.mark.parametrize('text', ['full', 'linear', 'induced(3)'])
def test_keys_that_stay_for_all_queries(text: str):
    mechanism = parse_mechanism(text)

    @quick
    def run(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        segments, positions = jnp.asarray(ONE_TEXT), jnp.broadcast_to(jnp.arange(L), (B, L))
        fixed = cache_cross_keys(mechanism, KeySequence(k, v, segments), learned=drawn_operands(mechanism, H, K))
        return attend_cross_cached(mechanism, fixed, NewQueries(q, segments, positions))[0]

    arrays = vectors()
    assert_same(run(*map(spoiled, arrays)), run(*arrays))


@pytest.mark.parametrize('text', ['causal', 'linear(causal=True, chunk=4)', 'sparsemax(causal)'])
def test_prompts(text: str):
    spec, (q, k, v) = CacheSpec(parse_mechanism(text), H, H, K, L), vectors()

    @quick
    def run(*arrays: jax.Array) -> Any:
        positions, cache = jnp.broadcast_to(jnp.arange(L), (B, L)), init_cache(spec, B, 'float32')
        return decode(spec, cache, NewTokens(*arrays, positions, jnp.asarray(ONE_TEXT)))

    assert_same(run(*map(spoiled, (q, k, v))), run(q, k, v))
