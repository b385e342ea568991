"""Tests what the tiled relative term refuses, and its helper functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import efficient_attention as ea
from efficient_attention.attention.relative import Relative, relative_shift
from efficient_attention.attention.softmax.tile_chunks import ChosenTiles
from efficient_attention.attention.softmax.tile_relative import RelativeBias, RelativeChunk

S = 64


def test_shift_moves_each_row_to_its_keys():
    products = jnp.arange(S * 3 * S, dtype=jnp.float32).reshape(1, S, 3 * S)
    shifted = relative_shift(products, 2 * S)
    rows, columns = np.arange(S)[:, None], np.arange(2 * S)[None]
    np.testing.assert_array_equal(shifted[0], np.asarray(products)[0, rows, S - 1 - rows + columns])


def test_tiles_beyond_the_table_are_its_ends_and_send_their_gradient_there():
    table = jnp.arange(5.0).reshape(1, 1, 1, 5, 1, 1)
    term = RelativeBias(jnp.zeros((1, 1, 6, 1, 1, 1)), table, diagonal=40, widest=4)
    computed_t, firsts = jnp.asarray([49, 41, 39, 36, 0]), jnp.zeros(5, jnp.int32)
    chosen = ChosenTiles(computed_t, firsts[None, :, None] + jnp.arange(2)[None, None], jnp.zeros(5, bool))
    picked = term.table_tiles(term.first_table_tiles(chosen), 3)
    expected = [[0, 0, 0], [0, 0, 1], [1, 2, 3], [4, 4, 4], [4, 4, 4]]
    np.testing.assert_array_equal(picked.reshape(5, 3), expected)
    gradient = RelativeChunk(jnp.zeros((1, 1, 5, 1, 1, 1)), jnp.arange(15.0).reshape(picked.shape))
    total, arrays = term.add_chunk_gradient(term.zero_gradient(), chosen, gradient)
    sums = np.zeros(5)
    np.add.at(sums, np.asarray(expected).reshape(-1), np.arange(15.0))
    np.testing.assert_array_equal(term.finish_gradient(total, arrays).table_1GhnSK.reshape(5), sums)


@pytest.mark.parametrize(
    'pattern, positions',
    [
        ('causal & strided(8)', np.arange(130)[None]),
        ('sparse_fixed(64, 8)', np.arange(130)[None]),
        ('causal', 2 * np.arange(130)[None]),
        ('causal', jnp.arange(130)[None]),
    ],
)
def test_tiles_that_are_no_neighbours_are_refused(pattern, positions):
    options = {'query_positions': positions, 'key_positions': positions, 'backend': 'blocked'}
    x, table = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1, 130, 1, 4), (9, 1, 4)))

    def call(x: jax.Array, table: jax.Array) -> jax.Array:
        return ea.attend(x, x, x, ea.parse_mechanism(pattern), relative=Relative(x, table), **options)

    with pytest.raises(NotImplementedError, match='blocked has relative attention (only )?for'):
        jax.eval_shape(call, x, table)
