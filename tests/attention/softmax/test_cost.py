"""Tests the multiply-adds of softmax attention: the pairs of the tiles that a pattern keeps, counted for each head."""

from efficient_attention.attention.parsing import parse_mechanism, parse_pattern
from efficient_attention.attention.patterns import dense_mask
from efficient_attention.attention.registry import multiply_adds
from efficient_attention.attention.softmax.definition import count_tile_pairs


def test_tiles_of_one_position_are_pairs():
    for text in ('causal & window(3)', 'full', 'sparse_strided(4)', 'longformer(2, 3)', 'random_tiles(2, 4)'):
        pattern = parse_pattern(text).for_key_count(23)
        assert count_tile_pairs(pattern, 23, 23, 1) == dense_mask(pattern, 23, 23).sum()


def test_a_tile_counts_as_a_whole_and_ends_with_the_positions():
    pattern = parse_pattern('causal').for_key_count(10)
    assert count_tile_pairs(pattern, 10, 10, 4) == 4 * 4 + 4 * 8 + 2 * 10
    assert count_tile_pairs(parse_pattern('full'), 10, 10, 4) == 100
    assert count_tile_pairs(parse_pattern('causal'), 10, 7, 4) == 4 * 4 + 4 * 7 + 2 * 7


def test_heads_count_each_with_its_own_pattern():
    full, block, mixed = (
        multiply_adds(parse_mechanism(text), 512, 4, 8) for text in ('full', 'block(64)', 'per_head(full, block(64))')
    )
    assert mixed == (full + block) / 2
    assert full == 8 * block
    random = parse_mechanism('random_tiles(3, 64)')
    assert multiply_adds(random, 512, 4, 8) == 2 * 8 * 4 * 512 * 3 * 64
