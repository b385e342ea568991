"""Tests cache slots: every key keeps a separate slot until its last reader, with as few slots as possible."""

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.logits.cache_slots import assign_cache_slots, last_reading_queries
from efficient_attention.attention.parsing import parse_pattern
from efficient_attention.attention.patterns import dense_mask, head_patterns
from tests.attention.test_cache import LENGTH, PATTERNS

POSITIONS = jnp.arange(LENGTH)


@pytest.mark.parametrize('text', PATTERNS)
def test_every_key_has_a_slot_of_its_own_until_its_last_reader(text: str):
    """There are as many slots as keys at the busiest moment; a ring keeps all keys that are near enough."""
    pattern = parse_pattern(text).for_key_count(LENGTH)
    mask = dense_mask(pattern, LENGTH, LENGTH, heads=4).any(axis=0)
    last = np.where(mask.any(axis=0), LENGTH - 1 - mask[::-1].argmax(axis=0), -1)
    slots = assign_cache_slots(pattern, 4, LENGTH)
    places, next_keys = (
        np.asarray(x) for x in (slots.slot_of_position(POSITIONS), slots.next_position_in_slot(POSITIONS))
    )
    needed = [np.flatnonzero((np.arange(LENGTH) <= time) & (last >= time)) for time in range(LENGTH)]
    for time, keys in enumerate(needed):
        assert (next_keys[keys] > time).all() and (places[keys] < slots.count).all()
        assert len(set(places[keys])) == len(keys)
    busiest = max(1, *map(len, needed))
    assert slots.count == pattern.reach.back + 1 if slots.is_ring_buffer else slots.count == busiest


@pytest.mark.parametrize('text', PATTERNS)
def test_reach_bounds_the_pattern(text: str):
    queries, keys = np.nonzero(dense_mask(parse_pattern(text), LENGTH, LENGTH, heads=4).any(axis=0))
    found = parse_pattern(text).reach
    assert (queries - keys).max() <= found.back and found.ahead == 0 >= (keys - queries).max()


@pytest.mark.parametrize(
    'text, slots',
    [
        ('causal & window(32)', 33),
        ('causal & block(64)', 64),
        ('sparse_fixed(64, 4)', 64 + 4 * 63),
        ('causal', 4096),
        ('per_head(causal & window(8), causal & window(16, 2))', 33),
    ],
)
def test_the_number_of_slots_at_4096_positions(text: str, slots: int):
    assert assign_cache_slots(parse_pattern(text), 4, 4096).count == slots


def test_last_readers_are_the_same_however_many_queries_are_looked_at_together():
    patterns = head_patterns(parse_pattern('sparse_fixed(8, 2)'), 1)
    expected = last_reading_queries(patterns, LENGTH)
    np.testing.assert_array_equal(last_reading_queries(patterns, LENGTH, at_once=7), expected)
    np.testing.assert_array_equal(expected[:8], [7] * 6 + [LENGTH - 1] * 2)
