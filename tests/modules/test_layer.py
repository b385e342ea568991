"""The layer: where the norms stand, dropout that follows rows, and a list with a cross-attention in it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.cache import CacheSpec, init_cache
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.context import Context, LayerMemory, OtherSequence
from efficient_attention.modules.layer import CROSS_ATTENTION_LAYER, Constant, Layer, residual_sum
from tests.tolerances import assert_close

X = jax.random.normal(jax.random.key(0), (3, 6, 16))
SEGMENTS = jnp.ones((3, 6), jnp.int32)
POSITIONS = jnp.tile(jnp.arange(6)[None], (3, 1))


def test_layers_without_norms_or_sums():
    config = LayerConfig(width=16, heads=2, norm='none', init_std=0.3)
    layer = Layer(config, rngs=nnx.Rngs(0))
    assert not hasattr(layer, 'attention_norm')
    x = X + layer.attention(X, SEGMENTS, POSITIONS)
    assert_close(layer(X, SEGMENTS, POSITIONS), x + layer.feed_forward(x))
    for norm in ('none', 'pre'):
        config = LayerConfig(width=16, heads=2, norm=norm, residual=False, init_std=0.3)
        layer = Layer(config, rngs=nnx.Rngs(0))
        normed = [(lambda x: x) if norm == 'none' else getattr(layer, sub.norm) for sub in layer.sub_layers]
        expected = layer.feed_forward(normed[1](layer.attention(normed[0](X), SEGMENTS, POSITIONS)))
        assert_close(layer(X, SEGMENTS, POSITIONS), expected)


@pytest.mark.parametrize('norm', ['pre', 'post'])
def test_order_of_norm_and_residual(norm: str):
    layer = Layer(LayerConfig(width=16, heads=2, norm=norm, init_std=0.3), rngs=nnx.Rngs(0))

    def attention(x: jax.Array) -> jax.Array:
        return layer.attention(x, SEGMENTS, POSITIONS)

    if norm == 'pre':
        x = X + attention(layer.attention_norm(X))
        expected = x + layer.feed_forward(layer.feed_forward_norm(x))
    else:
        x = layer.attention_norm(X + attention(X))
        expected = layer.feed_forward_norm(x + layer.feed_forward(x))
    assert_close(layer(X, SEGMENTS, POSITIONS), expected)


def test_keys_for_rows_make_dropout_independent_of_the_batch():
    layer = Layer(LayerConfig(width=16, heads=2, init_std=0.3), rngs=nnx.Rngs(0))
    keys = jax.random.split(jax.random.key(1), 3)
    whole = layer(X, SEGMENTS, POSITIONS, rng=keys)
    part = layer(X[1:], SEGMENTS[1:], POSITIONS[1:], rng=keys[1:])
    assert_close(whole[1:], part)
    assert jnp.abs(whole - layer(X, SEGMENTS, POSITIONS)).max() > 1e-2


def test_both_branches_drop_elements_of_their_own():
    layer = Layer(LayerConfig(width=16, heads=2, init_std=0.3, dropout_rate=0.5), rngs=nnx.Rngs(0))
    context = Context(SEGMENTS, POSITIONS, rng=jax.random.key(1))
    dropped = [layer.added(sub, X, context) == 0 for sub in layer.sub_layers]
    share = (dropped[0] == dropped[1]).mean()
    assert abs(share - 0.5) < 4 * 0.5 / X.size**0.5


def weighted(q: np.ndarray, k: np.ndarray, v: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """softmax(q k^T / sqrt(K)) v of two heads, [L, 16] and [M, 16], zeros where nothing is allowed, in float64."""
    heads = []
    for part in (slice(0, 8), slice(8, 16)):
        weights = np.where(allowed, np.exp(q[:, part] @ k[:, part].T / np.sqrt(8)), 0.0)
        heads.append(weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30) @ v[:, part])
    return np.concatenate(heads, -1)


@pytest.mark.parametrize('norm', ['pre', 'post'])
def test_cross_attention_reads_the_other_sequence_within_segments(norm: str):
    config = LayerConfig(width=16, heads=2, norm=norm, init_std=0.3)
    layer = Layer(config, sub_layers=CROSS_ATTENTION_LAYER, rngs=nnx.Rngs(0))
    other = jax.random.normal(jax.random.key(2), (3, 4, 16))
    segments, other_segments = (
        np.asarray([[1, 1, 1, 2, 2, 0]] * 3),
        np.asarray([[1, 1, 2, 0], [1, 1, 1, 1], [2, 2, 0, 0]]),
    )
    context = Context(jnp.asarray(segments), POSITIONS, other=OtherSequence(other, jnp.asarray(other_segments)))
    attended = X + layer.added(layer.sub_layers[0], X, context)
    attended = attended if norm == 'pre' else layer.attention_norm(attended)

    read = np.asarray(layer.cross_attention_norm(attended) if norm == 'pre' else attended, np.float64)
    cross = layer.cross_attention
    kernels = (
        np.asarray(linear.kernel[...], np.float64) for linear in (cross.query, cross.key, cross.value, cross.out)
    )
    query, key, value, out = kernels
    rows = []
    for row in range(3):
        allowed = (segments[row][:, None] == other_segments[row]) & (other_segments[row] != 0)
        y = np.asarray(other[row], np.float64)
        rows.append(weighted(read[row] @ query, y @ key, y @ value, allowed) @ out)
    x = attended + jnp.asarray(np.stack(rows), jnp.float32)
    x = x if norm == 'pre' else layer.cross_attention_norm(x)
    x = x + layer.added(layer.sub_layers[2], x, context)
    expected = x if norm == 'pre' else layer.feed_forward_norm(x)
    assert_close(layer(X, context.segments_BL, POSITIONS, other=context.other), expected, gradient=True)
    with pytest.raises(ValueError, match='cross_attention reads another sequence; give it as `other`'):
        layer(X, context.segments_BL, POSITIONS)


def test_a_sub_layer_without_heads_adds_its_bias_everywhere_and_reads_nothing():
    module = Constant(LayerConfig(width=4, heads=2))
    module.bias[...] = jnp.arange(4.0)
    x_BLD = jax.random.normal(jax.random.key(0), (2, 3, 4))
    np.testing.assert_array_equal(module(x_BLD), np.broadcast_to(np.arange(4.0), (2, 3, 4)))
    assert not jax.grad(lambda x_BLD: module(x_BLD).sum())(x_BLD).any()


def test_a_call_is_the_output_of_run_for_every_field_of_the_context():
    layer = Layer(LayerConfig(width=16, heads=2, init_std=0.3), rngs=nnx.Rngs(0))
    memory = LayerMemory(jax.random.normal(jax.random.key(5), (3, 2, 16)), jnp.ones((3, 2), jnp.int32))
    options = {'bias': jax.random.normal(jax.random.key(6), (6, 8)), 'memory': memory, 'rng': jax.random.key(7)}
    (expected,), _ = layer.run((X,), Context(SEGMENTS, POSITIONS, **options))
    np.testing.assert_array_equal(layer(X, SEGMENTS, POSITIONS, **options), expected)
    assert jnp.abs(layer(X, SEGMENTS, POSITIONS, rng=jax.random.key(7)) - expected).max() > 1e-2
    cell = Layer(LayerConfig(width=16, cell='gru', state_dropout_rate=0.5, dropout_rate=0.0), rngs=nnx.Rngs(0))
    (expected,), _ = cell.run((X,), Context(SEGMENTS, POSITIONS, state_rng=jax.random.key(8)))
    np.testing.assert_array_equal(cell(X, SEGMENTS, POSITIONS, state_rng=jax.random.key(8)), expected)
    assert (cell(X, SEGMENTS, POSITIONS) != expected).any()


@pytest.mark.parametrize('cell', ['none', 'gru'])
def test_new_tokens_meet_no_dropout_whatever_keys_the_context_brings(cell: str):
    rates = {'dropout_rate': 0.5, 'attention_dropout_rate': 0.5, 'state_dropout_rate': 0.5 * (cell == 'gru')}
    config = LayerConfig(width=16, heads=2, init_std=0.3, cell=cell, attention='causal', **rates)
    layer = Layer(config, sub_layers=CROSS_ATTENTION_LAYER if cell == 'none' else None, rngs=nnx.Rngs(0))
    other = OtherSequence(jax.random.normal(jax.random.key(2), (3, 4, 16)), jnp.ones((3, 4), jnp.int32))
    spec = CacheSpec(config.mechanisms[0], 2, 2, 8, 6)
    context, rng = Context(SEGMENTS, POSITIONS, other=other), jax.random.key(9)
    if cell == 'none':
        before = [init_cache(spec, 3, 'float32', rng), layer.cross_attention.fixed_keys(other)]
    else:
        before = [layer.recurrent.empty_state(3)]
    (plain,), *_ = layer.go_on((X,), context, spec, iter(before))
    assert_close(plain, layer(X, SEGMENTS, POSITIONS, other=other))
    strange = context._replace(rng=rng, state_rng=rng, product_BLX=jnp.ones((3, 6, 48)))
    (found,), *_ = layer.go_on((X,), strange, spec, iter(before))
    np.testing.assert_array_equal(found, plain)


def test_a_residual_sum_has_the_streams_dtype():
    total = residual_sum((X, X + 1), X.astype(jnp.bfloat16))
    assert total.dtype == X.dtype and (total == X + X.astype(jnp.bfloat16).astype(X.dtype)).all()
