"""Tests the computation of one chunk of a tile loop against formulas; test_tile_softmax.py tests whole loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.patterns import Causal, Full, Pattern
from efficient_attention.attention.softmax.tile_chunk_softmax import (
    SavedTiles,
    TileOperands,
    TileOptions,
    allowed_pairs,
    dropout_factor,
    forward_chunk,
    make_chunk,
    weights_and_logit_gradients,
)
from efficient_attention.attention.softmax.tile_chunks import (
    ChosenTiles,
    TileChunk,
    TileMaskInputs,
    make_token_mask_inputs,
    split_into_tiles,
)
from efficient_attention.attention.softmax.tile_schedule import TileClass, TilePass
from tests.tolerances import assert_close

S, L = 4, 7  # S is the size of a tile and L of a row: two tiles, of which the second one lacks a position.
SEGMENTS = jnp.asarray([[1, 1, 2, 2, 2, 0, 0]])
IN_ORDER = np.arange(L)
FULL = Full()


def make_options(pattern: Pattern = FULL, rate: float = 0.0) -> TileOptions:
    return TileOptions(TilePass((pattern,), S, IN_ORDER, IN_ORDER, (), (), 4), rate, (1, 1), True)


def make_mask_inputs(segments: jax.Array | None = None, seeds: jax.Array | None = None) -> TileMaskInputs:
    side = make_token_mask_inputs(IN_ORDER[None], segments, IN_ORDER, S)
    return TileMaskInputs(side, side, seeds)


def whole_chunk(by_key: bool, checks_pattern: bool = True) -> TileChunk:
    """Returns the chunk that pairs both tiles of one side with both tiles of the other."""
    tile_class = TileClass(np.arange(2), np.array([[[[0, 1]]]]), True, checks_pattern, checks_keys=True)
    return make_chunk(make_options(), ChosenTiles(jnp.arange(2), np.arange(2), jnp.zeros(2, bool)), by_key, tile_class)


def as_matrix(x: jax.Array, by_key: bool) -> np.ndarray:
    """Returns an array over the chunk's pairs as a matrix [L, M], for one batch row and head."""
    matrix = np.asarray(x).reshape(2 * S, 2 * S)
    return (matrix.T if by_key else matrix)[:L, :L]


@pytest.mark.parametrize('by_key', [False, True], ids=['by query', 'by key'])
@pytest.mark.parametrize('pattern', [Full(), Causal()], ids=['full', 'causal'])
def test_pairs_are_allowed_by_pattern_and_segments(pattern: Pattern, by_key: bool):
    """Segment 0 is padding: no query reads it, not even a padding query."""
    masks = jax.jit(lambda: allowed_pairs(whole_chunk(by_key), make_options(pattern), make_mask_inputs(SEGMENTS)))()
    found = np.stack(np.broadcast_arrays(*masks)).all(axis=0)
    found = np.broadcast_to(found, (1, 1, 2, *masks[-1].shape[3:]))
    segments, places = np.asarray(SEGMENTS[0]), np.arange(L)
    expected = (segments[:, None] == segments) & (segments != 0) & pattern(places[:, None], places[None])
    np.testing.assert_array_equal(as_matrix(found, by_key), expected)


def test_a_chunk_that_needs_no_mask_has_none():
    """By key, results of keys that do not exist are dropped; by query they are masked."""
    masks = [allowed_pairs(whole_chunk(by_key, False), make_options(), make_mask_inputs()) for by_key in (True, False)]
    assert masks[0] == [] and len(masks[1]) == 1
    assert np.asarray(masks[1][0]).ravel().tolist() == [True] * L + [False]


def test_dropout_scales_what_it_keeps_and_is_the_same_by_query_and_by_key():
    mask_inputs = make_mask_inputs(seeds=jnp.asarray([[[7]]], jnp.uint32))
    options = make_options(rate=0.25)
    by_query, by_key = (
        as_matrix(jax.jit(lambda side=side: dropout_factor(whole_chunk(side), options, mask_inputs))(), side)
        for side in (False, True)
    )
    np.testing.assert_array_equal(by_query, by_key)
    assert set(np.unique(by_query)) == {0.0, np.float32(1 / 0.75)}
    assert dropout_factor(whole_chunk(False), options, make_mask_inputs()) is None


def softmax(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Computes causal softmax attention of one head in one formula: outputs [L, K] and log-sum-exp [L]."""
    logits = jnp.where(jnp.tril(jnp.ones((L, L), bool)), q @ k.T, MASKED)
    return jax.nn.softmax(logits) @ v, jax.nn.logsumexp(logits, axis=-1)


def test_outputs_and_gradients_of_logits_are_those_of_the_formula():
    arrays = [jnp.asarray(x, jnp.float32) for x in np.random.default_rng(0).normal(size=(4, L, 8))]
    options = make_options(Causal())

    @jax.jit
    def tiled(*arrays: jax.Array) -> tuple:
        tiles = [split_into_tiles(x[None], IN_ORDER, S)[:, None] for x in arrays]
        operands = TileOperands(tiles[0][:, :, :, None], tiles[1], tiles[2], ())
        return (
            operands,
            tiles[3][:, :, :, None],
            forward_chunk(whole_chunk(False), options, operands, make_mask_inputs()),
        )

    @jax.jit
    def defined(q: jax.Array, k: jax.Array, v: jax.Array, dout: jax.Array) -> tuple:
        (expected, lse), pull = jax.vjp(lambda q, k: softmax(q, k, v), q, k)
        by_tile = [
            split_into_tiles(x[None], IN_ORDER, S)[:, None, :, None] for x in (lse, (dout * expected).sum(axis=-1))
        ]
        return expected, lse, pull((dout, jnp.zeros_like(lse))), by_tile

    operands, dout_tiles, (out, lse) = tiled(*arrays)
    expected, expected_lse, gradients, by_tile = defined(*arrays)
    assert_close((np.reshape(out, (2 * S, 8))[:L], np.ravel(lse)[:L]), (expected, expected_lse))
    saved, (q, k, v) = SavedTiles(by_tile[0], dout_tiles, by_tile[1]), [np.asarray(x) for x in arrays[:3]]
    for by_key in (False, True):
        chunk = whole_chunk(by_key)
        pairs = jax.jit(
            lambda chunk=chunk: weights_and_logit_gradients(chunk, options, operands, make_mask_inputs(), saved, [])
        )()
        weights, dlogits = (as_matrix(x, by_key) for x in pairs)
        assert_close((dlogits @ k, dlogits.T @ q), gradients, gradient=True)
        assert_close(weights @ v, expected)
