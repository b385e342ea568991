"""Tests gates of heads: 1 changes nothing, 0 zeroes a head's values, and gradients are those of finite differences."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.cached_decoding import CachedDecoder
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.models.head_gates import gates_without, parse_heads, set_head_gates
from efficient_attention.models.layer_stack import Stack
from efficient_attention.models.segment_memory import empty_memory
from tests.models.drawn import drawn

SIZES: dict[str, Any] = {'width': 16, 'heads': 2, 'layers': 3, 'vocab_size': 8, 'token_types': 0, 'max_length': 8}
SIZES |= {'feed_forward_width': 16, 'attention_dropout_rate': 0.0, 'dropout_rate': 0.0}
TOKENS = jax.device_put(np.random.default_rng(0).integers(0, 8, (2, 8), np.int32))
SEGMENTS = jax.device_put(np.int32([[1] * 8, [1] * 6 + [0] * 2]))
RELATIVE: dict[str, Any] = {'attention': 'causal', 'relative': 'transformer_xl', 'positions': 'none'}
MODELS: dict[str, tuple[type, dict[str, Any]]] = {
    'encoder': (Encoder, {}),
    'two mechanisms': (Encoder, {'attention': 'window(2); full', 'layers': 4}),
    'shared layers': (Encoder, {'sharing': 'all', 'attention': 'lsh(2, 2)', 'shared_qk': True}),
    'uneven layers': (Encoder, {'layer_heads': (1, 2, 0)}),
    'reversible': (Encoder, {'stack': 'reversible', 'norm': 'pre'}),
    'global tokens': (Encoder, {'attention': 'window(1)', 'global_tokens': 1}),
    'favor': (Encoder, {'attention': 'favor(8, orthogonal=False)'}),
    'decoder': (Decoder, RELATIVE),
}


def made(name: str) -> Any:
    kind, fields = MODELS[name]
    return nnx.merge(*drawn(lambda: kind(ModelConfig(**SIZES | fields), rngs=nnx.Rngs(0))))


def stacks_of(model: nnx.Module) -> list[Stack]:
    return [module for _, module in nnx.iter_graph(model) if isinstance(module, Stack)]


def output(model: Any, gates_NH: Any = None) -> jax.Array:
    """Returns the model's output, with gates if there are some."""
    graph, state = nnx.split(model)

    @jax.jit
    def run(state: Any, gates_NH: Any) -> jax.Array:
        model = nnx.merge(graph, state)
        if gates_NH is not None:
            set_head_gates(model, gates_NH)
        options = {'is_global_BL': jnp.arange(8)[None] == 0} if getattr(model.config, 'global_tokens', 0) else {}
        return model(TOKENS, SEGMENTS, **options) * (SEGMENTS[..., None] > 0).astype(jnp.float32)

    return run(state, None if gates_NH is None else jnp.asarray(gates_NH))


def without_values(model: Any, layer: int, head: int) -> None:
    """Sets the rows of one head in a layer's output projection to zero, in separate or stacked arrays."""
    for stack in stacks_of(model):
        if not stack.first <= layer < stack.first + stack.config.layers:
            continue
        kernel, rows = stack.layers.attention.out.kernel, slice(head * 8, head * 8 + 8)
        place = layer - stack.first
        kernel[...] = kernel[...].at[place, rows].set(0.0)


@pytest.mark.parametrize('name', MODELS)
def test_gates_of_1_change_no_bit_and_0_zeroes_the_values(name: str):
    model = made(name)
    config = model.config
    plain = output(model)
    np.testing.assert_array_equal(output(model, np.ones((config.layers, 2), np.float32)), plain)
    masked = output(model, gates_without(config, [(1, 1)]))
    assert np.abs(masked - plain).max() > 1e-3
    if name != 'shared layers':  # the kernel of a shared layer serves all layers
        without_values(model, 1, 1)
        np.testing.assert_allclose(masked, output(model), atol=1e-5)


@pytest.mark.parametrize('name', ['encoder', 'shared layers', 'reversible', 'decoder'])
def test_gradients_of_gates_are_finite_differences(name: str):
    model = made(name)
    graph, state = nnx.split(model)
    rng = np.random.default_rng(0)
    factor, direction = (
        rng.normal(size=shape).astype(np.float32) for shape in ((2, 8, output(model).shape[-1]), (3, 2))
    )

    @jax.jit
    def loss(gates_NH: jax.Array) -> jax.Array:
        model = nnx.merge(graph, state)
        set_head_gates(model, gates_NH)
        return (model(TOKENS, SEGMENTS) * factor * (SEGMENTS[..., None] > 0).astype(jnp.float32)).sum() / 16

    gates_NH = jnp.asarray(rng.uniform(0.5, 1.0, (3, 2)), jnp.float32)
    slope = np.sum(np.asarray(jax.grad(loss)(gates_NH)) * direction)
    step = 1e-2
    difference = (loss(gates_NH + step * direction) - loss(gates_NH - step * direction)) / (2 * step)
    np.testing.assert_allclose(slope, difference, rtol=2e-2)


@pytest.mark.parametrize('memory_length', [0, 4])
def test_gates_hold_with_memory_and_in_decoding_token_by_token(memory_length: int):
    config = ModelConfig(**SIZES | RELATIVE | {'memory_length': memory_length})
    model = nnx.merge(*drawn(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    set_head_gates(model, gates_without(config, [(0, 1), (2, 0)]))
    segments_BL = jnp.ones((2, 8), jnp.int32)

    @jax.jit
    def both() -> tuple[jax.Array, jax.Array]:
        if memory_length:
            after_BLD, _ = model.continue_from_memory(TOKENS, segments_BL, empty_memory(config, 2))
            return model(TOKENS, segments_BL), model.logits(after_BLD)
        cached = CachedDecoder(model, 8)
        return model(TOKENS, segments_BL), cached(cached.init_state(2), TOKENS)[0]

    np.testing.assert_allclose(*both(), atol=1e-5)


@pytest.mark.parametrize(
    'text, said',
    [
        ('', r"^'' is no list of heads; write LAYER.HEAD with commas, such as 3.1,4.7$"),
        ('3', r"^'3' is no list of heads; write LAYER.HEAD with commas, such as 3.1,4.7$"),
        ('3.0', '^there is no layer 3; the model has layers 0 to 2$'),
        ('1.1,0.1', '^there is no head 0.1; layer 0 has 1 heads, from 0$'),
    ],
)
def test_heads_that_are_not_there_are_named(text: str, said: str):
    config = ModelConfig(**SIZES | {'layer_heads': (1, 2, 0)})
    assert gates_without(config, parse_heads(' 1.1 , 0.0')).tolist() == [[0, 1], [1, 0], [1, 1]]
    with pytest.raises(InputError, match=said):
        gates_without(config, parse_heads(text))


def test_models_without_one_stack_of_attention_are_refused():
    encoder = ModelConfig(**SIZES)
    with pytest.raises(InputError, match='^gates of heads need a model with one stack of layers'):
        set_head_gates(
            nnx.eval_shape(lambda: EncoderDecoder(ModelConfig(**SIZES, decoder_layers=3), rngs=nnx.Rngs(0))),
            np.ones((3, 2)),
        )
    recurrent = ModelConfig(width=8, cell='gru', attention='causal', vocab_size=8, token_types=0, positions='none')
    with pytest.raises(InputError, match='^gates of heads need attention layers, and the layers are recurrent$'):
        set_head_gates(nnx.eval_shape(lambda: Decoder(recurrent, rngs=nnx.Rngs(0))), np.ones((3, 2)))
    with pytest.raises(ValueError, match=r'^gates_NH is \(2, 2\); the model has 3 layers of up to 2 heads$'):
        set_head_gates(nnx.eval_shape(lambda: Encoder(encoder, rngs=nnx.Rngs(0))), np.ones((2, 2)))
