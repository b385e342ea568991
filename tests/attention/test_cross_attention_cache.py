"""Tests cross-attention to fixed keys: their cache gives the output of `attend`, for any number of query rows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.cross_attention_cache import (
    CrossAttentionKeys,
    KeySequence,
    NewQueries,
    attend_cross_cached,
    cache_cross_keys,
)
from efficient_attention.attention.draw_operands import draw_operands
from efficient_attention.attention.features.cross_attention_sums import CrossAttentionSums
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.request import CallOptions
from tests.attention.cells import quick
from tests.tolerances import assert_close

RNG = jax.random.key(5)
QUERY, KEY, VALUE = (
    jax.device_put(np.random.default_rng(seed).normal(size=shape).astype(np.float32))
    for seed, shape in enumerate([(6, 3, 4, 6), (2, 7, 2, 6), (2, 7, 2, 6)])
)
SEGMENTS = jax.device_put(np.array([[1, 1, 1, 1, 1, 0, 0], [1] * 7], np.int32))
QUERY_SEGMENTS = jax.device_put(np.array([[1] * 3] * 4 + [[1, 1, 0], [1] * 3], np.int32))
POSITIONS = jax.device_put(np.arange(18, dtype=np.int32).reshape(6, 3) % 5)
NEW = NewQueries(QUERY, QUERY_SEGMENTS, POSITIONS)
SLOTS = ('linformer(4, 9)', 'linformer(4, 7, tied=False, by_head=True)', 'induced(3)')
KEPT = dict.fromkeys(SLOTS, CrossAttentionKeys) | {
    'full': CrossAttentionKeys,
    'window(2)': CrossAttentionKeys,
    'favor(16)': CrossAttentionSums,
    'linear': CrossAttentionSums,
}


@pytest.mark.parametrize(
    'text, has_positions',
    [
        *((text, False) for text in SLOTS),
        ('full', False),
        ('window(2)', False),
        ('window(2)', True),
        ('favor(16)', True),
        ('linear', False),
    ],
)
def test_three_rows_of_queries_read_one_row_of_keys(text: str, has_positions: bool):
    mechanism = parse_mechanism(text)
    key_positions = jax.device_put(np.arange(7, dtype=np.int32) + np.array([[1], [0]], np.int32))

    @quick
    def both() -> tuple[CrossAttentionKeys | CrossAttentionSums, jax.Array, jax.Array]:
        learned, places = draw_operands(mechanism, 4, 6, RNG), key_positions if has_positions else None
        fixed = cache_cross_keys(mechanism, KeySequence(KEY, VALUE, SEGMENTS, places), RNG, learned)
        key, value, segments = (jnp.repeat(x, 3, axis=0) for x in (KEY, VALUE, SEGMENTS))
        options: dict[str, Any] = {'query_segments': QUERY_SEGMENTS, 'key_segments': segments, 'backend': 'reference'}
        options |= {'query_positions': POSITIONS, 'rng': RNG, 'learned': learned}
        options |= {'key_positions': jnp.repeat(key_positions, 3, axis=0)} if has_positions else {}
        return fixed, attend_cross_cached(mechanism, fixed, NEW)[0], attend(QUERY, key, value, mechanism, **options)

    fixed, found, expected = both()
    assert isinstance(fixed, KEPT[text])
    assert_close(found, expected)


@pytest.mark.parametrize('text', SLOTS)
def test_keys_are_not_read_again_where_slots_stand_for_them(text: str):
    mechanism = parse_mechanism(text)

    @quick
    def both() -> tuple[jax.Array, jax.Array]:
        fixed = keys_of(mechanism)
        assert isinstance(fixed, CrossAttentionKeys) and fixed.slots is not None
        unread = fixed._replace(key_BGMK=jnp.nan * fixed.key_BGMK, value_BGMK=jnp.nan * fixed.value_BGMK)
        return attend_cross_cached(mechanism, unread, NEW)[0], attend_cross_cached(mechanism, fixed, NEW)[0]

    unread, read = both()
    np.testing.assert_array_equal(unread, read)
    assert np.isfinite(read).all()


def keys_of(
    mechanism: Mechanism, value: jax.Array = VALUE, segments: jax.Array = SEGMENTS
) -> CrossAttentionKeys | CrossAttentionSums:
    learned = draw_operands(mechanism, 4, 6, RNG)
    return cache_cross_keys(mechanism, KeySequence(KEY, value, segments), learned=learned)


def test_several_texts_give_nan_and_what_a_mechanism_lacks_is_refused():
    segments = np.array([[1, 1, 2, 2, 1, 0, 0], [1] * 7], np.int32)

    def read(mechanism: Mechanism, **options: Any) -> jax.Array:
        fixed = keys_of(mechanism, segments=jnp.asarray(segments))
        return attend_cross_cached(mechanism, fixed, NEW, CallOptions(**options))[0]

    linear, induced, linformer = map(parse_mechanism, ('linear', 'induced(3)', 'linformer(4, 6)'))
    for found in jax.device_get(quick(lambda: [read(linear), read(induced)])()):
        assert np.isnan(found[:3]).all() and np.isfinite(found[3:]).all()
    with pytest.raises(NotImplementedError, match='induced.*dropout on weights'):
        quick(lambda: read(induced, dropout_rate=0.5, dropout_rng=RNG))()
    with pytest.raises(NotImplementedError, match='no support for 7 keys, only for up to 6'):
        quick(lambda: keys_of(linformer))()


def test_dropout_acts_on_the_weights_of_slots():
    mechanism = parse_mechanism(SLOTS[0])

    @quick
    def both() -> tuple[jax.Array, jax.Array]:
        fixed = keys_of(mechanism, jnp.ones_like(VALUE))
        assert isinstance(fixed, CrossAttentionKeys) and fixed.slots is not None
        ones = fixed._replace(slots=fixed.slots._replace(value_BRGK=jnp.ones_like(fixed.slots.value_BRGK)))
        dropped = attend_cross_cached(mechanism, ones, NEW, CallOptions(dropout_rate=0.5, dropout_rng=RNG))
        return dropped[0], attend_cross_cached(mechanism, ones, NEW)[0]

    kept, whole = jax.device_get(both())
    assert np.unique(np.round(kept[..., 0], 5)).size > 10
    assert whole[0, 0, 0, 0] == pytest.approx(1.0)


def test_what_draws_at_random_asks_for_a_key():
    with pytest.raises(ValueError, match='samples at random and needs rng, one key'):
        cache_cross_keys(parse_mechanism('favor(16)'), KeySequence(KEY, VALUE, SEGMENTS))
