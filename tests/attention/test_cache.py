"""Tests caches: outputs equal the dense definition for every pattern, however the tokens are cut into pieces."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention import cache as caching
from efficient_attention.attention.attend import attend
from efficient_attention.attention.cache import (
    CacheSpec,
    NewTokens,
    beam_row_indices,
    decode,
    expand_to_beams,
    init_cache,
    reorder_beams,
    take_rows,
)
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.relative import Relative
from tests.attention.cells import quick
from tests.tolerances import assert_close

LENGTH = 48
PATTERNS = ['causal', 'causal & window(5)', 'causal & window(3, 4)', 'causal & block(8)', 'causal & block(6, 1)']
PATTERNS += ['sparse_fixed(8, 2)', 'sparse_strided(7)', 'causal & summary(8, 1) | causal & window(2)', 'block(1)']
PATTERNS += ['causal & longformer(4, 2)', 'causal & bigbird(4, 1)', 'causal - window(3)', 'causal & window(0)']
PATTERNS += ['causal & (global_tokens(1, 3) | window(1))', 'per_head(causal & window(3), causal & strided(5))']
FAVORS = ['favor(16, causal=True, chunk=8)', "favor(16, causal=True, kernel='relu')"]
RNG = jax.random.key(7)


def spec_of(text: str, length: int = LENGTH) -> CacheSpec:
    return CacheSpec(parse_mechanism(text), heads=4, key_heads=2, width=8, max_length=length)


@functools.cache
def arrays(dtype: str = 'float32') -> list[jax.Array]:
    """Returns query, key and value of two rows, with two query heads for each key head."""
    rng = np.random.default_rng(0)
    return [jax.device_put(rng.normal(size=(2, LENGTH, heads, 8)).astype(np.dtype(dtype))) for heads in (4, 2, 2)]


POSITIONS = jax.device_put(np.tile(np.arange(LENGTH, dtype=np.int32), (2, 1)))
ONES = jax.device_put(np.ones((2, LENGTH), np.int32))


@functools.partial(jax.jit, static_argnames=('spec', 'piece', 'bias'))
def in_pieces(
    spec: CacheSpec, piece: int, *new: jax.Array, bias: Any = None, relative: Relative | None = None
) -> tuple[jax.Array, caching.Cache]:
    """Returns the outputs of all tokens in `new`, read `piece` at a time, and the final cache."""

    def cut(x: jax.Array) -> jax.Array:
        return x.reshape(len(x), -1, piece, *x.shape[2:]).swapaxes(0, 1)

    def step(cache: caching.Cache, part: tuple[jax.Array, Any]) -> tuple[caching.Cache, jax.Array]:
        read, query = part
        by_distance = relative and dataclasses.replace(relative, query=query)
        out, cache = decode(spec, cache, NewTokens(*read), bias=bias, relative=by_distance)
        return cache, out

    start = init_cache(spec, 2, new[0].dtype, RNG)
    read = tuple(map(cut, new)), None if relative is None else cut(relative.query)
    cache, outs = jax.lax.scan(step, start, read)
    return outs.swapaxes(0, 1).reshape(new[0].shape), cache


CASES = [(1, text) for text in ('causal', 'causal & window(0)', 'sparse_fixed(8, 2)', FAVORS[0])]
# Each of these patterns combines several patterns, one for each head.
CASES += [(12, f'per_head({", ".join(texts)})') for texts in (PATTERNS[1:5], PATTERNS[5:9], PATTERNS[10:14])]
CASES += [(12, text) for text in ('causal & block(6, 1)', PATTERNS[-1], FAVORS[1])]


@pytest.mark.parametrize('piece, text', CASES)
def test_pieces_equal_all_at_once(piece: int, text: str):
    assert_close(*in_pieces_and_at_once(spec_of(text), piece))


def in_pieces_and_at_once(
    spec: CacheSpec, piece: int, segments: np.ndarray | None = None, **options: Any
) -> tuple[jax.Array, jax.Array]:
    """Returns the outputs of all tokens, by the cache and by the reference."""
    both = {} if segments is None else {'query_segments': segments, 'key_segments': segments}

    @quick
    def run(*new: jax.Array) -> tuple[jax.Array, jax.Array]:
        out, _ = in_pieces(spec, piece, *new, POSITIONS, ONES if segments is None else segments, **options)
        return out, attend(*new, spec.mechanism, rng=RNG, backend='reference', **both, **options)

    return run(*arrays())


@pytest.mark.parametrize('text', ['causal & window(5)', 'sparse_fixed(8, 2)', FAVORS[0]])
def test_segments_and_padding_are_honoured(text: str):
    """Rows hold packed texts, with padding between, before and after them."""
    starts = np.array([[0, 17, 20, 44], [5, 21, 29, 40]])[:, :, None]
    segments = np.array([0, 1, 0, 2, 0], np.int32)[(np.arange(LENGTH) >= starts).sum(axis=1)]
    out, expected = in_pieces_and_at_once(spec_of(text), 6, segments)
    assert_close(out, expected)
    assert not np.asarray(out)[segments == 0].any()


def slopes(query: jax.Array, key: jax.Array) -> jax.Array:
    """Computes a bias for each head from the positions of query and key."""
    rates = jnp.asarray([0.1, 0.2, 0.4, 0.8])[None, :, None, None]
    return rates * (key - query).astype(jnp.float32) + jnp.sin(query.astype(jnp.float32) + key.astype(jnp.float32))


@pytest.mark.parametrize('piece, text', [(1, 'causal & window(5)'), (12, 'sparse_fixed(8, 2)')])
def test_a_bias_sees_the_positions_of_what_the_slots_hold(piece: int, text: str):
    assert_close(*in_pieces_and_at_once(spec_of(text), piece, bias=slopes))


def test_a_bias_and_a_relative_term_are_both_added():
    assert_close(*in_pieces_and_at_once(spec_of('causal & window(11)'), 12, bias=slopes, relative=relative_term()))


def test_sums_of_features_refuse_a_relative_term():
    with pytest.raises(NotImplementedError, match='^favor has no relative term$'):
        decode(spec_of(FAVORS[0]), None, NewTokens(*arrays(), POSITIONS, ONES), relative=relative_term())


def relative_term() -> Relative:
    rng = np.random.default_rng(1)
    query, table = (rng.normal(size=shape).astype(np.float32) for shape in ((2, LENGTH, 4, 8), (9, 4, 8)))
    return Relative(jax.device_put(query), jax.device_put(table))


@pytest.mark.parametrize('text', ['causal & window(5)', FAVORS[0], 'linear(causal=True)'])
def test_rows_of_a_cache_are_taken_in_any_order(text: str):
    """State that all rows share, such as FAVOR's random projection, stays unchanged."""
    spec, rows = spec_of(text), jnp.asarray([1, 1, 0])
    new = NewTokens(*arrays(), POSITIONS, ONES)

    @quick
    def both(new: NewTokens) -> Any:
        first, last = (NewTokens(*(x[:, part] for x in new)) for part in (slice(0, 9), slice(9, 10)))
        cache = decode(spec, init_cache(spec, 2, jnp.float32, RNG), first)[1]
        expected, after = decode(spec, cache, last)
        found = decode(spec, take_rows(cache, rows), NewTokens(*(x[rows] for x in last)))
        return found, (expected[rows], take_rows(after, rows))

    assert_close(*both(new))


@pytest.mark.parametrize(
    'text, dtype',
    [('causal', 'bfloat16'), *((text, 'float32') for text in ('causal & window(3)', 'sparse_fixed(4, 1)', FAVORS[0]))],
)
def test_hypotheses_that_change_places_read_what_they_come_from(text: str, dtype: str):
    """The outputs equal those with copied caches: two prompts of unequal length, three hypotheses each, in random
    order.
    """
    spec, segments = spec_of(text), np.ones((2, LENGTH), np.int32)
    segments[1, 10:12] = 0
    rng = np.random.default_rng(0)
    parents_tBK = rng.integers(0, 3, (12, 2, 3)).astype(np.int32)
    noise_tb11K = rng.normal(size=(12, 6, 1, 1, 8)).astype(np.dtype(dtype))
    lengths_b = np.array([12, 12, 12, 10, 10, 10], np.int32)
    bias = slopes if spec.mechanism.capabilities.has_logits else None

    def outputs(new: NewTokens, is_shared: bool) -> jax.Array:
        prompt, texts = (NewTokens(*(x[:, part] for x in new)) for part in (slice(0, 12), slice(12, 24)))
        cache = decode(spec, init_cache(spec, 2, dtype, RNG), prompt)[1]
        first = jnp.repeat(jnp.arange(2), 3)
        cache = expand_to_beams(cache, 3) if is_shared else take_rows(cache, first)

        def step(cache: Any, read: Any) -> Any:
            number, parents_BK, noise, token = read
            vectors = (x[first][:, None] + noise for x in token[:3])
            own = NewTokens(*vectors, (lengths_b + number)[:, None], jnp.ones((6, 1), jnp.int32))
            out, cache = decode(spec, cache, own, bias=bias)
            return reorder_beams(cache, parents_BK) if is_shared else take_rows(
                cache, beam_row_indices(parents_BK)
            ), out

        tokens = NewTokens(*(x.swapaxes(0, 1) for x in texts))
        return jax.lax.scan(step, cache, (jnp.arange(12), parents_tBK, noise_tb11K, tokens))[1]

    new = NewTokens(*arrays(dtype), POSITIONS, segments)
    assert_close(*quick(lambda new: (outputs(new, True), outputs(new, False)))(new))


def test_hypotheses_go_on_by_one_token():
    spec, new = spec_of('causal'), NewTokens(*arrays(), POSITIONS, ONES)
    cache = quick(lambda: expand_to_beams(init_cache(spec, 2, jnp.float32), 1))()
    with pytest.raises(ValueError, match='beams take one new token at a time, and 2 are given'):
        decode(spec, cache, NewTokens(*(x[:, :2] for x in new)))
