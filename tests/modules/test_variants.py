"""Every module under jit, on a device, and under vmap and pmap: the same numbers as without."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import pytest
from absl.testing import parameterized
from flax import nnx

from efficient_attention.models.config import ModelConfig
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.embeddings import Embeddings
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.fine_tuning import FineTuningModel, Head
from efficient_attention.models.head_config import HeadConfig
from efficient_attention.models.heads import MaskedLMHead, PairHead, Pooler
from efficient_attention.models.memory import Memory
from efficient_attention.models.stack import Stack
from efficient_attention.modules.attention import SelfAttention
from efficient_attention.modules.feed_forward import FeedForward
from efficient_attention.modules.layer import Layer
from tests.tolerances import assert_close

CONFIG = ModelConfig(width=16, heads=2, vocab_size=11, embedding_width=8, layers=2, max_length=6, rotary=True)
X = jax.random.normal(jax.random.key(0), (2, 6, 16))
TOKENS = jnp.arange(12).reshape(2, 6) % 11
SEGMENTS = jnp.asarray([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 1]])
POSITIONS = jnp.asarray([[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5]])

# name -> (module, its array arguments, whether it takes a key for dropout)
MODULES = {
    'attention': (SelfAttention, (X, SEGMENTS, POSITIONS), True),
    'feed_forward': (FeedForward, (X,), False),
    'layer': (Layer, (X, SEGMENTS, POSITIONS), True),
    'stack': (Stack, (X, SEGMENTS, POSITIONS), True),
    'embeddings': (Embeddings, (TOKENS, TOKENS % 2, POSITIONS), True),
    'pooler': (Pooler, (X,), False),
    'pair_head': (PairHead, (X[:, 0],), False),
}


class VariantsTest(chex.TestCase):
    """One case for each module and variant."""

    @chex.variants(with_jit=True, without_jit=True, with_device=True, with_pmap=True)
    @parameterized.named_parameters((name, name) for name in MODULES)
    def test_module(self, name: str) -> None:
        make, arguments, takes_key = MODULES[name]
        module = make(CONFIG, rngs=nnx.Rngs(0))
        graph, state = nnx.split(module)
        extra = (jax.random.key_data(jax.random.key(5)),) if takes_key else ()

        @self.variant
        def apply(state: nnx.State, *arguments: jax.Array) -> jax.Array:
            module = nnx.merge(graph, state)
            if not takes_key:
                return module(*arguments)
            *arrays, key = arguments
            return module(*arrays, rng=jax.random.wrap_key_data(key))

        expected = module(*arguments, rng=jax.random.key(5)) if takes_key else module(*arguments)
        assert_close(apply(state, *arguments, *extra), expected)

    @chex.variants(with_jit=True, without_jit=True, with_device=True, with_pmap=True)
    def test_encoder_with_its_masked_lm_head(self) -> None:
        encoder, head = Encoder(CONFIG, rngs=nnx.Rngs(0)), MaskedLMHead(CONFIG, rngs=nnx.Rngs(1))
        graph, state = nnx.split((encoder, head))

        @self.variant
        def apply(state: nnx.State, tokens: jax.Array, segments: jax.Array, positions: jax.Array) -> jax.Array:
            encoder, head = nnx.merge(graph, state)
            return head(encoder(tokens, segments, positions_BL=positions), encoder.embeddings.token)

        expected = head(encoder(TOKENS, SEGMENTS, positions_BL=POSITIONS), encoder.embeddings.token)
        assert_close(apply(state, TOKENS, SEGMENTS, POSITIONS), expected)


# ---- whole models and what else a row passes through, under vmap and pmap ----

KEYS = jax.random.key_data(jax.random.split(jax.random.key(5), 2))  # for dropout, a key for each row
IS_GLOBAL = jnp.asarray([[1, 0, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0]], bool)
BATCH = {'tokens': TOKENS, 'segments': SEGMENTS, 'token_types': TOKENS % 2}
CHOICES = {name: jnp.stack([x, x[:, ::-1]], axis=1) for name, x in BATCH.items()}
PLAIN = dataclasses.replace(CONFIG, rotary=False, init_std=0.3, norm_epsilon=1e-5)
CAUSAL = dataclasses.replace(PLAIN, attention='causal', norm='pre', token_types=0)
PLACELESS = {'positions': 'none', 'max_length': 6}


def read(encoder: Encoder, tokens: jax.Array, segments: jax.Array, positions: jax.Array) -> jax.Array:
    return encoder(tokens, segments, positions_BL=positions)


def read_globally(encoder: Encoder, tokens: jax.Array, segments: jax.Array, is_global: jax.Array) -> jax.Array:
    return encoder(tokens, segments, is_global_BL=is_global)


def predict(decoder: Decoder, tokens: jax.Array, segments: jax.Array, keys: jax.Array) -> jax.Array:
    return decoder(tokens, segments, rng=jax.random.wrap_key_data(keys))


def go_on(decoder: Decoder, tokens: jax.Array, segments: jax.Array, states: jax.Array) -> tuple[jax.Array, Memory]:
    return decoder.continued(tokens, segments, Memory(states, jnp.ones(states.shape[::2], jnp.int32)))


def dropped(stack: Stack, *arrays: jax.Array) -> jax.Array:
    *arrays, keys = arrays
    return stack(*arrays, rng=jax.random.wrap_key_data(keys))


def encoder_case(call: Callable = read, last: jax.Array = POSITIONS, **fields: Any) -> tuple:
    return functools.partial(Encoder, dataclasses.replace(PLAIN, **fields)), call, (TOKENS, SEGMENTS, last)


def decoder_case(call: Callable = predict, last: jax.Array = KEYS, **fields: Any) -> tuple:
    return functools.partial(Decoder, dataclasses.replace(CAUSAL, **fields)), call, (TOKENS, SEGMENTS, last)


def head_case(x: jax.Array, **fields: Any) -> tuple:
    return functools.partial(Head, PLAIN, HeadConfig(**fields)), lambda head, x: head(x), (x,)


def task_case(batch: dict[str, jax.Array], **fields: Any) -> tuple:
    return functools.partial(FineTuningModel, PLAIN, HeadConfig(**fields)), lambda model, batch: model(batch), (batch,)


# name -> (what makes the module, how it is called, its arguments: rows that know nothing of one another)
CASES: dict[str, tuple] = {
    'decoder': decoder_case(),
    'decoder of clusters': decoder_case(adaptive_cutoffs=(4, 7), adaptive_divisor=2),
    'memory of transformer_xl': decoder_case(
        go_on,
        jax.random.normal(jax.random.key(1), (2, 2, 4, 16)),
        relative='transformer_xl',
        memory_length=4,
        **PLACELESS,
    ),
    'reversible': (
        functools.partial(Stack, dataclasses.replace(CAUSAL, stack='reversible')),
        dropped,
        (X, SEGMENTS, POSITIONS, KEYS),
    ),
    'lsh': encoder_case(attention='lsh(2, 2)', shared_qk=True),
    'favor': encoder_case(attention='favor(8)', attention_dropout_rate=0.0),
    'global tokens': encoder_case(read_globally, IS_GLOBAL, attention='window(1)', global_tokens=2),
    'alibi': encoder_case(relative='alibi', **PLACELESS),
    't5': encoder_case(relative='t5', **PLACELESS),
    'tupe_r': encoder_case(relative='tupe_r', **PLACELESS),
    'head of rows': task_case(BATCH, kind='sequence', outputs=3),
    'head of choices': task_case(CHOICES, kind='choice'),
    'head of tokens': head_case(X, kind='token'),
    'head of spans': head_case(X, kind='span', feed_forward=True),
    'head of several hops': head_case(X, kind='multi_hop'),
}


@pytest.mark.parametrize('name', CASES)
def test_rows_alone_under_vmap_and_on_devices_of_their_own_are_the_rows_of_a_batch(name: str):
    make, call, arguments = CASES[name]
    graph, state = nnx.split(jax.jit(lambda: make(rngs=nnx.Rngs(0)))())

    def apply(state: nnx.State, *arguments: Any) -> Any:
        return call(nnx.merge(graph, state), *arguments)

    rows = jax.tree.map(lambda x: x[:, None], arguments)
    axes = (None, *(0 for _ in arguments))
    expected = jax.jit(apply)(state, *arguments)
    for mapped in (jax.jit(jax.vmap(apply, axes)), jax.pmap(apply, in_axes=axes)):
        assert_close(jax.tree.map(lambda x: x[:, 0], mapped(state, *rows)), expected)
