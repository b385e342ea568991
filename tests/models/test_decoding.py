"""Decoding from caches: logits equal those of the whole text, however it is cut into pieces, for every mechanism."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.mechanism import Operand
from efficient_attention.attention.synthesizer.definition import Synthesizer
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.decoding import CachedDecoder, DecodeState, read_prompt
from efficient_attention.modules.context import OtherSequence
from efficient_attention.modules.layer import CROSS_ATTENTION_LAYER
from tests.models.drawn import drawn
from tests.tolerances import assert_close

LENGTH = 40
CONFIG = ModelConfig(
    width=16, heads=2, vocab_size=32, layers=2, max_length=LENGTH, token_types=0, attention='causal', norm='pre',
    positions='none', rotary=True, init_std=0.3, attention_dropout_rate=0.0, dropout_rate=0.0,
)  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {  # two layers of different attention each
    'rotary': {'attention': 'causal; causal & window(5)', 'sharing': 'all'},
    'learned': {
        'attention': 'sparse_fixed(8, 2); sparse_strided(5)', 'positions': 'learned', 'rotary': False, 'norm': 'post',
        'embedding_width': 8,
    },
    'sinusoidal': {
        'attention': 'favor(16, causal=True, chunk=16); per_head(causal & window(3), causal)',
        'positions': 'sinusoidal', 'rotary': False,
    },
    'reversible': {
        'attention': 'causal & window(3, 2); causal & block(8)', 'stack': 'reversible', 'shared_qk': True,
        'tied_output': False,
    },
    'alibi': {'attention': 'causal & window(5); causal', 'relative': 'alibi', 'rotary': False},
    't5 and axial': {
        'attention': 'causal; sparse_fixed(8, 2)', 'relative': 't5', 'relative_max_distance': 20, 'positions': 'axial',
        'axial_shape': (5, 8), 'axial_widths': (4, 12), 'rotary': False,
    },
    'transformer_xl': {
        'attention': 'causal; causal & window(5)', 'relative': 'transformer_xl', 'rotary': False, 'clamp_length': 9,
        'norm': 'post',
    },
    'transformer_xl, own biases': {
        'relative': 'transformer_xl', 'rotary': False, 'relative_shared_biases': False,
        'attention': 'causal & window(7)',
    },
    'synthesizer': {
        'attention': "synthesizer('factorized', 40, 20, pattern=causal)", 'rotary': False, 'relative': 'alibi',
    },
    'synthesizer of nothing': {'attention': "synthesizer('random', 40, pattern=causal & window(9))", 'rotary': False},
    'cosines': {'attention': "linear('cos', 40, causal=True, chunk=16)", 'rotary': False},
    'lstm': {'cell': 'lstm', 'rotary': False, 'feed_forward': False},
    'sru, reversible': {'cell': 'sru2', 'rotary': False, 'stack': 'reversible', 'sharing': 'all'},
    'tupe': {'relative': 'tupe_r', 'stack': 'reversible', 'sharing': 'all', 'rotary': False},
}  # fmt: skip
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 32, (2, LENGTH)), jnp.int32)
ONES = jnp.ones_like(TOKENS)


@functools.cache
def decoder_of(**fields: Any) -> tuple[nnx.GraphDef, dict]:
    config = dataclasses.replace(CONFIG, **fields)
    graph, shapes = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    rng = np.random.default_rng(1)  # where nothing is zero and nothing needs compiling

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.asarray(rng.normal(0.0, 0.3, leaf.shape) + (len(leaf.shape) == 1), jnp.float32)

    return graph, jax.tree.map(draw, nnx.to_pure_dict(shapes))


def cached_of(graph: nnx.GraphDef, params: dict) -> CachedDecoder:
    return CachedDecoder(nnx.merge(graph, params), LENGTH)


@functools.partial(jax.jit, static_argnums=0)
def whole(graph: nnx.GraphDef, params: dict, tokens: jax.Array, segments: jax.Array) -> jax.Array:
    return nnx.merge(graph, params)(tokens, segments)


@functools.partial(jax.jit, static_argnums=0)
def read_piece(
    graph: nnx.GraphDef, params: dict, state: DecodeState, tokens: jax.Array, segments: jax.Array
) -> tuple[jax.Array, DecodeState]:
    return cached_of(graph, params)(state, tokens, segments)


@functools.partial(jax.jit, static_argnums=0)
def by_token(graph: nnx.GraphDef, params: dict, state: DecodeState, tokens: jax.Array) -> tuple[jax.Array, DecodeState]:
    """Logits [B, L, V] of tokens that are read one at a time."""
    cached = cached_of(graph, params)

    def step(state: DecodeState, tokens_B: jax.Array) -> tuple[DecodeState, jax.Array]:
        logits, state = cached(state, tokens_B[:, None])
        return state, logits[:, 0]

    state, logits = jax.lax.scan(step, state, tokens.T)
    return logits.swapaxes(0, 1), state


@pytest.mark.parametrize('name', MODELS)
def test_a_prompt_and_then_token_by_token_equals_the_whole_text(name: str):
    """Also with a prompt that is longer in one row than in the other: each row goes on where its own ends."""
    model = decoder_of(**MODELS[name])
    expected = whole(*model, TOKENS, ONES)
    long, short, rest = 20, 13, LENGTH - 20
    segments = (jnp.arange(long)[None] < jnp.asarray([[long], [short]])).astype(jnp.int32)
    prompt, state = read_piece(*model, cached_of(*model).init_state(2), TOKENS[:, :long], segments)
    np.testing.assert_array_equal(state.length_B, [long, short])
    logits, _ = by_token(*model, state, jnp.stack([TOKENS[0, long:], TOKENS[1, short : short + rest]]))
    for row, start in enumerate((long, short)):
        found = jnp.concatenate([prompt[row, :start], logits[row]])
        np.testing.assert_allclose(found, expected[row, : start + rest], rtol=1e-4, atol=1e-4)


def test_layers_may_share_what_a_mechanism_learns(monkeypatch: pytest.MonkeyPatch):
    declared = Synthesizer.learned_operands

    def shared(mechanism: Synthesizer, heads: int, width: int) -> dict[str, Operand]:
        return {
            name: dataclasses.replace(one, is_shared=True) for name, one in declared(mechanism, heads, width).items()
        }

    monkeypatch.setattr(Synthesizer, 'learned_operands', shared)
    fields = {'attention': "synthesizer('dense', 41, pattern=causal)", 'rotary': False}
    graph, params = decoder_of(**fields)
    assert 'learned' in params['stack'] and 'learned' not in str(params['stack']['layers'])
    state = cached_of(graph, params).init_state(2)
    assert_close(by_token(graph, params, state, TOKENS)[0], whole(graph, params, TOKENS, ONES))


@pytest.mark.parametrize('fields', [{'norm': 'post'}, {'stack': 'reversible'}], ids=['post', 'reversible'])
def test_cross_attention_reads_keys_that_are_computed_once(fields: dict):
    config = dataclasses.replace(CONFIG, **fields)
    graph, params = drawn(lambda: Decoder(config, sub_layers=CROSS_ATTENTION_LAYER, rngs=nnx.Rngs(0)))
    segments = jnp.asarray([[1, 1, 1, 0], [1, 1, 1, 1]])
    other = OtherSequence(jax.random.normal(jax.random.key(0), (2, 4, 16)), segments)
    expected = jax.jit(lambda params: nnx.merge(graph, params)(TOKENS[:, :8], ONES[:, :8], other=other))(params)
    state = jax.jit(lambda params: cached_of(graph, params).init_state(2, other=other))(params)
    assert [type(cache).__name__ for cache in state.caches] == ['KeyCache', 'FixedKeys'] * 2
    first, state = read_piece(graph, params, state, TOKENS[:, :5], ONES[:, :5])
    rest, after = by_token(graph, params, state, TOKENS[:, 5:8])
    assert_close(jnp.concatenate([first, rest], axis=1), expected, gradient=True)
    np.testing.assert_array_equal(after.caches[1].key_BGMK, state.caches[1].key_BGMK)
    other_keys = state._replace(
        caches=tuple(cache for pair in zip(state.caches[::2], state.caches[3::-2], strict=True) for cache in pair)
    )
    assert jnp.abs(by_token(graph, params, other_keys, TOKENS[:, 5:8])[0] - rest).max() > 1e-2
    with pytest.raises(ValueError, match='cross_attention reads another sequence'):
        cached_of(graph, params).init_state(2)


def test_a_long_prompt_is_read_in_pieces():
    """The last of them padded, and one that is all padding: the state is the one of a single piece."""
    model = decoder_of(**MODELS['rotary'])
    segments = (jnp.arange(LENGTH)[None] < jnp.asarray([[20], [5]])).astype(jnp.int32)
    state = cached_of(*model).init_state(2)
    read = jax.jit(lambda params, state: read_prompt(cached_of(model[0], params), state, TOKENS, segments, piece=9))
    pieces, once = read(model[1], state), read_piece(*model, state, TOKENS[:, :20], segments[:, :20])[1]
    np.testing.assert_array_equal(pieces.length_B, once.length_B)
    for left, right in zip(pieces.caches, once.caches, strict=True):
        np.testing.assert_array_equal(left.segments_BM, right.segments_BM)
        assert_close(left, right, gradient=True)


def test_padding_behind_the_position_table_changes_nothing():
    """The last piece of the prompt reaches beyond it."""
    model = decoder_of(**MODELS['learned'])
    segments = (jnp.arange(LENGTH)[None] < LENGTH - 1).astype(jnp.int32).repeat(2, 0)
    state = cached_of(*model).init_state(2)
    read = jax.jit(lambda params, state: read_prompt(cached_of(model[0], params), state, TOKENS, segments, piece=9))
    logits, state = read_piece(*model, read(model[1], state), TOKENS[:, -1:], ONES[:, -1:])
    assert_close(logits[:, 0], whole(*model, TOKENS, ONES)[:, -1], gradient=True)
    assert jnp.isnan(read_piece(*model, state, TOKENS[:, :1], ONES[:, :1])[0]).all()


def test_packed_texts_do_not_read_one_another():
    """One of them begins in the middle of a piece."""
    model = decoder_of(**MODELS['rotary'])
    segments = jnp.where(jnp.arange(LENGTH) < 15, 1, 2)[None].repeat(2, 0)
    first, state = read_piece(*model, cached_of(*model).init_state(2), TOKENS[:, :20], segments[:, :20])
    second, _ = read_piece(*model, state, TOKENS[:, 20:], segments[:, 20:])
    found = jnp.concatenate([first, second], axis=1)
    assert_close(found, whole(*model, TOKENS, segments), gradient=True)


def test_memory_follows_what_may_still_be_read():
    """At 4,096 tokens: a window and FAVOR keep the same as at 1,024, full attention keeps everything."""

    def size(attention: str, length: int) -> int:
        config = dataclasses.replace(CONFIG, attention=attention, layers=1)
        state = jax.eval_shape(lambda: CachedDecoder(Decoder(config, rngs=nnx.Rngs(0)), length).init_state(1))
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state))

    token = 2 * 16 + 2  # a key and a value of all heads, position and segment; and for each row its length
    assert size('causal & window(32)', 1024) == size('causal & window(32)', 4096) == 33 * token + 1
    assert size('favor(16, causal=True)', 1024) == size('favor(16, causal=True)', 4096) < 2 * 16 * 10 + 16 * 8 + 9
    assert size('sparse_fixed(64, 4)', 4096) <= (64 + 4 * 64) * token
    assert size('causal', 4096) == 4096 * token + 1


def test_lsh_is_refused_in_one_line():
    config = dataclasses.replace(CONFIG, attention='lsh(8, 2, causal=True)', shared_qk=True)
    decoder = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))
    with pytest.raises(InputError, match='lsh attention cannot go on token by token: which keys a query meets'):
        CachedDecoder(decoder, 8)


def test_a_compressed_memory_is_not_read_token_by_token():
    xl = {'relative': 'transformer_xl', 'rotary': False, 'memory_length': 6}
    decoder = nnx.merge(*decoder_of(**xl, compression='mean', compressed_length=4))
    with pytest.raises(
        InputError, match='^model.compressed_length is 4; it must be 0 where text is made token by token'
    ):
        CachedDecoder(decoder, 8)


@pytest.mark.parametrize('same_length', [False, True])
def test_a_model_with_memory_reads_so_many_tokens_before_each(same_length: bool):
    xl = {'relative': 'transformer_xl', 'rotary': False}
    graph, params = decoder_of(**xl, memory_length=6, same_length=same_length)
    window, _ = decoder_of(**xl, attention=f'causal & window({6 - same_length})')
    cached = cached_of(graph, params)
    logits, state = by_token(graph, params, cached.init_state(2), TOKENS)
    assert_close(logits, whole(window, params, TOKENS, ONES), dtype='float32', gradient=True)
    assert all(cache.key_BGMK.shape[2] == 7 - same_length for cache in state.caches)
