"""Tests the layer: the places of its norms, dropout by row, and a list of sub-layers with cross-attention."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.cache import CacheSpec, init_cache
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.layer import CROSS_ATTENTION_LAYER, ConstantSubLayer, Layer, residual_sum
from efficient_attention.modules.layer_context import Context, EncodedSource, LayerMemory
from tests.attention.cells import quick
from tests.models.drawn import drawn
from tests.tolerances import assert_close

X = np.random.default_rng(0).normal(size=(3, 6, 16)).astype(np.float32)
SEGMENTS = jnp.asarray(np.ones((3, 6), np.int32))
POSITIONS = jnp.asarray(np.tile(np.arange(6, dtype=np.int32), (3, 1)))


def made(sub_layers: Any = None, **fields: Any) -> Layer:
    config = LayerConfig(**{'width': 16, 'heads': 2, 'init_std': 0.3} | fields)
    return nnx.merge(*drawn(lambda: Layer(config, sub_layers=sub_layers, rngs=nnx.Rngs(0))))


def test_layers_without_norms_or_sums():
    layer = made(norm='none')
    assert not hasattr(layer, 'attention_norm')

    @quick
    def with_sums(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        attended = x + layer.attention(x, SEGMENTS, POSITIONS)
        return layer(x, SEGMENTS, POSITIONS), attended + layer.feed_forward(attended)

    assert_close(*with_sums(X))
    for norm in ('none', 'pre'):
        layer = made(norm=norm, residual=False)

        @quick
        def without_sums(x: jax.Array, layer: Layer = layer, norm: str = norm) -> tuple[jax.Array, jax.Array]:
            normed = [(lambda x: x) if norm == 'none' else getattr(layer, sub.norm_name) for sub in layer.sub_layers]
            attended = layer.attention(normed[0](x), SEGMENTS, POSITIONS)
            return layer(x, SEGMENTS, POSITIONS), layer.feed_forward(normed[1](attended))

        assert_close(*without_sums(X))


@pytest.mark.parametrize('norm', ['pre', 'post'])
def test_order_of_norm_and_residual(norm: str):
    layer = made(norm=norm)

    @quick
    def both_ways(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = layer(x, SEGMENTS, POSITIONS)
        if norm == 'pre':
            x = x + layer.attention(layer.attention_norm(x), SEGMENTS, POSITIONS)
            return found, x + layer.feed_forward(layer.feed_forward_norm(x))
        x = layer.attention_norm(x + layer.attention(x, SEGMENTS, POSITIONS))
        return found, layer.feed_forward_norm(x + layer.feed_forward(x))

    assert_close(*both_ways(X))


def test_keys_for_rows_make_dropout_independent_of_the_batch():
    layer, keys = made(), jax.random.split(jax.random.key(1), 3)

    @quick
    def all_ways(x: jax.Array) -> tuple:
        part = layer(x[1:], SEGMENTS[1:], POSITIONS[1:], rng=keys[1:])
        return layer(x, SEGMENTS, POSITIONS, rng=keys), part, layer(x, SEGMENTS, POSITIONS)

    whole, part, plain = jax.device_get(all_ways(X))
    assert_close(whole[1:], part)
    assert np.abs(whole - plain).max() > 1e-2


def test_both_branches_drop_elements_of_their_own():
    layer = made(dropout_rate=0.5)
    context = Context(SEGMENTS, POSITIONS, rng=jax.random.key(1))
    dropped = quick(lambda x: [layer.reversible_branch(sub, x, context) == 0 for sub in layer.sub_layers])(X)
    share = (np.asarray(dropped[0]) == np.asarray(dropped[1])).mean()
    assert abs(share - 0.5) < 4 * 0.5 / X.size**0.5


def weighted(q: np.ndarray, k: np.ndarray, v: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Computes softmax(q k^T / sqrt(K)) v of two heads in float64, [L, 16] and [M, 16]; zeros where nothing is
    allowed.
    """
    heads = []
    for part in (slice(0, 8), slice(8, 16)):
        weights = np.where(allowed, np.exp(q[:, part] @ k[:, part].T / np.sqrt(8)), 0.0)
        heads.append(weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30) @ v[:, part])
    return np.concatenate(heads, -1)


@pytest.mark.parametrize('norm', ['pre', 'post'])
def test_cross_attention_reads_the_other_sequence_within_segments(norm: str):
    layer = made(CROSS_ATTENTION_LAYER, norm=norm)
    other = np.random.default_rng(2).normal(size=(3, 4, 16)).astype(np.float32)
    segments, other_segments = (
        np.asarray([[1, 1, 1, 2, 2, 0]] * 3),
        np.asarray([[1, 1, 2, 0], [1, 1, 1, 1], [2, 2, 0, 0]]),
    )
    other_sequence = EncodedSource(jnp.asarray(other), jnp.asarray(other_segments))
    context = Context(jnp.asarray(segments), POSITIONS, other=other_sequence)

    @quick
    def until_cross(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns the layer's output, the residual before cross-attention, and the input of cross-attention."""
        attended = x + layer.reversible_branch(layer.sub_layers[0], x, context)
        attended = attended if norm == 'pre' else layer.attention_norm(attended)
        read = layer.cross_attention_norm(attended) if norm == 'pre' else attended
        return layer(x, context.segments_BL, POSITIONS, other=context.other), attended, read

    @quick
    def after_cross(x: jax.Array) -> jax.Array:
        x = x if norm == 'pre' else layer.cross_attention_norm(x)
        x = x + layer.reversible_branch(layer.sub_layers[2], x, context)
        return x if norm == 'pre' else layer.feed_forward_norm(x)

    found, attended, read = jax.device_get(until_cross(X))
    read = np.asarray(read, np.float64)
    cross = layer.cross_attention

    def projected(linear: nnx.Linear, x: np.ndarray) -> np.ndarray:
        return x @ np.asarray(linear.kernel[...], np.float64) + np.asarray(linear.bias[...], np.float64)

    rows = []
    for row in range(3):
        allowed = (segments[row][:, None] == other_segments[row]) & (other_segments[row] != 0)
        y = np.asarray(other[row], np.float64)
        arrays = projected(cross.query, read[row]), projected(cross.key, y), projected(cross.value, y)
        rows.append(projected(cross.out, weighted(*arrays, allowed)))
    expected = after_cross(attended + np.stack(rows).astype(np.float32))
    assert_close(found, expected, gradient=True)
    with pytest.raises(ValueError, match='cross_attention reads another sequence; give it as `other`'):
        jax.eval_shape(lambda x: layer(x, context.segments_BL, POSITIONS), X)


def test_a_sub_layer_without_heads_adds_its_bias_everywhere_and_reads_nothing():
    module = ConstantSubLayer(LayerConfig(width=4, heads=2))
    module.bias[...] = jnp.arange(4.0)
    x_BLD = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)

    @quick
    @functools.partial(jax.grad, has_aux=True)
    def run(x_BLD: jax.Array) -> tuple[jax.Array, jax.Array]:
        return module(x_BLD).sum(), module(x_BLD)

    gradient, out = jax.device_get(run(x_BLD))
    np.testing.assert_array_equal(out, np.broadcast_to(np.arange(4.0), (2, 3, 4)))
    assert not gradient.any()


def test_a_call_is_the_output_of_run_for_every_field_of_the_context():
    layer, rng = made(), np.random.default_rng(5)
    memory, bias = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((3, 2, 16), (6, 8)))
    options = {'bias': bias, 'memory': LayerMemory(memory, jnp.ones((3, 2), jnp.int32)), 'rng': jax.random.key(7)}
    cell = made(cell='gru', state_dropout_rate=0.5, dropout_rate=0.0)
    state_options = {'state_rng': jax.random.key(8)}

    @quick
    def all_ways(x: jax.Array) -> list:
        found = []
        for one, keywords in ((layer, options), (cell, state_options)):
            (expected,), _ = one.run((x,), Context(SEGMENTS, POSITIONS, **keywords))
            found.append((one(x, SEGMENTS, POSITIONS, **keywords), expected))
        return [found, layer(x, SEGMENTS, POSITIONS, rng=options['rng']), cell(x, SEGMENTS, POSITIONS)]

    (of_layer, of_cell), without_memory, without_dropout = jax.device_get(all_ways(X))
    np.testing.assert_array_equal(*of_layer)
    np.testing.assert_array_equal(*of_cell)
    assert np.abs(without_memory - of_layer[1]).max() > 1e-2
    assert (without_dropout != of_cell[1]).any()


@pytest.mark.parametrize('cell', ['none', 'gru'])
def test_new_tokens_meet_no_dropout_whatever_keys_the_context_brings(cell: str):
    rates = {'dropout_rate': 0.5, 'attention_dropout_rate': 0.5, 'state_dropout_rate': 0.5 * (cell == 'gru')}
    layer = made(CROSS_ATTENTION_LAYER if cell == 'none' else None, cell=cell, attention='causal', **rates)
    states = np.random.default_rng(2).normal(size=(3, 4, 16)).astype(np.float32)
    other = EncodedSource(jnp.asarray(states), jnp.ones((3, 4), jnp.int32))
    spec = CacheSpec(layer.config.mechanisms[0], 2, 2, 8, 6)
    context, rng = Context(SEGMENTS, POSITIONS, other=other), jax.random.key(9)
    strange = context._replace(rng=rng, state_rng=rng, product_BLX=jnp.ones((3, 6, 48)))

    @quick
    def all_ways(x: jax.Array) -> tuple:
        if cell == 'none':
            before = [init_cache(spec, 3, 'float32', rng), layer.cross_attention.source_keys_for_decoding(other)]
        else:
            before = [layer.recurrent.empty_state(3)]
        (plain,), *_ = layer.run_with_cache((x,), context, spec, iter(before))
        (found,), *_ = layer.run_with_cache((x,), strange, spec, iter(before))
        return found, plain, layer(x, SEGMENTS, POSITIONS, other=other)

    found, plain, expected = jax.device_get(all_ways(X))
    assert_close(plain, expected)
    np.testing.assert_array_equal(found, plain)


def test_a_residual_sum_has_the_streams_dtype():
    total = quick(lambda x: residual_sum((x, x + 1), x.astype(jnp.bfloat16)))(X)
    assert total.dtype == X.dtype and (total == X + X.astype(jnp.bfloat16).astype(X.dtype)).all()
