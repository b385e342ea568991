"""Patterns: each means exactly what its definition says, the presets count what the papers count."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.parsing import parse_pattern
from efficient_attention.attention.patterns import (
    Block,
    Causal,
    Full,
    GlobalTokens,
    ListedTiles,
    Pattern,
    Prefix,
    RandomTiles,
    Strided,
    Summary,
    Window,
    dense_mask,
)
from efficient_attention.attention.patterns.presets import bigbird, sparse_strided
from efficient_attention.errors import InputError

L, M = 23, 29  # M is the number of keys, from which final global tokens are counted
DEFINITIONS: dict[str, Callable[[int, int], bool]] = {
    'full': lambda q, k: True,  # noqa: ARG005
    'causal': lambda q, k: k <= q,
    'prefix(5)': lambda q, k: k <= q or (q < 5 and k < 5),
    'window(3)': lambda q, k: abs(q - k) <= 3,
    'window(0)': lambda q, k: q == k,
    'window(2, dilation=5)': lambda q, k: abs(q - k) in (0, 5, 10),
    'window(1, 1)': lambda q, k: q - 1 <= k <= q + 1,
    'block(5)': lambda q, k: q // 5 == k // 5,
    'block(4, back=1)': lambda q, k: k // 4 in (q // 4, q // 4 - 1),
    'block(4, back=2, ahead=1)': lambda q, k: k // 4 in range(q // 4 - 2, q // 4 + 2),
    'strided(4)': lambda q, k: (q - k) % 4 == 0,
    'strided(1)': lambda q, k: True,  # noqa: ARG005
    'summary(6, 2)': lambda q, k: k % 6 in (4, 5),  # noqa: ARG005
    'summary(3, 3)': lambda q, k: True,  # noqa: ARG005
    'global_tokens(2)': lambda q, k: q < 2 or k < 2,
    'global_tokens(2, last=3)': lambda q, k: q < 2 or k < 2 or q >= M - 3 or k >= M - 3,
    'global_tokens(0, last=1)': lambda q, k: M - 1 in (q, k),
    'listed_tiles(4, 0, 2, 3, 1, 3, 5)': lambda q, k: (q // 4, k // 4) in ((0, 2), (3, 1), (3, 5)),
    'causal & window(4)': lambda q, k: 0 <= q - k <= 4,
    'window(4) | strided(7)': lambda q, k: abs(q - k) <= 4 or (q - k) % 7 == 0,
    'full - window(4)': lambda q, k: abs(q - k) > 4,
    'longformer(2, 3)': lambda q, k: abs(q - k) <= 2 or q < 3 or k < 3,
    'longformer(2, dilation=3)': lambda q, k: abs(q - k) in (0, 3, 6) or 0 in (q, k),
    'sparse_fixed(6, 2)': lambda q, k: k <= q and (k // 6 == q // 6 or k % 6 >= 4),
    'sparse_strided(6)': lambda q, k: k <= q and (q - k <= 6 or (q - k) % 6 == 0),
}


@pytest.mark.parametrize('text', DEFINITIONS)
def test_a_pattern_means_what_its_definition_says(text: str):
    """Pair by pair, and the same on JAX arrays."""
    pattern, definition = parse_pattern(text).for_keys(M), DEFINITIONS[text]
    expected = np.array([[definition(q, k) for k in range(M)] for q in range(L)])
    np.testing.assert_array_equal(dense_mask(pattern, L, M), expected)
    on_device = pattern(jnp.arange(L)[:, None], jnp.arange(M)[None])
    np.testing.assert_array_equal(np.asarray(on_device), expected)


@pytest.mark.parametrize('text', [*DEFINITIONS, 'random_tiles(2, 4)', 'bigbird(4, 1)'])
def test_shape_is_the_broadcast_shape_of_the_positions(text: str):
    pattern = parse_pattern(text).for_keys(M)
    query, key = np.arange(6).reshape(2, 3, 1), np.arange(4)[None, None]
    allowed = pattern(query, key)
    assert np.shape(allowed) == (2, 3, 4) and np.asarray(allowed).dtype == bool
    np.testing.assert_array_equal(allowed.reshape(6, 4), dense_mask(pattern, 6, M)[:, :4])
    on_device = pattern(jnp.asarray(query), jnp.asarray(key))
    np.testing.assert_array_equal(np.asarray(on_device), allowed)


# ---- windows and random tiles ----


def test_a_window_reads_two_radii_and_itself():
    counts = dense_mask(Window(256), 1024, 1024).sum(1)
    assert (counts[256:-256] == 513).all() and counts[0] == counts[-1] == 257


def test_random_tiles_are_whole_tiles_and_as_many_as_asked_for():
    mask = dense_mask(RandomTiles(per_row=3, size=4), 40, 40)
    tiles = mask.reshape(10, 4, 10, 4)
    np.testing.assert_array_equal(tiles.any((1, 3)), tiles.all((1, 3)))
    np.testing.assert_array_equal(tiles.all((1, 3)).sum(1), 3)


def test_random_tiles_avoid_neighbours_and_ends_even_where_too_few_are_left():
    chosen = RandomTiles(per_row=4, size=2, near=1, ends=1).for_keys(12).chosen()
    numbers = np.arange(6)
    is_forbidden = (abs(numbers[:, None] - numbers) <= 1) | (numbers == 0) | (numbers == 5)
    assert not chosen[is_forbidden].any()
    np.testing.assert_array_equal(chosen, ~is_forbidden)  # at most 4 are left in any row, so all of them are drawn


def test_random_tiles_differ_by_seed_layer_and_head_and_never_between_calls():
    pattern = RandomTiles(2, 4).for_keys(64)
    variants = [
        pattern,
        dataclasses.replace(pattern, seed=1),
        pattern.for_layer(1),
        pattern.for_head(1, 4),
        pattern.for_layer(1).for_head(1, 4),
    ]
    masks = [dense_mask(variant, 64, 64) for variant in variants]
    assert all((one != other).any() for i, one in enumerate(masks) for other in masks[:i])
    again = dataclasses.replace(pattern)  # an equal pattern made anew
    assert again == pattern and hash(again) == hash(pattern)
    np.testing.assert_array_equal(dense_mask(again, 64, 64), masks[0])


def test_random_tiles_are_spread_evenly_over_the_keys():
    """All tiles are eligible, also beyond the first 1,024 tokens: each is drawn about as often."""
    drawn = np.sum([RandomTiles(4, 16, seed=seed).for_keys(512).chosen() for seed in range(100)], axis=(0, 1))
    expected = 4 * 32 * 100 / 32
    assert abs(drawn - expected).max() < 5 * np.sqrt(expected)


def test_queries_beyond_the_keys_read_the_row_of_their_tile_modulo_the_key_tiles():
    pattern = RandomTiles(2, 4).for_keys(20)
    chosen, mask = pattern.chosen(), dense_mask(pattern, 36, 20)
    for tile in range(9):
        np.testing.assert_array_equal(mask[4 * tile, ::4], chosen[tile % 5])
    assert not pattern(np.arange(8)[:, None], np.arange(20, 30)[None]).any()  # keys that do not exist


def test_what_depends_on_the_number_of_keys_says_so():
    for pattern in (RandomTiles(1, 4), GlobalTokens(1, last=1), Causal() & bigbird(4)):
        with pytest.raises(InputError, match='number of keys; call for_keys first'):
            pattern(np.arange(3)[:, None], np.arange(3)[None])


# ---- properties and sizes ----


def test_orders_and_whether_positions_count():
    assert (Window(3).order, Window(3, 4).order, Strided(9).order, sparse_strided(16).order) == (1, 4, 9, 16)
    assert not Full().compares_positions and not (Full() | Full()).compares_positions
    assert (Full() & Causal()).compares_positions and Summary(4, 1).compares_positions


@pytest.mark.parametrize(
    'make, message',
    [
        (lambda: Prefix(0), 'Prefix: count is 0; it must be at least 1'),
        (lambda: Window(-1), 'Window: radius is -1; it must be at least 0'),
        (lambda: Window(1, 0), 'Window: dilation is 0; it must be at least 1'),
        (lambda: Block(0), 'Block: size is 0'),
        (lambda: Block(2, back=-1), 'Block: back is -1'),
        (lambda: Strided(0), 'Strided: stride is 0'),
        (lambda: Summary(4, 0), 'Summary: width is 0'),
        (lambda: Summary(4, 5), 'width must be at most block'),
        (lambda: GlobalTokens(0), 'count or last must be at least 1'),
        (lambda: GlobalTokens(-1, last=2), 'GlobalTokens: count is -1'),
        (lambda: RandomTiles(0, 4), 'RandomTiles: per_row is 0'),
        (lambda: RandomTiles(1, 0), 'RandomTiles: size is 0'),
        (lambda: RandomTiles(1, 4, seed=-1), 'RandomTiles: seed is -1'),
        (lambda: ListedTiles(0, (1, 2)), 'ListedTiles: size is 0'),
        (lambda: ListedTiles(4, ()), 'ListedTiles: 0 tile numbers; they must be pairs'),
        (lambda: ListedTiles(4, (1, 2, 3)), 'ListedTiles: 3 tile numbers; they must be pairs'),
        (lambda: ListedTiles(4, (1, -2)), 'ListedTiles: tile is -2'),
        (lambda: ListedTiles(4, (1, 2**20)), 'ListedTiles: tile 1048576; it must be below 8192'),
    ],
)
def test_sizes_that_make_no_sense_are_named(make: Callable[[], Pattern], message: str):
    with pytest.raises(InputError, match=message):
        make()
