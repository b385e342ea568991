"""Tests that every module computes the same numbers under jit, on a device, and under vmap and pmap."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.embeddings import Embeddings
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.fine_tuning import FineTuningHead, FineTuningModel
from efficient_attention.models.layer_stack import Stack
from efficient_attention.models.pretraining import MaskedLMHead, PairHead
from efficient_attention.models.segment_memory import SegmentMemory
from efficient_attention.modules.attention import Attention
from efficient_attention.modules.feed_forward import FeedForward
from efficient_attention.modules.layer import Layer
from efficient_attention.modules.layer_context import Context
from efficient_attention.modules.pooling import Pooler
from efficient_attention.modules.recurrent_sub_layer import RecurrentSubLayer
from tests.models.drawn import drawn
from tests.tolerances import assert_close

CONFIG = ModelConfig(width=16, heads=2, vocab_size=11, embedding_width=8, layers=2, max_length=6, rotary=True)
X = np.random.default_rng(0).normal(size=(2, 6, 16)).astype(np.float32)
TOKENS = np.arange(12, dtype=np.int32).reshape(2, 6) % 11
KEYS = np.asarray([[0, 5], [0, 6]], np.uint32)  # The data of one dropout key for each row.
SEGMENTS = np.asarray([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 1]], np.int32)
POSITIONS = np.asarray([[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5]], np.int32)

# From a name to the module, its array arguments, and whether it takes a key for dropout.
MODULES = {
    'attention': (Attention, (X, SEGMENTS, POSITIONS), True),
    'feed_forward': (FeedForward, (X,), False),
    'layer': (Layer, (X, SEGMENTS, POSITIONS), True),
    'recurrent': (RecurrentSubLayer, (X, SEGMENTS), True),
    'stack': (Stack, (X, SEGMENTS, POSITIONS), True),
    'embeddings': (Embeddings, (TOKENS, TOKENS % 2, POSITIONS), True),
    'pooler': (Pooler, (X[:, 0],), False),
    'pair_head': (PairHead, (X[:, 0],), False),
}


def with_key(module: nnx.Module, arrays: Sequence[jax.Array], key: jax.Array) -> jax.Array:
    """Returns the module's output with dropout; a stack gets its other arguments in a `Context`."""
    if isinstance(module, Stack):
        return module(arrays[0], Context(*arrays[1:], key))
    return module(*arrays, rng=key)


def check_variants(apply: Callable, *arguments: Any) -> None:
    """Checks that `apply` computes the same numbers with and without jit, on device arrays, and under pmap."""
    expected = jax.device_get(jax.jit(apply)(*arguments))
    assert_close(apply(*jax.device_put(arguments, jax.devices()[0])), expected)
    mapped = jax.pmap(apply)(*jax.tree.map(lambda x: np.stack([x, x]), arguments))
    assert_close(jax.device_get(mapped), np.stack([expected] * 2))


@pytest.mark.parametrize('name', MODULES)
def test_a_module_in_every_variant(name: str):
    make, arguments, takes_key = MODULES[name]
    config = dataclasses.replace(CONFIG, cell='gru', state_dropout_rate=0.5) if make is RecurrentSubLayer else CONFIG
    graph, state = drawn(lambda: make(config, rngs=nnx.Rngs(0)))

    def apply(state: dict, *arguments: jax.Array) -> jax.Array:
        module = nnx.merge(graph, state)
        if not takes_key:
            return module(*arguments)
        *arrays, key = arguments
        return with_key(module, arrays, jax.random.wrap_key_data(key))

    check_variants(apply, state, *arguments, *([KEYS[0]] if takes_key else []))


def test_the_encoder_with_its_masked_lm_head_in_every_variant():
    def make() -> tuple[Encoder, MaskedLMHead]:
        return Encoder(CONFIG, rngs=nnx.Rngs(0)), MaskedLMHead(CONFIG, rngs=nnx.Rngs(1))

    graph, state = drawn(make)

    def apply(state: dict, tokens: jax.Array, segments: jax.Array, positions: jax.Array) -> jax.Array:
        encoder, head = nnx.merge(graph, state)
        return head(encoder(tokens, segments, positions_BL=positions), encoder.embeddings.token)

    check_variants(apply, state, TOKENS, SEGMENTS, POSITIONS)


# ---- whole models and other functions of rows, under vmap and pmap ----

IS_GLOBAL = np.asarray([[1, 0, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0]], bool)
STATES = np.random.default_rng(1).normal(size=(2, 2, 4, 16)).astype(np.float32)
BATCH = {'tokens': TOKENS, 'segments': SEGMENTS, 'token_types': TOKENS % 2}
CHOICES = {name: np.stack([x, x[:, ::-1]], axis=1) for name, x in BATCH.items()}
PLAIN = dataclasses.replace(CONFIG, rotary=False, init_std=0.3, norm_epsilon=1e-5, attention_dropout_rate=0.0)
CAUSAL = dataclasses.replace(PLAIN, attention='causal', norm='pre', token_types=0)
PLACELESS = {'positions': 'none', 'max_length': 6}


def read(stack: Stack, *arrays: jax.Array) -> jax.Array:
    return stack(arrays[0], Context(*arrays[1:], mechanism_rng=jax.random.key(2)))


def read_dropped(stack: Stack, x: jax.Array, segments: jax.Array, positions: jax.Array, keys: jax.Array) -> jax.Array:
    return stack(x, Context(segments, positions, jax.random.wrap_key_data(keys)))


def read_globally(layer: Attention, *arrays: jax.Array) -> jax.Array:
    return layer(*arrays[:3], is_global_BL=arrays[3])


def predict(decoder: Decoder, tokens: jax.Array, segments: jax.Array, keys: jax.Array) -> jax.Array:
    return decoder(tokens, segments, rng=jax.random.wrap_key_data(keys))


def run_with_cache(
    decoder: Decoder, tokens: jax.Array, segments: jax.Array, states: jax.Array
) -> tuple[jax.Array, SegmentMemory]:
    return decoder.continue_from_memory(tokens, segments, SegmentMemory(states, jnp.ones(states.shape[::2], jnp.int32)))


def answer(model: nnx.Module, x: Any) -> Any:
    return model(x)


def stack_case(call: Callable, *more: jax.Array, config: ModelConfig = PLAIN, **fields: Any) -> tuple:
    return functools.partial(Stack, dataclasses.replace(config, **fields)), call, (X, SEGMENTS, POSITIONS, *more)


def decoder_case(call: Callable, last: jax.Array, **fields: Any) -> tuple:
    return functools.partial(Decoder, dataclasses.replace(CAUSAL, **fields)), call, (TOKENS, SEGMENTS, last)


# From a name to the module's constructor, the way it is called, and its arguments for two independent rows.
CASES: dict[str, tuple] = {
    'decoder': decoder_case(predict, KEYS),
    'memory and transformer_xl': decoder_case(
        run_with_cache, STATES, relative='transformer_xl', memory_length=4, **PLACELESS
    ),
    'reversible': stack_case(read_dropped, KEYS, config=CAUSAL, stack='reversible'),
    'lsh': stack_case(read, attention='lsh(2, 2)', shared_qk=True),
    'favor': stack_case(read, attention='favor(4, orthogonal=False)'),
    'alibi': stack_case(read, relative='alibi', **PLACELESS),
    't5': stack_case(read, relative='t5', **PLACELESS),
    'tupe_r': stack_case(read, relative='tupe_r', **PLACELESS),
    'global tokens': (
        functools.partial(Attention, dataclasses.replace(PLAIN, attention='window(1)', global_tokens=2)),
        read_globally,
        (X, SEGMENTS, POSITIONS, IS_GLOBAL),
    ),
    'choices': (functools.partial(FineTuningModel, PLAIN, HeadConfig(kind='choice')), answer, (CHOICES,)),
    'head of rows': (
        functools.partial(FineTuningHead, PLAIN, HeadConfig(kind='sequence', outputs=3)),
        answer,
        (X[:, 0],),
    ),
    'head of tokens': (functools.partial(FineTuningHead, PLAIN, HeadConfig(kind='token')), answer, (X,)),
    'head of spans': (
        functools.partial(FineTuningHead, PLAIN, HeadConfig(kind='span', feed_forward=True)),
        answer,
        (X,),
    ),
    'head of several hops': (functools.partial(FineTuningHead, PLAIN, HeadConfig(kind='multi_hop')), answer, (X,)),
}


@pytest.mark.parametrize('name', CASES)
def test_rows_under_vmap_on_several_devices_are_the_rows_of_a_batch(name: str):
    """One device maps over both rows, another one over both in the other order; a call reads only one row."""
    make, call, arguments = CASES[name]
    graph, state = drawn(lambda: make(rngs=nnx.Rngs(0)))

    def apply(state: dict, *arguments: Any) -> Any:
        return call(nnx.merge(graph, state), *arguments)

    rows = jax.tree.map(lambda x: np.stack([x, x[::-1]])[:, :, None], arguments)
    axes = (None, *(0 for _ in arguments))
    mapped = jax.pmap(jax.vmap(apply, axes), in_axes=axes)(state, *rows)
    expected = jax.tree.map(
        lambda x: np.stack([x, x[::-1]])[:, :, None], jax.device_get(jax.jit(apply)(state, *arguments))
    )
    assert_close(jax.device_get(mapped), expected)
