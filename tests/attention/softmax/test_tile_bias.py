"""Tests the bias in tiles: each chunk has the dense bias's values, and gradients return to the right entries."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.logits.definition import dense_bias
from efficient_attention.attention.request import Request
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.attention.softmax.tile_bias import ArrayBias, FunctionBias, make_tile_bias
from efficient_attention.attention.softmax.tile_chunks import (
    ChosenTiles,
    TileChunk,
    TileMaskInputs,
    make_token_mask_inputs,
)
from tests.attention.requests import make_request

S, B, L, M, H, G = 4, 2, 10, 14, 4, 2
QUERY_LISTING, KEY_LISTING = np.random.default_rng(0).permutation(L), np.random.default_rng(1).permutation(M)
COMPUTED = {False: np.array([2, 0]), True: np.array([3, 1])}  # Computed tiles, for chunks by query and by key.
LISTS = {
    'alike': {False: np.array([[[1, 3], [0, 2]]]), True: np.array([[[1, 2], [0, 1]]])},
    'by head': {
        False: np.array([[[1, 3], [0, 2]], [[2, 0], [3, 1]]]),
        True: np.array([[[1, 2], [0, 1]], [[0, 1], [2, 0]]]),
    },
    'shared': {False: np.array([0, 1, 2]), True: np.array([0, 2])},
}
SHAPES = [(B, H, L, M), (1, H, L, M), (B, 1, L, M), (1, 1, 1, M), (B, 1, 1, M), (H, L, 1), (1, 1, L, 1), (L, M), (1,)]


def make(bias: object, positions: np.ndarray | None = None) -> Request:
    q, k = jnp.zeros((B, L, H, 8)), jnp.zeros((B, M, G, 8))
    return make_request(q, k, k, Softmax(), bias=bias, query_positions=positions)


def make_mask_inputs(request: Request) -> TileMaskInputs:
    return TileMaskInputs(
        make_token_mask_inputs(request.positions.query, None, QUERY_LISTING, S),
        make_token_mask_inputs(request.positions.key, None, KEY_LISTING, S),
        None,
    )


def make_chosen(lists: np.ndarray, by_key: bool) -> ChosenTiles:
    return ChosenTiles(
        jnp.asarray(COMPUTED[by_key]), lists if lists.ndim == 1 else jnp.asarray(lists), jnp.zeros(2, bool)
    )


def make_chunk(lists: np.ndarray, by_key: bool) -> TileChunk:
    return TileChunk(make_chosen(lists, by_key), by_key, checks_pattern=True, checks_keys=True, size=S)


def expected_values(dense_BHLM: np.ndarray, lists: np.ndarray, by_key: bool) -> np.ndarray:
    """Returns the entries of a dense bias that a chunk reads, pair by pair, and 0 for pairs that do not exist.

    The shape is [B, G, t, h, S, w, S], or by key [B, G, t, S, w, h, S].
    """
    queries = np.full(4 * S, -1), np.full(5 * S, -1)  # The positions are in tiles, of which the last one is empty.
    queries[0][:L], queries[1][:M] = QUERY_LISTING, KEY_LISTING
    query_tiles, key_tiles = queries[0].reshape(-1, S), queries[1].reshape(-1, S)
    padded = np.pad(dense_BHLM, ((0, 0), (0, 0), (0, 1), (0, 1)))  # Index -1 reads this padding.
    values = []
    for head in range(H):
        of_head = lists if lists.ndim == 1 else lists[head // (H // G) % len(lists)]
        chosen = [(COMPUTED[by_key], of_head)]
        if lists.ndim > 1:
            chosen = [([tile], visited) for tile, visited in zip(COMPUTED[by_key], of_head, strict=True)]
        pairs = [(visited, tiles) if by_key else (tiles, visited) for tiles, visited in chosen]
        values.append([padded[:, head][:, query_tiles[q].ravel()][:, :, key_tiles[k].ravel()] for q, k in pairs])
    stacked = np.stack([np.stack(of_head, axis=1) for of_head in values], axis=1)
    if not by_key:
        return stacked.reshape(B, G, H // G, 2, S, -1, S).swapaxes(2, 3)
    if lists.ndim == 1:
        return stacked.reshape(B, G, H // G, -1, S, 2, S).transpose(0, 1, 5, 6, 3, 2, 4)
    return stacked.reshape(B, G, H // G, 2, -1, S, S).transpose(0, 1, 3, 6, 4, 2, 5)


def real_pairs(lists: np.ndarray, by_key: bool) -> np.ndarray:
    return expected_values(np.ones((B, H, L, M)), lists, by_key) > 0


CHUNKS = [(name, by_key) for name in LISTS for by_key in (False, True)]


@pytest.mark.parametrize('shape', SHAPES, ids=str)
def test_a_chunk_reads_the_values_of_its_pairs(shape: tuple[int, ...]):
    """Each kind of list is tested, by query and by key."""
    bias = np.random.default_rng(2).normal(size=shape).astype(np.float32)

    @jax.jit
    def values_of_chunks(bias: jax.Array) -> list[jax.Array]:
        request = make(bias)
        term, mask_inputs = (
            make_tile_bias(request, np.arange(H), QUERY_LISTING, KEY_LISTING, S),
            make_mask_inputs(request),
        )
        return [term.chunk_values(make_chunk(LISTS[name][by_key], by_key), mask_inputs) for name, by_key in CHUNKS]

    for (name, by_key), values in zip(CHUNKS, values_of_chunks(bias), strict=True):
        lists = LISTS[name][by_key]
        expected = expected_values(np.broadcast_to(bias, (B, H, L, M)), lists, by_key)
        assert values.ndim == expected.ndim, (name, by_key)
        found = np.where(real_pairs(lists, by_key), values, 0)
        np.testing.assert_array_equal(found, expected, err_msg=f'{name} {by_key}')


@functools.cache
def times_read(name: str) -> np.ndarray:
    """Returns how often the chunk by query reads each pair [B, H, L, M]."""
    counts = np.zeros((B, H, L, M))
    for i in np.ndindex(L, M):
        one = np.zeros((B, H, L, M))
        one[..., i[0], i[1]] = 1
        counts[..., i[0], i[1]] = expected_values(one, LISTS[name][False], False).sum((2, 4, 5, 6)).reshape(B, H)
    return counts


@pytest.mark.parametrize('shape', [(B, H, L, M), (1, 1, L, 1), (1, 1, 1, M)], ids=str)
def test_the_gradient_of_a_chunk_goes_to_the_pairs_it_read(shape: tuple[int, ...]):
    """The gradient goes through `select_for_chunk` and `read_values`, as in the tile loop."""

    def read(bias: jax.Array, name: str) -> jax.Array:
        request, lists = make(bias), LISTS[name][False]
        term = make_tile_bias(request, np.arange(H), QUERY_LISTING, KEY_LISTING, S)
        assert term.has_tile_gradient == (shape[-2] > 1)
        values = term.select_for_chunk(make_chosen(lists, False)).read_values(
            make_chunk(lists, False), make_mask_inputs(request)
        )
        return jnp.where(real_pairs(lists, False), values, 0.0).sum()

    gradients = jax.jit(lambda bias: {name: jax.grad(read)(bias, name) for name in LISTS})(np.zeros(shape, np.float32))
    spread = tuple(axis for axis in range(4) if shape[axis] == 1)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, times_read(name).sum(spread, keepdims=True), atol=1e-5, err_msg=name)


def test_heads_are_picked_by_their_numbers():
    bias = np.random.default_rng(3).normal(size=(1, H, L, M)).astype(np.float32)
    q, k = jnp.zeros((B, L, 2, 8)), jnp.zeros((B, M, 2, 8))
    request = make_request(q, k, k, Softmax(), bias=jnp.asarray(bias[:, :2]))
    term = make_tile_bias(request, np.array([1, 0]), np.arange(L), np.arange(M), S)
    np.testing.assert_array_equal(term.array_bghnSnS[0, 0, 0, 0, 0, 0], bias[0, 1, 0, :S])
    np.testing.assert_array_equal(term.array_bghnSnS[0, 1, 0, 0, 0, 0], bias[0, 0, 0, :S])


def slopes(scale: jax.Array, query: jax.Array, key: jax.Array) -> jax.Array:
    """Computes a bias that falls with distance, with another slope for each head."""
    return -scale[None, :, None, None] * abs(query - key).astype(jnp.float32)


@pytest.mark.parametrize('by_key', [False, True], ids=['by query', 'by key'])
@pytest.mark.parametrize('name', ['alike', 'shared'])
@pytest.mark.parametrize('rows', [1, B], ids=['one row of positions', 'a row for each example'])
def test_a_function_is_evaluated_on_the_positions_of_the_chunk(name: str, by_key: bool, rows: int):
    scale = jnp.asarray([0.5, 1.0, 2.0, 4.0])
    positions = np.random.default_rng(4).integers(0, 50, (rows, L)).astype(np.int32)
    request = make(jax.tree_util.Partial(slopes, scale), positions)
    term = make_tile_bias(request, np.arange(H), QUERY_LISTING, KEY_LISTING, S)
    lists = LISTS[name][by_key]
    values = jax.jit(lambda: term.chunk_values(make_chunk(lists, by_key), make_mask_inputs(request)))()
    expected = expected_values(np.broadcast_to(dense_bias(request), (B, H, L, M)), lists, by_key)
    is_real = real_pairs(lists, by_key)
    np.testing.assert_array_equal(np.where(is_real, values, 0), np.where(is_real, expected, 0))
    assert term.select_for_chunk(make_chosen(lists, by_key)) is term


def test_a_function_without_heads_serves_all_of_them():
    request = make(lambda query, key: (query * key).astype(jnp.float32))
    term = make_tile_bias(request, np.arange(H), QUERY_LISTING, KEY_LISTING, S)
    assert isinstance(term, FunctionBias)
    values = term.chunk_values(make_chunk(LISTS['alike'][False], False), make_mask_inputs(request))
    assert values.shape == (1, 1, 2, 1, S, 2, S)


def test_a_function_with_tiles_of_each_head_is_refused():
    request = make(jax.tree_util.Partial(slopes, jnp.ones(H)))
    term = make_tile_bias(request, np.arange(H), QUERY_LISTING, KEY_LISTING, S)
    chunk = make_chunk(LISTS['by head'][False], False)
    with pytest.raises(NotImplementedError, match='no bias function together with tiles that differ by head'):
        term.chunk_values(chunk, make_mask_inputs(request))


def test_no_bias_is_none():
    assert make_tile_bias(make(None), np.arange(H), QUERY_LISTING, KEY_LISTING, S) is None


def test_the_gradient_of_tiles_is_put_back_behind_the_heads():
    arrays = jnp.arange(3 * 2 * 1 * 1 * S * 2 * S).reshape(3, 2, 1, 1, S, 2, S)
    whole = ArrayBias(jnp.zeros((2, 1, 1, 4, S, 2, S))).finish_gradient(None, [arrays])
    np.testing.assert_array_equal(whole.array_bghnSnS[:, :, :, 1], arrays[1])
    assert not whole.array_bghnSnS[:, :, :, 3].any()  # The last tile is empty.
