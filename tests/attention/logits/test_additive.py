"""Tests additive scores against a float64 loop, in every form, without and with all that can be added to logits."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend, attention_weights
from efficient_attention.attention.cache import CacheSpec, NewTokens, decode, expand_to_beams, init_cache, reorder_beams
from efficient_attention.attention.checks import check_additive
from efficient_attention.attention.cross_attention_cache import (
    KeySequence,
    NewQueries,
    attend_cross_cached,
    cache_cross_keys,
)
from efficient_attention.attention.logits import query_chunks as logits_serve
from efficient_attention.attention.logits.definition import additive_logits
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.request import CallOptions
from tests.attention import contract
from tests.attention.cells import inputs, quick
from tests.tolerances import assert_close

L, H, K = 13, 4, 8
VECTOR = jnp.asarray(np.random.default_rng(3).normal(size=(H, K)), jnp.float32)


def by_loop(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Returns the additive logits v tanh(q + k) of one row as [H, L, M]."""
    (queries, heads, _), (keys, groups, _) = query.shape, key.shape
    logits = np.zeros((heads, queries, keys))
    for h, i, j in itertools.product(range(heads), range(queries), range(keys)):
        logits[h, i, j] = np.asarray(VECTOR, np.float64)[h] @ np.tanh(query[i, h] + key[j, h // (heads // groups)])
    return logits


def test_scores_are_those_of_a_loop():
    (query, key, _), _ = inputs(L, 'cross grouped')
    rows = [by_loop(*(np.asarray(x[row], np.float64) for x in (query, key))) for row in range(2)]
    assert_close(quick(additive_logits)(query, key, VECTOR), np.stack(rows))


def test_weights_are_the_softmax_of_the_scores():
    (query, key, _), extra = inputs(L, 'segments')
    causal = parse_mechanism('causal')
    weights = np.asarray(quick(lambda *x: attention_weights(*x, causal, additive=VECTOR, **extra))(query, key))
    for row in range(2):
        allowed = np.tril(
            contract.same_segment(*(np.asarray(extra[f'{side}_segments'][row]) for side in ('query', 'key')))
        )
        logits = by_loop(*(np.asarray(x[row], np.float64) for x in (query, key)))
        assert_close(weights[row], contract.softmax(logits, allowed)[0])


CELLS = ['plain', 'segments padding lse', 'cross grouped dropout', 'offset bias', 'row positions function bias padding']


def results(text: str, backend: str, option: str, length: int) -> Any:
    arrays, extra = inputs(length, option)
    bias = extra.pop('bias', None)

    def loss(vector: jax.Array, query: jax.Array, key: jax.Array, value: jax.Array, bias: Any) -> Any:
        mechanism = parse_mechanism(text)
        out = attend(query, key, value, mechanism, additive=vector, backend=backend, bias=bias, **extra)
        outs = out if isinstance(out, tuple) else (out,)
        return sum(jnp.sin(jnp.where(x > -1e30, x, 0.0)).sum() for x in outs), outs

    return quick(jax.grad(loss, (0, 1, 2, 3, 4), has_aux=True))(VECTOR, *arrays, bias)


@pytest.mark.parametrize('is_cut', [False, True])
@pytest.mark.parametrize('option', CELLS)
def test_every_form_is_the_definition(option: str, is_cut: bool, monkeypatch: pytest.MonkeyPatch):
    """All queries at once and five queries at a time give the definition's outputs and gradients."""
    text = 'full' if 'cross' in option else 'causal'
    expected = results(text, 'reference', option, L)
    keys = inputs(L, option)[0][1].shape[1]
    if is_cut:
        monkeypatch.setattr(logits_serve, 'PART_BYTES', 5 * 2 * H * keys * K * 4)
    gradients, outs = results(text, 'auto', option, L)
    assert_close(outs, expected[1])
    assert_close(gradients, expected[0], gradient=True)


def test_the_scores_of_all_pairs_never_exist_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logits_serve, 'PART_BYTES', 2**19)
    (query, key, value), _ = inputs(256, batch=1)

    def loss(*arrays: jax.Array) -> jax.Array:
        return attend(*arrays, parse_mechanism('full'), additive=VECTOR).sum()

    memory = jax.jit(jax.grad(loss, (0, 1, 2))).lower(query, key, value).compile().memory_analysis()
    assert memory.temp_size_in_bytes < H * 256 * 256 * K * 4 / 4


@pytest.mark.parametrize('backend', ['blocked', 'jax_nn', 'cudnn'])
def test_other_backends_refuse(backend: str):
    (query, key, value), _ = inputs(L)
    line = 'no additive scores|GPU on this machine'
    with pytest.raises(NotImplementedError, match=line):
        attend(query, key, value, parse_mechanism('full'), additive=VECTOR, backend=backend)


@pytest.mark.parametrize(
    'text, vector, line',
    [
        ('linear', VECTOR, 'Linear.* has no logits, so it takes no additive scores'),
        ('full', VECTOR[:2], r'additive has shape \(2, 8\); it must be \[H, K\] = \(4, 8\)'),
        ('full', VECTOR.astype(int), 'additive is of type int32; it must be an array of floating-point numbers'),
    ],
)
def test_what_does_not_fit_is_named(text: str, vector: jax.Array, line: str):
    with pytest.raises(ValueError, match=line):
        check_additive(inputs(L)[0][0], parse_mechanism(text), vector)


def test_fixed_keys_and_caches_give_the_same():
    """Cross-attention reads fixed keys; a cached text is continued piece by piece, then as two hypotheses a row."""
    arrays, _ = inputs(L)
    ones, places = np.ones((2, L), np.int32), np.arange(L, dtype=np.int32)[None].repeat(2, 0)
    full, causal = parse_mechanism('full'), parse_mechanism('causal')

    @quick
    def from_fixed_keys(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        segments, positions = jnp.asarray(ones), jnp.asarray(places)
        fixed = cache_cross_keys(full, KeySequence(key, value, segments))
        new = NewQueries(query, segments, positions)
        found, _ = attend_cross_cached(full, fixed, new, CallOptions(additive=VECTOR))
        return found, attend(query, key, value, full, additive=VECTOR)

    assert_close(*from_fixed_keys(*arrays))
    spec, outs = CacheSpec(causal, H, H, K, L), []
    step = quick(lambda cache, new: decode(spec, cache, new, additive=VECTOR))
    follow = quick(reorder_beams)
    cache, numbers = init_cache(spec, 2, 'float32'), [np.asarray(x) for x in (*arrays, places, ones)]
    for part in (slice(0, 5), slice(5, 10)):
        out, cache = step(cache, NewTokens(*(x[:, part] for x in numbers)))
        outs.append(out)
    cache = expand_to_beams(cache, 2)
    for place in range(10, L):
        out, cache = step(cache, NewTokens(*(x[:, place : place + 1].repeat(2, 0) for x in numbers)))
        outs.append(np.asarray(out)[::2])
        cache = follow(cache, np.asarray([[1, 0], [0, 0]], np.int32))
    expected = quick(lambda *x: attend(*x, causal, additive=VECTOR))(*arrays)
    assert_close(np.concatenate(outs, axis=1), expected)
