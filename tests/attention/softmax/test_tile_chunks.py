"""Tests the cutting of arrays into tiles, and the tiles that a chunk of a loop takes."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.softmax.tile_chunks import (
    ChosenTiles,
    TileChunk,
    dot_products,
    make_token_mask_inputs,
    reorder,
    split_into_tiles,
    take_computed_tiles,
    take_visited_tiles,
    weighted_sums,
)

S = 4
COMPUTED = np.array([2, 0])
SIDES = (0, (2, 3, 5, 2, S, 6)), (1, (2, 3, 5, S, 6))  # Seed and shape of queries [B, G, n, h, S, K] and of keys.
LISTS = {
    'alike': np.array([[[1, 3], [0, 1]]]),  # The lists are [1, t, w].
    'by head': np.array([[[1, 3], [0, 1]], [[3, 2], [2, 0]], [[0, 0], [1, 1]]]),
}


def make_chosen(lists: np.ndarray) -> ChosenTiles:
    return ChosenTiles(
        jnp.asarray(COMPUTED), jnp.asarray(lists) if lists.ndim == 3 else lists, jnp.zeros(len(COMPUTED), bool)
    )


@pytest.mark.parametrize('length', [1, 3, 4, 5, 8])
def test_tiles_hold_the_listed_order_and_end_with_an_empty_one(length: int):
    x = np.random.default_rng(0).normal(size=(2, length, 3)).astype(np.float32)
    listing = np.random.default_rng(1).permutation(length)
    tiles = np.asarray(jax.jit(lambda x: split_into_tiles(x, listing, S, fill=7))(x))
    assert tiles.shape == (2, -(-length // S) + 1, S, 3)
    flat = tiles.reshape(2, -1, 3)
    np.testing.assert_array_equal(flat[:, :length], x[:, listing])
    assert (flat[:, length:] == 7).all()


def test_a_side_knows_positions_segments_and_numbers():
    positions, segments, listing = (
        np.array([[5, 6, 7, 8, 9]]),
        jnp.asarray([[1, 1, 2, 2, 0]] * 2),
        np.array([4, 2, 0, 1, 3]),
    )
    side = jax.device_get(jax.jit(lambda: make_token_mask_inputs(positions, segments, listing, S))())
    assert side.positions_b1nS.shape == (1, 1, 3, S) and side.segments_B1nS.shape == (2, 1, 3, S)
    np.testing.assert_array_equal(side.numbers_11nS.ravel(), [4, 2, 0, 1, 3, -1, -1, -1, -1, -1, -1, -1])
    np.testing.assert_array_equal(side.positions_b1nS.ravel()[:5], [9, 7, 5, 6, 8])
    np.testing.assert_array_equal(side.segments_B1nS[1].ravel()[:6], [0, 2, 1, 1, 2, 0])
    assert make_token_mask_inputs(positions, None, listing, S).segments_B1nS is None


@pytest.mark.parametrize('name', LISTS)
@pytest.mark.parametrize('rest', [(), (2,), (3, 2)], ids=str)
def test_tiles_with_lists_of_their_own(name: str, rest: tuple[int, ...]):
    """Takes the computed tiles [.., t, S ..], and the tiles that each of them visits [.., t, w, S ..]."""
    x = np.arange(2 * 3 * 5 * S * math.prod(rest)).reshape(2, 3, 5, S, *rest)
    chosen, lists = make_chosen(LISTS[name]), LISTS[name]
    computed, visited = jax.device_get(
        jax.jit(lambda x: (take_computed_tiles(chosen, x), take_visited_tiles(chosen, x)))(x)
    )
    np.testing.assert_array_equal(computed, x[:, :, COMPUTED])
    assert visited.shape == (2, 3, 2, 2, S, *rest)
    for head, tile in np.ndindex(3, 2):
        np.testing.assert_array_equal(visited[:, head, tile], x[:, head, lists[head % len(lists), tile]])


def test_lists_by_head_make_heads_of_what_all_heads_share():
    positions = np.arange(5 * S).reshape(1, 1, 5, S)
    visited = take_visited_tiles(make_chosen(LISTS['by head']), jnp.asarray(positions))
    assert visited.shape == (1, 3, 2, 2, S)
    np.testing.assert_array_equal(visited[0, 1, 0], positions[0, 0, [3, 2]])


@pytest.mark.parametrize('tiles', [[0, 1, 2], [1, 4]], ids=['from the start', 'elsewhere'])
def test_tiles_that_share_a_list_pick_it_once(tiles: list[int]):
    x = np.arange(2 * 3 * 5 * S * 2).reshape(2, 3, 5, S, 2)
    chosen = make_chosen(np.array(tiles))
    assert chosen.is_shared
    computed, visited = jax.jit(lambda x: (take_computed_tiles(chosen, x), take_visited_tiles(chosen, x)))(x)
    np.testing.assert_array_equal(computed, x[:, :, COMPUTED])
    np.testing.assert_array_equal(visited, x[:, :, None, tiles])


@pytest.mark.parametrize('by_key', [False, True], ids=['by query', 'by key'])
@pytest.mark.parametrize('name', [*LISTS, 'shared'])
def test_values_and_products_meet_over_the_pairs(name: str, by_key: bool):
    """For each pair it compares query number, key number, head number and the product of the vectors."""
    lists = np.array([1, 4, 2]) if name == 'shared' else LISTS[name]
    chunk = TileChunk(make_chosen(lists), by_key, checks_pattern=True, checks_keys=True, size=S)
    q, k = (np.random.default_rng(seed).normal(size=shape).astype(np.float32) for seed, shape in SIDES)
    numbers = jnp.asarray(np.arange(5 * S).reshape(1, 1, 5, S))
    heads = jnp.asarray(np.arange(2 * 3 * 2).reshape(2, 3, 2))

    @jax.jit
    def results(q: jax.Array, k: jax.Array) -> tuple:
        queries, keys = chunk.select_query_tiles(q), chunk.select_key_tiles(k)
        pairs = dot_products(chunk, queries, keys)
        spread = chunk.broadcast_queries(numbers), chunk.broadcast_keys(numbers), chunk.broadcast_heads(heads)
        return weighted_sums(chunk, pairs, queries if by_key else keys), (*spread, pairs)

    sums, spread = jax.device_get(results(q, k))
    query, key, head, pairs = np.broadcast_arrays(*spread)
    batch, group, head = np.unravel_index(head, (2, 3, 2))
    query_vectors = q[batch, group, query // S, head, query % S]
    key_vectors = k[batch, group, key // S, key % S]
    np.testing.assert_allclose(pairs, (query_vectors * key_vectors).sum(-1), rtol=1e-5, atol=1e-5)
    summed = (4, 5, 6) if by_key else (5, 6)
    expected = (pairs[..., None] * (query_vectors if by_key else key_vectors)).sum(summed)
    np.testing.assert_allclose(sums, expected, rtol=1e-4, atol=1e-4)


def test_reordering_brings_gradients_back_in_order():
    x, order = jnp.arange(12.0).reshape(2, 3, 2), np.array([2, 0, 1])
    np.testing.assert_array_equal(reorder(x, order, 1), x[:, order])
    gradient = jax.grad(lambda x: (reorder(x, order, 1) ** 2).sum())(x)
    np.testing.assert_array_equal(gradient, 2 * x)
    assert 'scatter' not in str(jax.make_jaxpr(jax.grad(lambda x: reorder(x, order, 1).sum()))(x))
    assert reorder(x, np.arange(3), 1) is x
