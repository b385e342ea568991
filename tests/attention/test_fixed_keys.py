"""Keys that stay the same: what is kept of them gives the output of `attend`, for any number of rows of queries."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.draw_operands import draw_operands
from efficient_attention.attention.features.fixed_sums import FixedSums
from efficient_attention.attention.fixed_keys import FixedKeys, KeySequence, NewQueries, attend_fixed, fix_keys
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.request import CallOptions
from tests.tolerances import assert_close

RNG = jax.random.key(5)
QUERY, KEY, VALUE = (
    jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)
    for seed, shape in enumerate([(6, 3, 4, 6), (2, 7, 2, 6), (2, 7, 2, 6)])
)
SEGMENTS = jnp.asarray([[1, 1, 1, 1, 1, 0, 0], [1] * 7])
QUERY_SEGMENTS = jnp.asarray([[1] * 3] * 4 + [[1, 1, 0], [1] * 3])
POSITIONS = jnp.asarray(np.arange(18).reshape(6, 3) % 5, jnp.int32)
SLOTS = ('linformer(4, 9)', 'linformer(4, 7, tied=False, by_head=True)', 'induced(3)')
KEPT = dict.fromkeys(SLOTS, FixedKeys) | {
    'full': FixedKeys,
    'window(2)': FixedKeys,
    'favor(16)': FixedSums,
    'linear': FixedSums,
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
    key_positions = (jnp.arange(7)[None] + jnp.asarray([[1], [0]])) if has_positions else None
    learned = draw_operands(mechanism, 4, 6, RNG)
    fixed = jax.jit(lambda: fix_keys(mechanism, KeySequence(KEY, VALUE, SEGMENTS, key_positions), RNG, learned))()
    assert isinstance(fixed, KEPT[text])
    found = jax.jit(lambda: attend_fixed(mechanism, fixed, NewQueries(QUERY, QUERY_SEGMENTS, POSITIONS))[0])()
    key, value, segments = (jnp.repeat(x, 3, axis=0) for x in (KEY, VALUE, SEGMENTS))
    options: dict[str, Any] = {'query_segments': QUERY_SEGMENTS, 'key_segments': segments, 'backend': 'reference'}
    options |= {'query_positions': POSITIONS, 'rng': RNG, 'learned': learned}
    options |= {'key_positions': jnp.repeat(key_positions, 3, axis=0)} if has_positions else {}
    assert_close(found, jax.jit(lambda: attend(QUERY, key, value, mechanism, **options))())


@pytest.mark.parametrize('text', SLOTS)
def test_keys_are_not_read_again_where_slots_stand_for_them(text: str):
    mechanism, new = parse_mechanism(text), NewQueries(QUERY, QUERY_SEGMENTS, POSITIONS)
    fixed = fix_keys(mechanism, KeySequence(KEY, VALUE, SEGMENTS), learned=draw_operands(mechanism, 4, 6, RNG))
    assert isinstance(fixed, FixedKeys) and fixed.slots is not None
    unread = fixed._replace(key_BGMK=jnp.nan * fixed.key_BGMK, value_BGMK=jnp.nan * fixed.value_BGMK)
    assert jnp.array_equal(attend_fixed(mechanism, unread, new)[0], attend_fixed(mechanism, fixed, new)[0])


def test_several_texts_give_nan_and_what_a_mechanism_lacks_is_refused():
    new = NewQueries(QUERY, QUERY_SEGMENTS, POSITIONS)
    for text in ('linear', 'induced(3)'):
        mechanism = parse_mechanism(text)
        learned = draw_operands(mechanism, 4, 6, RNG)
        packed = fix_keys(mechanism, KeySequence(KEY, VALUE, SEGMENTS.at[0, 2:4].set(2)), learned=learned)
        found, _ = attend_fixed(mechanism, packed, new)
        assert jnp.isnan(found[:3]).all() and jnp.isfinite(found[3:]).all()
    with pytest.raises(NotImplementedError, match='induced.*dropout on weights'):
        attend_fixed(mechanism, packed, new, CallOptions(dropout_rate=0.5, dropout_rng=RNG))
    linformer = parse_mechanism('linformer(4, 6)')
    with pytest.raises(NotImplementedError, match='no room for 7 keys, only for 6'):
        fix_keys(linformer, KeySequence(KEY, VALUE, SEGMENTS), learned=draw_operands(linformer, 4, 6, RNG))


def test_dropout_acts_on_the_weights_of_slots():
    mechanism, new = parse_mechanism(SLOTS[0]), NewQueries(QUERY, QUERY_SEGMENTS, POSITIONS)
    learned = draw_operands(mechanism, 4, 6, RNG)
    fixed = fix_keys(mechanism, KeySequence(KEY, jnp.ones_like(VALUE), SEGMENTS), learned=learned)
    assert isinstance(fixed, FixedKeys) and fixed.slots is not None
    ones = fixed._replace(slots=fixed.slots._replace(value_BRGK=jnp.ones_like(fixed.slots.value_BRGK)))
    kept, _ = attend_fixed(mechanism, ones, new, CallOptions(dropout_rate=0.5, dropout_rng=RNG))
    assert jnp.unique(jnp.round(kept[..., 0], 5)).size > 10
    assert attend_fixed(mechanism, ones, new)[0][0, 0, 0, 0] == pytest.approx(1.0)


def test_what_draws_at_random_asks_for_a_key():
    with pytest.raises(ValueError, match='draws at random and needs rng, one key'):
        fix_keys(parse_mechanism('favor(16)'), KeySequence(KEY, VALUE, SEGMENTS))
