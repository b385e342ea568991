"""Tests layer activations: they equal a recomputation layer by layer, and cost nothing where nobody asks for them."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.attend import attention_weights
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.cached_decoding import CachedDecoder
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.layer_activations import LayerActivations
from efficient_attention.models.layer_stack import Stack, layer_mechanisms
from efficient_attention.modules.layer import CROSS_ATTENTION_LAYER, Layer, initial_streams
from efficient_attention.modules.layer_context import Context, EncodedSource
from tests.models.drawn import drawn
from tests.tolerances import assert_close

LENGTH = 6
SIZES: dict[str, Any] = {
    'width': 16, 'heads': 2, 'layers': 2, 'vocab_size': 11, 'max_length': LENGTH, 'dropout_rate': 0.0,
    'attention_dropout_rate': 0.0, 'positions': 'none', 'attention': 'causal; causal & window(2)',
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    'plain': {'rotary': True, 'remat': 'full'},
    'distances': {'relative': 'transformer_xl', 'norm': 'pre'},
    'shared': {'sharing': 'all', 'relative': 't5', 'attention': 'causal'},
    'reversible': {'stack': 'reversible', 'norm': 'pre', 'relative': 'tupe'},
}
RNG = np.random.default_rng(0)
X = jax.device_put(RNG.normal(size=(2, LENGTH, 16)).astype(np.float32))
SEGMENTS = jax.device_put(np.int32([[1, 1, 1, 2, 2, 0], [1] * 6]))
POSITIONS = jax.device_put(np.tile(np.arange(LENGTH, dtype=np.int32), (2, 1)))
TOKENS = jax.device_put(np.int32([[1, 4, 2, 9, 3, 3], [7, 7, 1, 10, 5, 2]]))


@functools.cache
def stack_of(name: str) -> Stack:
    config = ModelConfig(**SIZES | CASES[name])
    return nnx.merge(*drawn(lambda: Stack(config, causal=True, rngs=nnx.Rngs(0))))


def recomputed(stack: Stack) -> tuple[list[jax.Array], list[jax.Array], list[jax.Array]]:
    """Returns each layer's output, the input of its attention and that attention's output, from layers called one by
    one.
    """
    layers, terms, outputs, reads, attended = stack.parameter_layers(), stack.shared_terms(POSITIONS), [], [], []
    first = second = X
    for number, mechanism in enumerate(layer_mechanisms(stack.config)):
        layer = layers[stack.config.layer_to_param_index[number]]
        context = Context(SEGMENTS, POSITIONS).with_shared_terms(terms)
        reads.append(layer.attention_norm(second) if stack.config.norm == 'pre' else second)
        attended.append(layer.attention.run(reads[-1], context, mechanism)[0])
        if stack.config.stack == 'reversible':
            first = first + attended[-1]
            second = second + layer.reversible_branch(layer.sub_layers[1], first, context)
            outputs.append((first + second) / 2)
        else:
            first = second = layer.run((second,), context, mechanism)[0][0]
            outputs.append(second)
    return outputs, reads, attended


def from_operands(
    layer: Layer, x_BLD: jax.Array, activations: LayerActivations, number: int, stack: Stack
) -> jax.Array:
    """Returns a layer's attention output, computed with the weights of the returned queries and keys."""
    mechanism = layer_mechanisms(stack.config)[number]
    operands = jax.tree.map(lambda leaf: leaf[number], activations.attention['attention'])
    bias = stack.shared_terms(POSITIONS).bias
    segments = {'query_segments': SEGMENTS, 'key_segments': SEGMENTS}
    weights_BHLM = attention_weights(*operands[:2], mechanism, bias=bias, relative=operands.relative, **segments)
    value_BMHK = layer.attention.split_heads(layer.attention.value(x_BLD))
    return layer.attention.merge_and_project_heads(jnp.einsum('BHLM,BMHK->BLHK', weights_BHLM, value_BMHK))


@pytest.mark.parametrize('name', CASES)
def test_outputs_and_weights_are_those_of_layers_one_by_one(name: str):
    stack = stack_of(name)

    @jax.jit
    def run() -> tuple[Any, ...]:
        out, activations = stack.with_layer_activations(X, Context(SEGMENTS, POSITIONS))
        outputs, reads, attended = recomputed(stack)
        layers = [stack.parameter_layers()[number] for number in stack.config.layer_to_param_index]
        found = [
            from_operands(*pair, activations, number, stack)
            for number, pair in enumerate(zip(layers, reads, strict=True))
        ]
        return out, activations.outputs_NBLD, stack(X, Context(SEGMENTS, POSITIONS)), outputs, found, attended

    out, tapped, plain, outputs, found, attended = jax.device_get(run())
    assert_close(tapped, np.stack(outputs))
    np.testing.assert_array_equal(out, tapped[-1])
    assert_close(out, plain)
    assert_close(found, attended)


OTHER = EncodedSource(
    *jax.device_put((RNG.normal(size=(2, 4, 16)).astype(np.float32), np.int32([[1, 2, 2, 0], [1, 1, 1, 1]])))
)


def cross_queries(stack: Stack) -> list[jax.Array]:
    """Returns the queries of each layer's cross-attention, which reads the residual sum after self-attention."""
    context, queries = Context(SEGMENTS, POSITIONS, other=OTHER), []
    streams = initial_streams(X, is_reversible=stack.config.stack == 'reversible')
    for layer, mechanism in zip(stack.parameter_layers(), layer_mechanisms(stack.config), strict=True):
        read = streams[0] + layer.reversible_branch(layer.sub_layers[0], streams[-1], context, mechanism)
        cross = layer.cross_attention
        queries.append(cross.split_heads(cross.query(layer.cross_attention_norm(read))))
        streams, _ = layer.run(streams, context, mechanism)
    return queries


@pytest.mark.parametrize('kind', ['plain', 'reversible'])
def test_a_cross_attention_hands_out_its_queries_and_the_keys_of_the_other_sequence(kind: str):
    config = ModelConfig(**SIZES | {'stack': kind, 'norm': 'pre'})
    stack = nnx.merge(*drawn(lambda: Stack(config, causal=True, sub_layers=CROSS_ATTENTION_LAYER, rngs=nnx.Rngs(0))))

    @jax.jit
    def run() -> tuple[LayerActivations, list[jax.Array], list[jax.Array]]:
        _, activations = stack.with_layer_activations(X, Context(SEGMENTS, POSITIONS, other=OTHER))
        keys = [layer.cross_attention.project_source(OTHER).key for layer in stack.parameter_layers()]
        return activations, keys, cross_queries(stack)

    activations, keys, queries = run()
    assert set(activations.attention) == {'attention', 'cross_attention'}
    cross = activations.attention['cross_attention']
    assert_close(cross.key_BMHK, np.stack(keys))
    assert_close(cross.query_BLHK, np.stack(queries))


def outputs_of_scans(call: Any) -> list[int]:
    """Returns the number of output arrays of each scan in a program."""
    text = str(jax.make_jaxpr(call)(X))
    return [len(names.split()) for names in re.findall(r'((?:\w+:\S+\s+)+)= scan\[', text)]


@pytest.mark.parametrize('name, streams', [('plain', 1), ('shared', 1), ('reversible', 2)])
def test_without_a_request_the_scan_hands_out_nothing(name: str, streams: int):
    stack = stack_of(name)
    assert outputs_of_scans(lambda x: stack(x, Context(SEGMENTS, POSITIONS))) == [streams]
    operands = 3 * len(set(layer_mechanisms(stack.config)))
    outputs = streams * len(set(layer_mechanisms(stack.config)))
    assert outputs_of_scans(lambda x: stack.with_layer_activations(x, Context(SEGMENTS, POSITIONS))) == [
        streams + outputs + operands
    ]


def test_gradients_through_the_taps_of_a_reversible_stack_are_those_of_its_output():
    stack = stack_of('reversible')

    def gradient(call: Any) -> jax.Array:
        weights = jnp.cos(jnp.arange(X.size)).reshape(X.shape)
        return jax.grad(lambda x: (call(x, Context(SEGMENTS, POSITIONS)) * weights).sum())(X)

    calls = (lambda *arguments: stack.with_layer_activations(*arguments)[1].outputs_NBLD[-1], stack)
    assert_close(*jax.jit(lambda: [gradient(call) for call in calls])(), gradient=True)


@pytest.mark.parametrize('name', ['distances', 'reversible'])
def test_pieces_from_caches_have_the_taps_of_the_whole_text(name: str):
    config = ModelConfig(**SIZES | CASES[name] | {'token_types': 0})
    model = nnx.merge(*drawn(lambda: Decoder(config, rngs=nnx.Rngs(0))))

    @jax.jit
    def both() -> tuple[LayerActivations, tuple[jax.Array, jax.Array], list[LayerActivations]]:
        hidden, whole = model.with_layer_activations(TOKENS, jnp.ones_like(TOKENS))
        cached = CachedDecoder(model, LENGTH)
        _, state, first = cached.with_layer_activations(cached.init_state(2), TOKENS[:, :4])
        pair = hidden, model.normed(whole.outputs_NBLD[-1])
        return whole, pair, [first, cached.with_layer_activations(state, TOKENS[:, 4:])[2]]

    whole, pair, pieces = both()
    assert_close(*pair)
    for take in (
        lambda activations: activations.outputs_NBLD,
        lambda activations: activations.attention['attention'].query_BLHK,
        lambda activations: activations.attention['attention'].key_BMHK,
    ):
        assert_close(np.concatenate([take(piece) for piece in pieces], axis=2), take(whole), gradient=True)


def test_an_encoder_hands_out_its_stacks_taps():
    config = ModelConfig(**SIZES | {'norm': 'pre', 'rotary': True})
    model = nnx.merge(*drawn(lambda: Encoder(config, rngs=nnx.Rngs(0))))

    @jax.jit
    def run() -> tuple[jax.Array, LayerActivations, jax.Array, jax.Array]:
        out, activations = model.with_layer_activations(TOKENS, SEGMENTS)
        return out, activations, model(TOKENS, SEGMENTS), model.normed(activations.outputs_NBLD[-1])

    out, activations, plain, normed = run()
    assert_close(out, plain)
    assert_close(out, normed)
    assert activations.attention['attention'].query_BLHK.shape == (2, 2, LENGTH, 2, 8)
