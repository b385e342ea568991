"""Tests the encoder: packed documents equal separate ones, padding counts for nothing, and rows are independent."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.encoder import Encoder
from tests.models.drawn import drawn
from tests.tolerances import assert_close

CONFIG = ModelConfig(width=16, heads=2, vocab_size=30, layers=2, max_length=12, init_std=0.3)
POSITIONS = {
    'learned': {},
    'sinusoidal': {'positions': 'sinusoidal'},
    'rotary': {'positions': 'none', 'rotary': True},
}
NORMS = {'post-norm': {'norm': 'post'}, 'pre-norm': {'norm': 'pre'}}
LENGTHS = (5, 3, 2)  # The first row of 12 packs three documents; two positions are padding.
TOKENS = np.random.default_rng(0).integers(0, 28, (3, 12)).astype(np.int32)
TOKENS[0, 10:] = 28
SEGMENTS = np.int32([[1] * 5 + [2] * 3 + [3] * 2 + [0] * 2, [1] * 12, [1] * 7 + [2] * 5])
RESTARTING = np.int32([[*range(5), *range(3), *range(2), 0, 0], [*range(12)], [*range(7), *range(5)]])
TYPES = np.zeros_like(TOKENS)


COUNTED = np.tile(np.arange(12, dtype=np.int32), (3, 1))


@functools.cache
def encoder_of(**fields: Any) -> tuple[nnx.GraphDef, dict]:
    config = dataclasses.replace(CONFIG, **fields)
    return drawn(lambda: Encoder(config, rngs=nnx.Rngs(0)))


@functools.partial(jax.jit, static_argnums=0)
def apply(graph: nnx.GraphDef, state: dict, *arrays: jax.Array, **options: jax.Array | None) -> jax.Array:
    return nnx.merge(graph, state)(*arrays, **options)


def encode(
    fields: dict,
    tokens: np.ndarray = TOKENS,
    segments: np.ndarray = SEGMENTS,
    positions: np.ndarray = RESTARTING,
    types: np.ndarray = TYPES,
    rng: jax.Array | None = None,
) -> np.ndarray:
    """Returns the encoder's output; calls always have the same arguments and shapes, so that each config
    compiles once.
    """
    options = {'positions_BL': positions, 'token_types_BL': types, 'rng': rng}
    return np.asarray(apply(*encoder_of(**fields), tokens, segments, **options))


AXIAL = {'positions': 'axial', 'axial_shape': (3, 4), 'axial_widths': (6, 10)}
CASES = [
    pytest.param(fields | norm, id=f'{name}, {kind}')
    for name, fields in POSITIONS.items()
    for kind, norm in NORMS.items()
]
CASES += [
    pytest.param(AXIAL | {'relative': 't5'}, id='t5'),
    pytest.param({'positions': 'none', 'relative': 'tupe_r'}, id='tupe'),
]


@pytest.mark.parametrize('fields', CASES)
def test_packed_documents_equal_the_documents_alone(fields: dict):
    packed = encode(fields)[0]
    # Each document is in a separate row, with padding that differs from its former neighbours.
    bounds = np.cumsum([0, *LENGTHS])
    alone = np.full((3, 12), 29, np.int32)
    segments = np.int32([[1] * length + [0] * (12 - length) for length in LENGTHS])
    for row, (start, stop) in enumerate(zip(bounds, bounds[1:], strict=False)):
        alone[row, : stop - start] = TOKENS[0, start:stop]
    unpacked = encode(fields, alone, segments, COUNTED)
    for row, (start, stop) in enumerate(zip(bounds, bounds[1:], strict=False)):
        np.testing.assert_allclose(packed[start:stop], unpacked[row, : stop - start], atol=1e-5)


@pytest.mark.parametrize('positions', POSITIONS.values(), ids=POSITIONS)
def test_positions_matter_to_their_own_document(positions: dict):
    moved = RESTARTING.copy()
    moved[0, 3] += 2
    change = np.abs(encode(positions, positions=moved) - encode(positions))
    assert change[0, :5].max() > 1e-3
    assert not change[0, 5:10].any() and not change[1:].any()


def test_without_positions_there_is_no_order():
    swapped = np.concatenate([TOKENS[:, 1::-1], TOKENS[:, 2:]], axis=1)
    values, other = encode({'positions': 'none'}), encode({'positions': 'none'}, swapped)
    np.testing.assert_allclose(values[:, 1::-1], other[:, :2], atol=1e-5)
    np.testing.assert_allclose(values[:, 2:10], other[:, 2:10], atol=1e-5)


def test_by_default_positions_count_from_0_and_types_are_0():
    given = encode({}, positions=COUNTED)
    assert_close(apply(*encoder_of(), TOKENS, SEGMENTS), given)


@pytest.mark.parametrize(
    'tokens, line',
    [
        (np.zeros((1, 13), np.int32), r'the length of a row is 13; it must be at most 12, the number of positions'),
        (np.zeros(12, np.int32), r'the shape of tokens is \(12,\); it must be \[rows, positions\]'),
        (np.zeros((1, 12), np.float32), "the type of tokens is 'float32'; it must be an integer type"),
    ],
)
def test_bad_tokens_are_one_line(tokens: np.ndarray, line: str):
    with pytest.raises(InputError, match=line):
        nnx.eval_shape(lambda: Encoder(CONFIG, rngs=nnx.Rngs(0))(jnp.asarray(tokens), jnp.ones(tokens.shape, int)))


def test_token_types_matter():
    types = (np.arange(12)[None] == 0) + TYPES
    assert np.abs(encode({}, types=types) - encode({}))[:, 1:5].max() > 1e-3


def test_what_stands_in_the_padding_changes_nothing():
    is_padding = SEGMENTS == 0
    other = encode({}, np.where(is_padding, np.int32(17), TOKENS), types=is_padding.astype(np.int32))
    np.testing.assert_array_equal(encode({})[~is_padding], other[~is_padding])


def test_the_padding_gets_no_gradient():
    graph, state = encoder_of()

    def loss(state: dict) -> jax.Array:
        x_BLD = nnx.merge(graph, state)(*map(jnp.asarray, (TOKENS, SEGMENTS)))
        return jnp.where(SEGMENTS > 0, x_BLD[..., 0], 0.0).sum()

    table = np.asarray(jax.jit(jax.grad(loss))(state)['embeddings']['token']['embedding'])
    assert not table[28].any()  # This token occurs only in padding.
    assert table[TOKENS[0, 0]].any()


def test_permuting_the_batch_permutes_the_output_under_dropout_too():
    keys, order = jax.random.split(jax.random.key(0), 3), np.asarray([2, 0, 1])
    values = encode({}, rng=keys)
    shuffled = encode({}, TOKENS[order], SEGMENTS[order], RESTARTING[order], rng=keys[order])
    np.testing.assert_array_equal(values[order], shuffled)
    assert np.abs(values - encode({})).max() > 1e-2


@pytest.mark.lenient_promotion  # Flax's LayerNorm mixes bfloat16 with float32.
def test_bfloat16_computes_near_float32_with_parameters_in_float32():
    graph, state = encoder_of(dtype='bfloat16')

    def first(state: dict) -> jax.Array:
        return nnx.merge(graph, state)(*map(jnp.asarray, (TOKENS, SEGMENTS)))[0, 0, 0].astype(jnp.float32)

    gradient = jax.eval_shape(jax.grad(first), state)
    assert {leaf.dtype for leaf in jax.tree.leaves((state, gradient))} == {jnp.dtype('float32')}
    low = encode({'dtype': 'bfloat16'})
    assert low.dtype == jnp.bfloat16
    # The measured error is at most 0.037, after some 10 roundings of 4e-3 each on values of size 1 to 2.
    np.testing.assert_allclose(np.asarray(low, np.float32), encode({}), atol=0.1)


def test_only_a_pre_norm_encoder_ends_with_a_norm():
    assert nnx.merge(*encoder_of()).norm is None
    graph, state = encoder_of(norm='pre')
    state = state | {'norm': {'scale': np.ones(16, np.float32), 'bias': np.zeros(16, np.float32)}}
    last = apply(graph, state, TOKENS, SEGMENTS, positions_BL=RESTARTING, token_types_BL=TYPES, rng=None)
    last = np.asarray(last)
    np.testing.assert_allclose(last.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(last.std(-1), 1, atol=1e-4)


@pytest.mark.parametrize('types', [2, 1])
def test_outputs_of_a_batch_are_the_vectors(types: int):
    graph, state = encoder_of(token_types=types)
    batch = {'tokens': TOKENS, 'segments': SEGMENTS, 'token_types': TYPES + 1}
    outputs = jax.jit(lambda state, batch: nnx.merge(graph, state).outputs(batch))(state, batch)
    expected = apply(graph, state, TOKENS, SEGMENTS, token_types_BL=TYPES + 1 if types > 1 else None)
    assert set(outputs) == nnx.merge(graph, state).token_outputs
    assert_close(outputs['vectors'], expected)
