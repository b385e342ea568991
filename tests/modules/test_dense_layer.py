"""Tests the dense layer in bfloat16 on a CPU: Flax's function, with gradients nearer to the exact ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.devices import using_platform
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.layer import LayerConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.modules.dense_layer import Dense
from efficient_attention.modules.layer_constructors import linear
from tests.attention.cells import quick
from tests.models.drawn import drawn

SHAPES = (3, 5, 24), (24, 40)


def operands(dtype: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns random inputs in `dtype`, a random kernel and a random bias."""
    rng = np.random.default_rng(0)
    x, kernel, bias = (rng.standard_normal(shape) for shape in (*SHAPES, SHAPES[1][1:]))
    return jnp.asarray(x, dtype), jnp.asarray(kernel, jnp.float32), jnp.asarray(bias, jnp.float32)


def results(layer: nnx.Linear, x: jax.Array, kernel: jax.Array, bias: jax.Array) -> list[np.ndarray]:
    """Returns the layer's output, and the float64 gradients of its sum of squares to input, kernel and bias."""
    graph, _ = nnx.split(layer)

    def apply(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = nnx.State({'kernel': nnx.Param(kernel), 'bias': nnx.Param(bias)})
        out = nnx.merge(graph, state)(x)
        return jnp.square(out.astype(jnp.float32)).sum(), out

    gradients, out = quick(jax.grad(apply, argnums=(0, 1, 2), has_aux=True))(x, kernel, bias)
    assert [leaf.dtype for leaf in gradients] == [x.dtype, jnp.float32, jnp.float32]
    return [np.asarray(leaf, np.float64) for leaf in (out, *gradients)]


def exact(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> list[np.ndarray]:
    """Computes output and gradients of the dense layer in float64."""
    x, kernel, bias = (np.asarray(leaf, np.float64) for leaf in (x, kernel, bias))
    out = x @ kernel + bias
    return [out, 2 * out @ kernel.T, np.einsum('abi,abo->io', x, 2 * out), 2 * out.sum((0, 1))]


def layers(dtype: str) -> tuple[nnx.Linear, nnx.Linear]:
    ours = nnx.eval_shape(lambda: linear(LayerConfig(dtype=dtype), *SHAPES[1], nnx.Rngs(0)))
    assert isinstance(ours, Dense)
    options = {'dtype': jnp.dtype(dtype), 'param_dtype': jnp.float32}
    return ours, nnx.eval_shape(lambda: nnx.Linear(*SHAPES[1], **options, rngs=nnx.Rngs(0)))


@pytest.mark.lenient_promotion  # Flax's own layer mixes dtypes.
def test_bfloat16_is_at_least_as_near_to_the_exact_result_as_flax():
    ours, theirs = (results(layer, *operands('bfloat16')) for layer in layers('bfloat16'))
    for own, other, true in zip(ours, theirs, exact(*operands('bfloat16')), strict=True):
        size = np.sqrt(np.square(true).mean())
        own, other = (np.sqrt(np.square(value - true).mean()) / size for value in (own, other))
        assert own < 6e-3 and own < 1.05 * other


def test_float32_is_flax_to_the_bit():
    for own, other in zip(*(results(layer, *operands('float32')) for layer in layers('float32')), strict=True):
        np.testing.assert_array_equal(own, other)


def test_without_bias_and_in_float32():
    config = LayerConfig(dtype='bfloat16')
    x, kernel, bias = operands('bfloat16')

    def made(**options: bool) -> nnx.Linear:
        return nnx.merge(*drawn(lambda: linear(config, *SHAPES[1], nnx.Rngs(0), **options)))

    bare = made(use_bias=False)
    bare.kernel[...] = kernel
    layers = made(in_float32=False), made(in_float32=True), bare
    rounded, plain, out = (np.asarray(one) for one in quick(lambda x: [layer(x) for layer in layers])(x))
    assert rounded.dtype == jnp.bfloat16 and plain.dtype == np.float32
    np.testing.assert_array_equal(plain.astype(jnp.bfloat16), rounded)
    np.testing.assert_allclose(out.astype(np.float64), exact(x, kernel, np.zeros(bias.shape))[0], rtol=1e-2, atol=6e-2)


@pytest.mark.lenient_promotion  # Flax's LayerNorm mixes dtypes.
def test_all_products_of_a_model_in_bfloat16_are_of_bfloat16_operands():
    """In the forward and backward pass, one float32 operand would make a product several times slower on a CPU."""
    config = ModelConfig(width=16, heads=2, layers=2, vocab_size=20, max_length=8, dtype='bfloat16')
    model = nnx.eval_shape(lambda: FineTuningModel(config, HeadConfig(kind='span'), rngs=nnx.Rngs(0)))
    graph, state = nnx.split(model)
    row = jax.ShapeDtypeStruct((2, 8), jnp.int32)
    batch = {'tokens': row, 'segments': row, 'token_types': row}

    def loss(state: nnx.State, batch: dict) -> jax.Array:
        return jnp.square(nnx.merge(graph, state)(batch)['logits']).sum()

    text = jax.jit(jax.grad(loss)).lower(state, batch).as_text()
    products = [line for line in text.splitlines() if 'stablehlo.dot_general' in line]
    assert len(products) >= 8 * 3 + 3  # 6 dense layers and 2 products of attention, each with two gradients; the head
    for line in products:
        left, right = line.split(' : (')[1].split(') -> ')[0].split(', ')
        assert left.endswith('xbf16>') and right.endswith('xbf16>'), line


@pytest.mark.parametrize('in_float32', [False, True])
@using_platform('tpu')
def test_elsewhere_gradients_are_of_bfloat16_operands_too(in_float32: bool):
    config, options = LayerConfig(dtype='bfloat16'), {'use_bias': False, 'in_float32': in_float32}
    graph, state = drawn(lambda: linear(config, 4, 6, nnx.Rngs(0), **options))
    loss = jax.grad(lambda state, x: jnp.square(nnx.merge(graph, state)(x).astype(jnp.float32)).sum(), (0, 1))
    text = jax.jit(loss).lower(state, jnp.ones((3, 4), jnp.bfloat16)).as_text()
    products = [line.split(' : (')[1].split(') -> ') for line in text.splitlines() if 'stablehlo.dot_general' in line]
    assert len(products) == 3 and all(operands.count('xbf16>') == 2 for operands, _ in products)
    assert products[0][1].endswith('xf32>' if in_float32 else 'xbf16>')
