"""Arrays in tiles, and what a chunk of a loop picks of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention import tile_picks
from efficient_attention.attention.tile_picks import (
    Pick,
    into_tiles,
    make_chunk,
    make_side,
    pick_other,
    pick_own,
    reorder,
)

S = 4
ROWS = np.array([2, 0])
LISTS = {
    'alike': np.array([[[1, 3], [0, 1]]]),  # [1, t, w]
    'by head': np.array([[[1, 3], [0, 1]], [[3, 2], [2, 0]], [[0, 0], [1, 1]]]),
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_picks, 'TILE', S)


def make_pick(lists: np.ndarray) -> Pick:
    return Pick(jnp.asarray(ROWS), jnp.asarray(lists) if lists.ndim == 3 else lists, jnp.zeros(len(ROWS), bool))


@pytest.mark.parametrize('length', [1, 3, 4, 5, 8])
def test_tiles_hold_the_listed_order_and_end_with_an_empty_one(length: int):
    x = np.random.default_rng(0).normal(size=(2, length, 3))
    listing = np.random.default_rng(1).permutation(length)
    tiles = np.asarray(into_tiles(jnp.asarray(x), listing, fill=7))
    assert tiles.shape == (2, -(-length // S) + 1, S, 3)
    flat = tiles.reshape(2, -1, 3)
    np.testing.assert_array_equal(flat[:, :length], jnp.asarray(x)[:, listing])
    assert (flat[:, length:] == 7).all()


def test_a_side_knows_positions_segments_and_numbers():
    positions, segments, listing = (
        np.array([[5, 6, 7, 8, 9]]),
        jnp.asarray([[1, 1, 2, 2, 0]] * 2),
        np.array([4, 2, 0, 1, 3]),
    )
    side = make_side(positions, segments, listing)
    assert side.positions_b1nS.shape == (1, 1, 3, S) and side.segments_B1nS.shape == (2, 1, 3, S)
    np.testing.assert_array_equal(side.numbers_11nS.ravel(), [4, 2, 0, 1, 3, -1, -1, -1, -1, -1, -1, -1])
    np.testing.assert_array_equal(side.positions_b1nS.ravel()[:5], [9, 7, 5, 6, 8])
    np.testing.assert_array_equal(side.segments_B1nS[1].ravel()[:6], [0, 2, 1, 1, 2, 0])
    assert make_side(positions, None, listing).segments_B1nS is None


@pytest.mark.parametrize('trailing', [1, 2])
@pytest.mark.parametrize('name', LISTS)
def test_rows_with_lists_of_their_own(name: str, trailing: int):
    """Own tiles [.., t, S ..]; the tiles of each row's list one after another [.., t, w S ..]."""
    x = np.arange(2 * 3 * 5 * S * 2).reshape(2, 3, 5, S, 2)
    x = x if trailing == 2 else x[..., 0]
    pick, lists = make_pick(LISTS[name]), LISTS[name]
    np.testing.assert_array_equal(pick_own(pick, jnp.asarray(x), trailing), x[:, :, ROWS])
    others = np.asarray(pick_other(pick, jnp.asarray(x), trailing))
    assert others.shape == (2, 3, 2, 2 * S) + x.shape[4:]
    for head, row in np.ndindex(3, 2):
        expected = np.concatenate([x[:, head, tile] for tile in lists[head % len(lists), row]], axis=1)
        np.testing.assert_array_equal(others[:, head, row], expected)


def test_lists_by_head_make_heads_of_what_all_heads_share():
    positions = np.arange(5 * S).reshape(1, 1, 5, S)
    others = pick_other(make_pick(LISTS['by head']), jnp.asarray(positions), 1)
    assert others.shape == (1, 3, 2, 2 * S)
    np.testing.assert_array_equal(others[0, 1, 0], np.concatenate([positions[0, 0, 3], positions[0, 0, 2]]))


@pytest.mark.parametrize('tiles', [[0, 1, 2], [1, 4]], ids=['from the start', 'elsewhere'])
def test_rows_that_share_a_list_lie_one_after_another(tiles: list[int]):
    x = np.arange(2 * 5 * S * 2).reshape(2, 5, S, 2)
    pick = make_pick(np.array(tiles))
    assert pick.is_shared
    np.testing.assert_array_equal(pick_own(pick, jnp.asarray(x), 2), x[:, ROWS].reshape(2, 1, 2 * S, 2))
    np.testing.assert_array_equal(pick_other(pick, jnp.asarray(x), 2), x[:, tiles].reshape(2, 1, len(tiles) * S, 2))


def test_a_chunk_picks_queries_and_keys_from_the_right_side():
    x, pick = jnp.arange(5 * S).reshape(1, 5, S), make_pick(LISTS['alike'])
    for by_key in (False, True):
        chunk = make_chunk(pick, by_key, needs_mask=True)
        own, other = (chunk.key, chunk.query) if by_key else (chunk.query, chunk.key)
        np.testing.assert_array_equal(own(x, 1), pick_own(pick, x, 1))
        np.testing.assert_array_equal(other(x, 1), pick_other(pick, x, 1))
        assert chunk.by_key is by_key and chunk.needs_mask


def test_reordering_brings_gradients_back_in_order():
    x, order = jnp.arange(12.0).reshape(2, 3, 2), np.array([2, 0, 1])
    np.testing.assert_array_equal(reorder(x, order, 1), x[:, order])
    gradient = jax.grad(lambda x: (reorder(x, order, 1) ** 2).sum())(x)
    np.testing.assert_array_equal(gradient, 2 * x)
    assert 'scatter' not in str(jax.make_jaxpr(jax.grad(lambda x: reorder(x, order, 1).sum()))(x))
    assert reorder(x, np.arange(3), 1) is x
