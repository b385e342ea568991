"""Keys that stay the same: what is kept of them gives the output of `attend`, for any number of rows of queries."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.features.fixed_sums import FixedSums
from efficient_attention.attention.fixed_keys import FixedKeys, KeySequence, NewQueries, attend_fixed, fix_keys
from efficient_attention.attention.parsing import parse_mechanism
from tests.tolerances import assert_close

RNG = jax.random.key(5)
QUERY, KEY, VALUE = (
    jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)
    for seed, shape in enumerate([(6, 3, 4, 6), (2, 7, 2, 6), (2, 7, 2, 6)])
)
SEGMENTS = jnp.asarray([[1, 1, 1, 1, 1, 0, 0], [1] * 7])
QUERY_SEGMENTS = jnp.asarray([[1] * 3] * 4 + [[1, 1, 0], [1] * 3])
POSITIONS = jnp.asarray(np.arange(18).reshape(6, 3) % 5, jnp.int32)
KEPT = {'full': FixedKeys, 'window(2)': FixedKeys, 'favor(16)': FixedSums, 'linear': FixedSums}


@pytest.mark.parametrize(
    'text, has_positions',
    [('full', False), ('window(2)', False), ('window(2)', True), ('favor(16)', True), ('linear', False)],
)
def test_three_rows_of_queries_read_one_row_of_keys(text: str, has_positions: bool):
    mechanism = parse_mechanism(text)
    key_positions = (jnp.arange(7)[None] + jnp.asarray([[1], [0]])) if has_positions else None
    fixed = jax.jit(lambda: fix_keys(mechanism, KeySequence(KEY, VALUE, SEGMENTS, key_positions), RNG))()
    assert isinstance(fixed, KEPT[text])
    found = jax.jit(lambda: attend_fixed(mechanism, fixed, NewQueries(QUERY, QUERY_SEGMENTS, POSITIONS)))()
    key, value, segments = (jnp.repeat(x, 3, axis=0) for x in (KEY, VALUE, SEGMENTS))
    options: dict[str, Any] = {'query_segments': QUERY_SEGMENTS, 'key_segments': segments, 'backend': 'reference'}
    options |= {'query_positions': POSITIONS, 'rng': RNG}
    options |= {'key_positions': jnp.repeat(key_positions, 3, axis=0)} if has_positions else {}
    assert_close(found, jax.jit(lambda: attend(QUERY, key, value, mechanism, **options))())


def test_what_draws_at_random_asks_for_a_key():
    with pytest.raises(ValueError, match='draws at random and needs rng, one key'):
        fix_keys(parse_mechanism('favor(16)'), KeySequence(KEY, VALUE, SEGMENTS))
