"""Tests random tiles: they are whole tiles, of the requested number, drawn evenly and reproducibly."""

import dataclasses

import numpy as np
import pytest

from efficient_attention.attention.patterns import RandomTiles, dense_mask
from efficient_attention.attention.patterns.presets import bigbird
from efficient_attention.errors import InputError
from tests.attention.patterns.pair_by_pair import check_shape


def test_the_shape_is_the_broadcast_shape_of_the_positions():
    check_shape('random_tiles(2, 4)')


def test_random_tiles_are_whole_tiles_and_as_many_as_asked_for():
    mask = dense_mask(RandomTiles(per_row=3, size=4), 40, 40)
    tiles = mask.reshape(10, 4, 10, 4)
    np.testing.assert_array_equal(tiles.any((1, 3)), tiles.all((1, 3)))
    np.testing.assert_array_equal(tiles.all((1, 3)).sum(1), 3)


def test_random_tiles_avoid_neighbours_and_ends_even_where_too_few_are_left():
    chosen = RandomTiles(per_row=4, size=2, near=1, ends=1).for_key_count(12).chosen_key_tiles()
    numbers = np.arange(6)
    is_forbidden = (abs(numbers[:, None] - numbers) <= 1) | (numbers == 0) | (numbers == 5)
    assert not chosen[is_forbidden].any()
    # At most 4 tiles are left in any row, so all of them are drawn.
    np.testing.assert_array_equal(chosen, ~is_forbidden)


def test_random_tiles_differ_by_seed_layer_and_head_and_never_between_calls():
    pattern = RandomTiles(2, 4).for_key_count(64)
    variants = [
        pattern,
        dataclasses.replace(pattern, seed=1),
        pattern.for_layer(1),
        pattern.for_head(1, 4),
        pattern.for_layer(1).for_head(1, 4),
    ]
    masks = [dense_mask(variant, 64, 64) for variant in variants]
    assert all((one != other).any() for i, one in enumerate(masks) for other in masks[:i])
    again = dataclasses.replace(pattern)  # This is an equal but new pattern object.
    assert again == pattern and hash(again) == hash(pattern)
    np.testing.assert_array_equal(dense_mask(again, 64, 64), masks[0])


def test_a_pattern_of_several_layers_has_the_pattern_of_each():
    pattern = bigbird(4, 2).for_key_count(64)
    several = pattern.for_layer((1, 3))
    assert pattern.layers == () and pattern.by_layer() == (pattern,)
    assert several.layers == (1, 3) and several.by_layer() == (pattern.for_layer(1), pattern.for_layer(3))
    with pytest.raises(InputError, match='call for_layer first'):
        dense_mask(several, 64, 64)


def test_random_tiles_are_spread_evenly_over_the_keys():
    """All tiles can be drawn, also beyond the first 1,024 tokens, and each is drawn about equally often."""
    drawn = np.sum(
        [RandomTiles(4, 16, seed=seed).for_key_count(512).chosen_key_tiles() for seed in range(100)], axis=(0, 1)
    )
    expected = 4 * 32 * 100 / 32
    assert abs(drawn - expected).max() < 5 * np.sqrt(expected)


def test_queries_beyond_the_keys_read_the_row_of_their_tile_modulo_the_key_tiles():
    pattern = RandomTiles(2, 4).for_key_count(20)
    chosen, mask = pattern.chosen_key_tiles(), dense_mask(pattern, 36, 20)
    for tile in range(9):
        np.testing.assert_array_equal(mask[4 * tile, ::4], chosen[tile % 5])
    assert not pattern(np.arange(8)[:, None], np.arange(20, 30)[None]).any()  # These keys do not exist.
