"""Tests the embeddings against the sum of table rows, with their options of positions, types and width."""

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.embeddings import Embeddings
from efficient_attention.modules.positions import sinusoid
from tests.models.drawn import drawn
from tests.tolerances import assert_close

TOKENS = np.int32([[3, 1, 4, 1], [5, 9, 2, 6]])
TYPES = np.int32([[0, 0, 1, 1], [0, 1, 1, 1]])
POSITIONS = np.int32([[0, 1, 0, 1], [0, 1, 2, 3]])


def make(**fields) -> Embeddings:
    config = {'width': 16, 'heads': 2, 'vocab_size': 11, 'max_length': 6, 'init_std': 0.3, 'dropout_rate': 0.5}
    return nnx.merge(*drawn(lambda: Embeddings(ModelConfig(**(config | fields)), rngs=nnx.Rngs(0))))


call = nnx.jit(lambda module, *ids, **options: module(*ids, **options))


def vectors(module: Embeddings) -> np.ndarray:
    return np.asarray(call(module, TOKENS, TYPES, POSITIONS))


def rows(table: nnx.Embed, ids: np.ndarray) -> np.ndarray:
    return np.asarray(table.embedding[...])[ids]


def normed(module: Embeddings, x: np.ndarray) -> np.ndarray:
    scale, bias = (np.asarray(leaf[...]) for leaf in (module.norm.scale, module.norm.bias))
    return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) * scale + bias


def test_sum_of_three_rows_normalised():
    module = make()
    parts = ((module.token, TOKENS), (module.token_type, TYPES), (module.position, POSITIONS))
    assert_close(vectors(module), normed(module, sum(rows(*part) for part in parts)))


def test_positions_may_begin_behind_rows_that_nobody_reads():
    plain, shifted = make(max_length=4), make(max_length=6, position_offset=2)
    shifted.token, shifted.token_type, shifted.norm = plain.token, plain.token_type, plain.norm
    table = np.asarray(plain.position.embedding[...])
    shifted.position.embedding[...] = jax.device_put(np.pad(table, ((2, 0), (0, 0)), constant_values=9.0))
    np.testing.assert_array_equal(vectors(shifted), vectors(plain))


def test_without_a_norm_the_sum_itself_is_given():
    module = make(embedding_norm=False, positions='none', token_types=0)
    assert 'norm' not in nnx.to_pure_dict(nnx.state(module))
    np.testing.assert_array_equal(vectors(module), rows(module.token, TOKENS))


def test_factorised_tables_are_narrow_and_projected():
    module = make(embedding_width=4)
    assert module.token.embedding.shape == (11, 4) and module.position.embedding.shape == (6, 4)
    parts = ((module.token, TOKENS), (module.token_type, TYPES), (module.position, POSITIONS))
    narrow_BLE = normed(module, sum(rows(*part) for part in parts))
    projection = module.projection
    assert_close(vectors(module), narrow_BLE @ np.asarray(projection.kernel[...]) + np.asarray(projection.bias[...]))


def test_sinusoidal_positions_need_no_table():
    module = make(positions='sinusoidal', token_types=0)
    assert module.position is None
    sinusoids = np.asarray(jax.jit(sinusoid, static_argnums=1)(POSITIONS, 16))
    assert_close(vectors(module), normed(module, rows(module.token, TOKENS) + sinusoids))


@pytest.mark.parametrize('fields', [{'axial_widths': (6, 10)}, {'axial_sum': True}], ids=['joined', 'added'])
def test_axial_positions_are_added_to_the_tokens(fields: dict):
    module = make(positions='axial', axial_shape=(2, 2), token_types=0, embedding_norm=False, **fields)
    assert_close(vectors(module), rows(module.token, TOKENS) + np.asarray(call(module.position, POSITIONS)))
    assert [table.embedding.shape for table in module.position.tables] == [
        (2, width) for width in fields.get('axial_widths', (16, 16))
    ]


def test_without_positions_and_types_only_the_token_counts():
    module = make(positions='none', token_types=0)
    np.testing.assert_array_equal(vectors(module), call(module, TOKENS, 1 - TYPES, POSITIONS + 1))


def test_scaled_tokens_are_multiplied_by_the_root_of_the_width():
    module = make(embedding_scale=True, embedding_norm=False, positions='none', token_types=0)
    assert_close(vectors(module), 4.0 * rows(module.token, TOKENS))


def test_narrow_tables_are_scaled_by_the_width_of_the_model():
    fields = {'embedding_width': 4, 'embedding_norm': False, 'positions': 'none', 'token_types': 0}
    module = make(**fields, embedding_scale=True)
    scaled = 4.0 * rows(module.token, TOKENS)  # The factor is sqrt(16), not sqrt(4).
    projection = module.projection
    assert_close(vectors(module), scaled @ np.asarray(projection.kernel[...]) + np.asarray(projection.bias[...]))


@pytest.mark.parametrize('embedding_width', [16, 8])
def test_dropout_needs_a_key_and_stands_before_the_projection(embedding_width: int):
    module = make(embedding_width=embedding_width)
    dropped = np.asarray(call(module, TOKENS, TYPES, POSITIONS, rng=jax.random.key(0)))
    share = np.mean(dropped == 0)
    assert 0.3 < share < 0.7 if embedding_width == 16 else share == 0
    np.testing.assert_array_equal(dropped, call(module, TOKENS, TYPES, POSITIONS, rng=jax.random.key(0)))
    assert np.abs(dropped - vectors(module)).max() > 1e-3
